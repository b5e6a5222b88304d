"""The longest turn that a broker of the tests may have had, in CPU time of its thread.

While a turn lasts all other clients wait. 50 ms is what a request may take on an idle machine. The bounds here are a few times that,
because CPU time too grows on a machine that does other things (caches, hyper-threads, clock rates). CPU time and not time by the clock:
a broker that is not given a core has done nothing wrong. A test that does more on purpose says so and why:
`@pytest.mark.long_turns(reason)`.
"""

import re
from collections.abc import Iterable

#: Of brokers in processes of their own. Their garbage collections count.
BOUND_MS = 150
#: Of brokers inside the process of the tests, without the collections of its garbage (`testkit.cpu_time`).
EMBEDDED_BOUND_MS = 100
_LINE = re.compile(r"the longest turn of the event loop: (\d+) ms of CPU time.*")

#: Turns beyond the bound since somebody looked last.
exceeded: list[str] = []


def look_at(said: Iterable[str], bound_ms: int = BOUND_MS) -> None:
    """What a broker said, to its end."""
    found = filter(None, map(_LINE.search, said))
    exceeded.extend(each[0] for each in found if int(each[1]) > bound_ms)
