"""Followers' fetchers: they leave nothing behind at the leader, and nothing that comes stops them for good."""

from ottla.ports.effects import ASK
from testkit.sim.quiet import Quiet


def pair() -> Quiet:
    """1 leads, 3 follows, 2 controls."""
    quiet = Quiet(3)
    assert quiet.ensemble.holder == 2
    quiet.create("t", (1, 3))
    quiet.write("t", b"one")
    quiet.until(lambda: quiet.all_in_sync("t"))
    return quiet


def sessions(quiet: Quiet, leader: int, follower: int) -> int:
    found = quiet.members[leader].broker.fetch_sessions.by_id.values()
    return sum(each.follower == follower for each in found)


def test_a_session_that_was_given_up_is_not_kept_by_the_leader() -> None:
    """The connection stays, so nothing else would end it; and each one watches all that it was told of."""
    quiet = pair()
    broker = quiet.members[3].broker
    for round_ in range(3):
        # Fenced and registered anew: roles end, and begin again.
        epoch = broker.lifecycle.broker_epoch
        quiet.members[2].suspect(3)
        quiet.until(lambda epoch=epoch: broker.lifecycle.broker_epoch not in (-1, epoch))  # type: ignore[misc]
        quiet.until(lambda: quiet.all_in_sync("t"))
        quiet.write("t", b"%d" % round_)
        assert sessions(quiet, 1, 3) == 1
    assert len(quiet.replica(1, "t").tail) == 1


def test_an_answer_that_cannot_be_read_is_no_end() -> None:
    quiet = pair()
    broker = quiet.members[3].broker
    perform = quiet.members[3]._perform
    spoilt: list[bool] = []

    def spoil(effect: tuple[object, ...]) -> None:
        if effect[0] == ASK and effect[3] == 1 and not spoilt:
            spoilt.append(True)
            done = effect[6]
            quiet.members[3].schedule(1, lambda: done(memoryview(b"\0" * 9), None))  # type: ignore[operator]
            return
        perform(effect)

    quiet.members[3]._perform = spoil  # type: ignore[method-assign]
    quiet.write("t", b"two")
    quiet.until(lambda: bool(spoilt))
    quiet.until(lambda: quiet.replica(3, "t").log.next_offset == 2)
    quiet.write("t", b"three")
    quiet.until(lambda: quiet.replica(3, "t").log.next_offset == 3)
    assert broker.lifecycle.is_serving


def test_what_was_asked_for_in_an_epoch_before_does_not_hold_up_this_one() -> None:
    """The leader wakes those who wait when its epoch changes. A follower that has asked for more in the new one by then must
    not take that answer for its own, and rest."""
    quiet = Quiet(4, settings={"replica.fetch.backoff.ms": "5000", "replica.fetch.wait.max.ms": "400"})
    leader, follower, other = (node for node in quiet.members if node != quiet.ensemble.holder)
    quiet.create("t", (leader, follower, other))
    # Whoever asked a leader that had not heard of it rests now.
    quiet.run(6000)
    quiet.write("t", b"one")
    quiet.until(lambda: quiet.all_in_sync("t"))
    client = quiet.members[leader].client
    client.log_moved = lambda: None  # type: ignore[method-assign]
    quiet.kill(other)
    quiet.until(lambda: quiet.replica(follower, "t").leader_epoch == 1)
    del client.log_moved
    client.log_moved()
    quiet.until(lambda: quiet.replica(leader, "t").leader_epoch == 1)
    rows = quiet.produce(leader, "t", b"two", timeout_ms=9000)
    assert quiet.until(lambda: bool(rows)) < 1000
    assert rows[0].error_code == 0


def test_consumers_leave_no_follower_without_a_session() -> None:
    quiet = Quiet(3, settings={"max.incremental.fetch.session.cache.slots": "3"})
    quiet.create("t", (1, 3))
    quiet.write("t", b"one")
    quiet.kill(3)
    quiet.until(lambda: sessions(quiet, 1, 3) == 0)
    for _ in range(5):
        quiet.fetch(1, "t", 0, session_epoch=0)
    assert len(quiet.members[1].broker.fetch_sessions.by_id) == 3
    quiet.start(3)
    quiet.until(lambda: quiet.all_in_sync("t"))
    assert sessions(quiet, 1, 3) == 1
    assert len(quiet.members[1].broker.fetch_sessions.by_id) == 3
