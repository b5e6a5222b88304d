"""New leaders: their answers before they know their followers' positions, and how soon followers fetch."""

from ottla.model.errors import ErrorCode
from testkit.sim.quiet import Quiet

FETCH, LIST_OFFSETS, METADATA = 1, 2, 3


def latest(quiet: Quiet, node_id: int, version: int = 7) -> tuple[int, int]:
    rows = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]
    body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": rows}]}
    row = quiet.call(node_id, LIST_OFFSETS, version, body).topics[0].partitions[0]
    return int(row.error_code), row.offset


def test_the_end_of_a_log_does_not_go_back_with_a_new_leader() -> None:
    """KIP-207: it may have committed records without knowing it, because followers learn of the high
    watermark last.
    """
    quiet = Quiet(3)
    quiet.create("t", (1, 2, 3), min_insync_replicas="1")
    quiet.write("t", b"one", b"two")
    quiet.until(lambda: quiet.all_in_sync("t"))
    quiet.write("t", b"three")
    assert latest(quiet, 1) == (0, 3)
    new_leader = quiet.replica(2, "t")
    new_leader.high_watermark = 2
    # The third cannot reach it: the high watermark is unknown.
    quiet.cut(2, 3)
    quiet.kill(1)
    quiet.until(lambda: quiet.leader("t") == 2 and new_leader.leading is not None)
    assert latest(quiet, 2) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    assert latest(quiet, 2, version=4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    quiet.mend()
    quiet.until(lambda: latest(quiet, 2)[0] == 0)
    assert latest(quiet, 2) == (0, 3)


def test_followers_of_a_new_partition_do_not_wait_for_the_polls_of_others_to_end() -> None:
    quiet = Quiet(3)
    quiet.create("t", (1, 2, 3))
    quiet.write("t", b"one")
    # No new records: the followers' fetches wait at the leader for half a second.
    quiet.run(2000)
    for number in range(5):
        name = f"u{number}"
        quiet.create(name, (1, 2, 3))
        answers = quiet.produce(1, name, b"first")
        assert quiet.until(lambda answers=answers: bool(answers)) < 100
        quiet.run(1100)
    for name in ("t", "u0", "u4"):
        quiet.write(name, b"more")
        quiet.until(lambda name=name: quiet.all_in_sync(name))


def test_a_client_that_asks_for_the_leader_as_it_dies_hears_of_the_next_one() -> None:
    quiet = Quiet(3)
    quiet.create("t", (1, 2, 3))
    quiet.create("other", (2, 3, 1))
    quiet.write("t", b"one")
    quiet.kill(1)
    quiet.until(lambda: 1 in quiet.members[2].broker.lifecycle.unreachable_brokers())
    # Nothing is decided yet, and who asks for something else need not wait for it.
    assert quiet.members[2].broker.image.topics["t"].partitions[0].leader == 1
    bodies = [{"topics": [{"name": name}], "allow_auto_topic_creation": False} for name in ("t", "other")]
    slow, quick = (quiet.ask(2, METADATA, 9, body) for body in bodies)
    quiet.until(lambda: bool(quick))
    quiet.until(lambda: bool(slow))
    assert slow[0].topics[0].partitions[0].leader_id in (2, 3)
    assert quick[0].topics[0].partitions[0].leader_id == 2


def test_nobody_waits_long_for_an_election_that_does_not_come() -> None:
    quiet = Quiet(3)
    quiet.create("t", (1, 2, 3))
    quiet.write("t", b"one")
    membership = quiet.members[2].broker.lifecycle
    # A connection that broke for another reason.
    membership.mark_unreachable(1)
    answers = quiet.ask(2, METADATA, 9, {"topics": None, "allow_auto_topic_creation": False})
    assert quiet.until(lambda: bool(answers)) > 100
    assert answers[0].topics[0].partitions[0].leader_id == 1
    assert membership.unreachable_brokers() == set()


def test_a_follower_that_asks_again_hears_of_the_watermark_again() -> None:
    """Notifications of the previous epoch, or during its back-off, were dropped."""
    quiet = Quiet(3)
    quiet.create("t", (1, 2, 3), min_insync_replicas="1")
    quiet.write("t", b"one")
    epoch = quiet.partition("t").leader_epoch
    # A second session, in the name of broker 2.
    state = {"replica_id": 2, "replica_epoch": quiet.members[2].broker.lifecycle.broker_epoch}
    more = {"replica_state": state, "session_epoch": 0}
    answer = quiet.call(1, FETCH, 16, quiet.fetch_body("t", 1, epoch=epoch, **more), 2)
    assert answer.responses[0].partitions[0].high_watermark == 1
    quiet.kill(3)
    quiet.until(lambda: quiet.replica(1, "t").leader_epoch > epoch)
    assert quiet.leader("t") == 1
    more |= {"session_id": answer.session_id, "session_epoch": 1}
    later = quiet.replica(1, "t").leader_epoch
    answer = quiet.call(1, FETCH, 16, quiet.fetch_body("t", 1, epoch=later, **more), 2)
    assert answer.responses[0].partitions[0].high_watermark == 1
    # And only once, unless it asks for the same again.
    more |= {"session_epoch": 2}
    body = quiet.fetch_body("t", 1, epoch=later, **more, topics=[])
    assert not quiet.call(1, FETCH, 16, body, 2).responses
    more |= {"session_epoch": 3}
    answer = quiet.call(1, FETCH, 16, quiet.fetch_body("t", 1, epoch=later, **more), 2)
    assert answer.responses[0].partitions[0].high_watermark == 1
