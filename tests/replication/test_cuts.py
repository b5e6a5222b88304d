"""A follower's log is cut to where it agrees with its leader's. Until that is durable, nothing is written behind it (R1)."""

from collections.abc import Callable
from typing import Any

import pytest

from testkit.sim.quiet import Quiet


class Held:
    """A cluster in which broker 2 is about to have its log cut, and what makes the cut durable is held back."""

    def __init__(self) -> None:
        quiet = self.quiet = Quiet(3)
        quiet.create("t", (2, 1, 3))
        quiet.write("t", b"one")
        quiet.until(lambda: quiet.all_in_sync("t"))
        quiet.cut(2, 1)
        quiet.cut(2, 3)
        for value in (b"x", b"y", b"z"):
            quiet.write("t", value, acks=1)
        quiet.kill(2)
        quiet.until(lambda: quiet.leader("t") == 1)
        quiet.until(lambda: quiet.replica(1, "t").leading is not None)
        quiet.write("t", b"two")
        quiet.mend()
        member = quiet.start(2)
        self.done: list[Callable[[], None]] = []

        def truncated(_replica: Any, _segments: Any, done: Callable[[], None]) -> None:
            self.done.append(done)

        member.broker.log_maintenance.truncated = truncated  # type: ignore[method-assign]
        quiet.until(lambda: bool(self.done))
        self.replica = quiet.replica(2, "t")
        assert self.replica.log.next_offset == 1

    def finish(self) -> None:
        """It is durable now."""
        done, self.done = self.done, []
        for each in done:
            each()
        self.quiet.members[2]._turn()


def test_another_leader_is_followed_only_then() -> None:
    held = Held()
    quiet = held.quiet
    quiet.kill(1)
    quiet.until(lambda: quiet.leader("t") == 3)
    quiet.run(1000)
    assert held.replica.log.next_offset == 1
    # Nor when there are more news in the same epoch.
    quiet.start(1)
    quiet.until(lambda: 1 in quiet.partition("t").isr)
    quiet.run(1000)
    assert held.replica.log.next_offset == 1
    held.finish()
    quiet.until(lambda: held.replica.log.next_offset == 2)


@pytest.mark.parametrize("is_leader_at_the_end", [True, False])
def test_nor_does_it_lead_before(is_leader_at_the_end: bool) -> None:
    held = Held()
    quiet = held.quiet
    quiet.configure(2, "t", unclean_leader_election_enable="true")
    for node in (1, 3):
        quiet.kill(node)
    quiet.until(lambda: quiet.leader("t") == 2)
    quiet.run(500)
    rows = quiet.produce(2, "t", b"three")
    quiet.until(lambda: bool(rows))
    assert rows[0].error_code and held.replica.log.next_offset == 1
    if not is_leader_at_the_end:
        quiet.start(1)
        quiet.start(3)
        quiet.until(lambda: quiet.members[1].joined and quiet.members[3].joined)
    held.finish()
    assert quiet.write("t", b"three") >= 1
    quiet.until(lambda: held.replica.leading is not None or held.replica.following is not None)
