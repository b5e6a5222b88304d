"""The longest turn that a broker of the tests may have had, in CPU time of its thread.

While a turn lasts all other clients wait. 50 ms is what a request may take on an idle machine; the bound here is ten times that,
because CPU time too grows on a machine that does other things (caches, hyper-threads, clock rates), and because a test may run with
coverage. CPU time and not time by the clock: a broker that is not given a core has done nothing wrong. A test that does more on
purpose says so and why: `@pytest.mark.long_turns(reason)`.
"""

import re
from collections.abc import Iterable

BOUND_MS = 500
#: Of brokers inside the process of the tests: a collection of garbage there walks over all that the tests have made, in the midst of a
#: turn (510 ms of CPU time were seen).
EMBEDDED_BOUND_MS = 2000
_LINE = re.compile(r"the longest turn of the event loop: (\d+) ms of CPU time.*")

#: Turns beyond the bound since somebody looked last.
exceeded: list[str] = []


def look_at(said: Iterable[str], bound_ms: int = BOUND_MS) -> None:
    """What a broker said, to its end."""
    found = filter(None, map(_LINE.search, said))
    exceeded.extend(each[0] for each in found if int(each[1]) > bound_ms)
