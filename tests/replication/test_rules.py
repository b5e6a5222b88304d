"""The rules of replication that hold between brokers, each by its number, on real cores in a simulated cluster.

R1 and R4 are held by tests/sim (divergence, cut-off leaders) and tests/controller/test_isr.py, R6 and R7 by tests/zookeeper and
tests/controller/test_broker_changes.py, R9 and R12 by tests/sim/test_nearest_replica.py and test_failed_directories.py.
"""

from typing import Any

import pytest

from ottla.metadata import records as r
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from ottla.replication.leader_state import LeaderState
from testkit.sim.quiet import Quiet

OFFSET_FOR_LEADER_EPOCH = 23
NOW = 1_700_000_000_000


def three(**configs: str) -> Quiet:
    quiet = Quiet(3)
    quiet.create("t", (1, 2, 3), **{"min_insync_replicas": "2", **configs})
    quiet.write("t", b"one")
    quiet.until(lambda: all(quiet.replica(node, "t").high_watermark == 1 for node in (1, 2, 3)))
    return quiet


# --- R2: whoever asks under another leader epoch is told so -----------------------------------------------------


def fetch(quiet: Quiet, epoch: int) -> int:
    return int(quiet.fetch(1, "t", 0, epoch=epoch).error_code)


def list_offsets(quiet: Quiet, epoch: int) -> int:
    row = {"partition_index": 0, "current_leader_epoch": epoch, "timestamp": -1}
    body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": [row]}]}
    return int(quiet.call(1, ApiKey.LIST_OFFSETS, 7, body).topics[0].partitions[0].error_code)


def end_of_epoch(quiet: Quiet, epoch: int) -> int:
    row = {"partition": 0, "current_leader_epoch": epoch, "leader_epoch": 0}
    body = {"replica_id": -1, "topics": [{"topic": "t", "partitions": [row]}]}
    return int(quiet.call(1, OFFSET_FOR_LEADER_EPOCH, 4, body).topics[0].partitions[0].error_code)


@pytest.mark.parametrize("ask", [fetch, list_offsets, end_of_epoch])
def test_r2_another_leader_epoch_is_refused(ask: Any) -> None:
    quiet = three()
    quiet.kill(3)
    quiet.until(lambda: quiet.replica(1, "t").leader_epoch == 1)
    assert ask(quiet, 1) == 0
    assert ask(quiet, -1) == 0
    assert ask(quiet, 0) == ErrorCode.FENCED_LEADER_EPOCH
    assert ask(quiet, 2) == ErrorCode.UNKNOWN_LEADER_EPOCH


# --- R3: how far records count ------------------------------------------------------------------------------------


def leading(isr: tuple[int, ...], isr_min: int = 1) -> LeaderState:
    return LeaderState(1, r.Partition(bytes(16), 0, (1, 2, 3), isr, 1), isr_min, NOW)


def test_r3_members_of_both_isrs_are_waited_for_while_one_is_asked_for() -> None:
    leader = leading((1, 2))
    leader.followers[2].fetched(7, 9, 1, NOW)
    leader.followers[3].fetched(5, 9, 1, NOW)
    assert leader.bound(9) == 7
    leader.ask_for((1, 2, 3))
    assert leader.bound(9) == 5
    leader.refused()
    assert leader.bound(9) == 7
    # And while one is to leave, until it is granted.
    leader.ask_for((1,))
    assert leader.bound(9) == 7
    leader.change(r.Partition(bytes(16), 0, (1, 2, 3), (1,), 1, partition_epoch=1), 1, NOW)
    assert leader.bound(9) == 9


def test_r3_one_change_is_asked_for_at_a_time() -> None:
    leader = leading((1,))
    leader.epoch_start = 0
    leader.followers[2].fetched(9, 9, 1, NOW)
    assert leader.may_join(leader.followers[2], 9)
    leader.ask_for((1, 3))
    assert not leader.may_join(leader.followers[2], 9)


def test_r3_who_joins_has_what_counts_and_the_leaders_own_epoch() -> None:
    leader = leading((1,))
    leader.epoch_start = 8
    follower = leader.followers[2]
    follower.fetched(8, 9, 1, NOW)
    assert leader.may_join(follower, 8)
    assert not leader.may_join(follower, 9)
    # A leader that begins its epoch at 8 has records below it that its own watermark does not know of yet.
    follower.fetched(7, 9, 1, NOW)
    assert not leader.may_join(follower, 5)


@pytest.mark.parametrize("policy", ["durable", "page-cache"])
def test_r3_nothing_more_counts_while_the_isr_is_too_small(policy: str) -> None:
    quiet = three(flush_policy=policy, min_insync_replicas="3")
    quiet.kill(3)
    replica = quiet.replica(1, "t")
    quiet.until(lambda: replica.leading is not None and len(replica.leading.isr) == 2)
    quiet.write("t", b"two", acks=1)
    quiet.until(lambda: quiet.replica(2, "t").log.next_offset == 2)
    quiet.run(1000)
    assert replica.high_watermark == 1
    assert quiet.values(quiet.fetch(1, "t", 0)) == [b"one"]
    quiet.start(3)
    quiet.until(lambda: replica.high_watermark == 2)


@pytest.mark.parametrize("policy", ["durable", "page-cache"])
def test_r3_nor_for_a_leader_alone(policy: str) -> None:
    quiet = three(flush_policy=policy)
    for node in (2, 3):
        quiet.kill(node)
    replica = quiet.replica(1, "t")
    quiet.until(lambda: replica.leading is not None and replica.leading.isr == (1,))
    quiet.write("t", b"two", acks=1)
    quiet.run(1000)
    assert replica.high_watermark == 1
    quiet.start(2)
    quiet.until(lambda: replica.high_watermark == 2)


# --- R5: lives of brokers ---------------------------------------------------------------------------------------------


def as_follower(quiet: Quiet, epoch: int, offset: int) -> int:
    """What a broker 3 of this life would fetch; the error."""
    body = quiet.fetch_body(
        "t",
        offset,
        epoch=quiet.partition("t").leader_epoch,
        replica_state={"replica_id": 3, "replica_epoch": epoch},
    )
    return int(quiet.call(1, ApiKey.FETCH, 16, body, as_broker=3).responses[0].partitions[0].error_code)


def test_r5_an_earlier_life_joins_no_isr() -> None:
    quiet = three()
    old = quiet.ensemble.image.brokers[3].epoch
    assert quiet.members[1].broker.lifecycle.controller_id == 2
    quiet.stop(3)
    quiet.until(lambda: quiet.ensemble.image.brokers[3].fenced)
    # It lives again, but nothing of it reaches the leader: only what an earlier life of it had sent.
    quiet.cut(1, 3)
    quiet.start(3)
    quiet.until(lambda: quiet.members[3].joined)
    quiet.until(lambda: quiet.members[1].broker.image.is_live(3))
    for _ in range(3):
        assert as_follower(quiet, old, 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        quiet.run(1500)
        assert 3 not in quiet.partition("t").isr
    # The same from the present one counts.
    assert as_follower(quiet, quiet.ensemble.image.brokers[3].epoch, 1) == 0
    quiet.until(lambda: 3 in quiet.partition("t").isr, 2500)


def test_r5_a_broker_that_is_fenced_or_stops_joins_no_isr() -> None:
    quiet = three()
    epoch = quiet.ensemble.image.brokers[3].epoch
    quiet.stop(3)
    quiet.until(lambda: not quiet.members[1].broker.image.is_live(3))
    quiet.until(lambda: quiet.replica(1, "t").leader_epoch == quiet.partition("t").leader_epoch)
    for _ in range(3):
        assert as_follower(quiet, epoch, 1) == 0
        quiet.run(1500)
        assert 3 not in quiet.partition("t").isr


# --- R8: too few in sync ----------------------------------------------------------------------------------------------


def test_r8_before_the_append_nothing_is_written() -> None:
    quiet = three(min_insync_replicas="3")
    quiet.kill(3)
    quiet.until(
        lambda: quiet.replica(1, "t").leading is not None and len(quiet.replica(1, "t").leading.isr) == 2
    )
    rows = quiet.produce(1, "t", b"two")
    quiet.until(lambda: bool(rows))
    assert rows[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert quiet.replica(1, "t").log.next_offset == 1


def test_r8_after_the_append_the_client_hears_that_it_may_count_later() -> None:
    quiet = three(min_insync_replicas="3")
    quiet.cut(1, 3)
    quiet.run(700)
    rows = quiet.produce(1, "t", b"two", timeout_ms=2900)
    quiet.until(lambda: bool(rows))
    assert rows[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert quiet.replica(1, "t").log.next_offset == 2 and quiet.replica(1, "t").high_watermark == 1
    quiet.mend()
    quiet.until(lambda: quiet.replica(1, "t").high_watermark == 2)


# --- R10: what is deleted is named by its id ----------------------------------------------------------------------


def test_r10_a_late_deletion_does_not_reach_a_topic_of_the_same_name() -> None:
    quiet = three()
    old = quiet.image_topic("t").topic_id
    quiet.stop(3)
    quiet.call(1, ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": "t", "topic_id": None}], "timeout": 1000})
    quiet.until(lambda: "t" not in quiet.ensemble.image.topics)
    quiet.create("t", (1, 2, 3), min_insync_replicas="2")
    quiet.write("t", b"new")
    # What broker 3 has under that name is of a topic that is gone.
    quiet.start(3)
    quiet.until(lambda: quiet.members[3].joined)
    quiet.until(lambda: quiet.all_in_sync("t"))
    quiet.until(lambda: quiet.replica(3, "t").high_watermark == 1)
    assert quiet.values(quiet.fetch(3, "t", 0)) == [b"new"]
    for node in (1, 3):
        broker = quiet.members[node].broker
        replica = quiet.replica(node, "t")
        broker.committed([r.TopicRemoved(old)], quiet.world.now_ms)
        quiet.members[node]._turn()
        assert quiet.replica(node, "t") is replica and not replica.gone
    quiet.run(2000)
    assert quiet.values(quiet.fetch(3, "t", 0)) == [b"new"]


# --- and nobody stays outside -----------------------------------------------------------------------------------------


def test_a_leader_alone_asks_again_for_who_was_refused_once() -> None:
    """A follower says no more where it stands until there is something new: the leader remembers, and looks from time to time."""
    quiet = Quiet(2)
    quiet.create("t", (1, 2))
    quiet.write("t", b"one")
    quiet.stop(2)
    quiet.until(lambda: quiet.members[1].broker.controller_driver.is_active)
    quiet.cut(1, 2)
    quiet.start(2)
    quiet.until(lambda: quiet.members[2].joined and quiet.members[1].broker.image.is_live(2))
    leading = quiet.replica(1, "t").leading
    assert leading is not None and leading.isr == (1,)
    epoch = quiet.ensemble.image.brokers[2].epoch
    leading.followers[2].fetched(1, 1, epoch, quiet.world.now_ms)
    quiet.until(lambda: 2 in quiet.partition("t").isr, 5000)
