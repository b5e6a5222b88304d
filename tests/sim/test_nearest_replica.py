"""Consumers read from a replica in their own rack (KIP-392), below its own high watermark (R9); another
broker returns the leader (KIP-951).
"""

import pytest

from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from testkit.sim.quiet import Quiet

RACKS = {1: {"broker.rack": "a"}, 2: {"broker.rack": "b"}, 3: {"broker.rack": "c"}}
CLASS = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def racks(selector: str = CLASS) -> Quiet:
    quiet = Quiet(3, settings={"replica.selector.class": selector}, own=RACKS)
    quiet.create("t", (1, 2, 3), min_insync_replicas="2")
    quiet.write("t", b"one", b"two")
    quiet.until(lambda: all(quiet.replica(node, "t").high_watermark == 2 for node in (1, 2, 3)))
    return quiet


@pytest.mark.parametrize("selector", [CLASS, "rack-aware"])
def test_a_consumer_is_sent_to_the_replica_in_its_rack(selector: str) -> None:
    quiet = racks(selector)
    row = quiet.fetch(1, "t", 0, rack_id="b", wait_ms=500)
    assert (row.error_code, row.preferred_read_replica, row.records or b"") == (0, 2, b"")
    assert row.high_watermark == 2
    row = quiet.fetch(2, "t", 0, rack_id="b")
    assert (row.error_code, row.preferred_read_replica) == (0, -1)
    assert quiet.values(row) == [b"one", b"two"]


@pytest.mark.parametrize("rack_id", ["a", "elsewhere", ""])
def test_other_consumers_read_from_the_leader(rack_id: str) -> None:
    quiet = racks()
    row = quiet.fetch(1, "t", 0, rack_id=rack_id)
    assert row.preferred_read_replica == -1
    assert quiet.values(row) == [b"one", b"two"]


@pytest.mark.parametrize("selector", ["leader", "org.apache.kafka.common.replica.LeaderSelector"])
def test_nobody_is_sent_away_unless_that_is_wanted(selector: str) -> None:
    row = racks(selector).fetch(1, "t", 0, rack_id="b")
    assert row.preferred_read_replica == -1 and row.records


def test_a_session_is_told_at_once_too() -> None:
    quiet = racks()
    body = quiet.fetch_body("t", 2, wait_ms=2000, rack_id="b") | {"session_epoch": 0}
    answers = quiet.ask(1, ApiKey.FETCH, 16, body)
    took_ms = quiet.until(lambda: bool(answers))
    assert took_ms < 100


def test_nobody_is_sent_to_a_replica_that_lacks_the_offset_or_is_not_in_sync() -> None:
    quiet = racks()
    quiet.cut(1, 3)
    quiet.write("t", b"three", acks=1)
    # It is still in the ISR, but does not have the offset.
    assert quiet.partition("t").isr == (1, 2, 3)
    assert quiet.fetch(1, "t", 3, rack_id="c").preferred_read_replica == -1
    assert quiet.fetch(1, "t", 2, rack_id="c").preferred_read_replica == 3
    quiet.until(lambda: quiet.partition("t").isr == (1, 2) and len(quiet.replica(1, "t").leading.isr) == 2)
    assert quiet.fetch(1, "t", 2, rack_id="c").preferred_read_replica == -1
    quiet.mend()
    quiet.until(lambda: quiet.replica(1, "t").leading.isr == (1, 2, 3))
    assert quiet.fetch(1, "t", 3, rack_id="c").preferred_read_replica == 3


def test_r9_a_follower_serves_below_its_own_high_watermark_only() -> None:
    quiet = Quiet(3, own=RACKS)
    quiet.create("t", (1, 2, 3), min_insync_replicas="2")
    quiet.write("t", b"one")
    quiet.until(lambda: quiet.replica(2, "t").high_watermark == 1)
    # Broker 3 is cut off and still in the ISR: the records of broker 2 are not committed.
    quiet.cut(1, 3)
    rows = quiet.produce(1, "t", b"two")
    quiet.until(lambda: quiet.replica(2, "t").log.next_offset == 2)
    row = quiet.fetch(2, "t", 0)
    assert quiet.values(row) == [b"one"] and row.high_watermark == 1
    row = quiet.fetch(2, "t", 1)
    assert (row.error_code, quiet.values(row)) == (0, [])
    assert not rows


def test_what_a_follower_lacks_yet_resets_no_consumer() -> None:
    quiet = racks()
    quiet.cut(1, 2)
    quiet.write("t", b"three", acks=1)
    assert quiet.fetch(2, "t", 3).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    # Only the leader knows whether an offset exists.
    assert quiet.fetch(1, "t", 4).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("version", [4, 10])
def test_old_consumers_read_from_the_leader_only(version: int) -> None:
    quiet = racks()
    assert quiet.fetch(2, "t", 0, version=version).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert quiet.fetch(2, "t", 0, version=11).error_code == 0


def test_a_consumer_of_a_follower_need_not_wait_for_the_next_fetch() -> None:
    """The leader answers a follower's fetch when the high watermark advances, instead of half a second later."""

    def latency_ms(selector: str) -> int:
        quiet = racks(selector)
        quiet.run(3000)
        answers = quiet.ask(2, ApiKey.FETCH, 16, quiet.fetch_body("t", 2, wait_ms=2500))
        quiet.run(700)
        quiet.write("t", b"three")
        assert not answers or selector != "leader"
        return quiet.until(lambda: bool(answers))

    assert latency_ms("rack-aware") < 50
    assert latency_ms("leader") > 200


# --- KIP-951 ------------------------------------------------------------------------------------------------------


def test_a_fetch_at_the_wrong_broker_hears_who_leads_and_where() -> None:
    quiet = racks()
    quiet.create("u", (1, 3))
    answer = quiet.call(2, ApiKey.FETCH, 16, quiet.fetch_body("u", 0))
    row = answer.responses[0].partitions[0]
    assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (1, 0)
    (node,) = answer.node_endpoints
    assert (node.node_id, node.host, node.port, node.rack) == (1, "b1", 9092, "a")
    # Version 12 has the leader, but no addresses.
    answer = quiet.call(2, ApiKey.FETCH, 12, quiet.fetch_body("u", 0))
    assert answer.responses[0].partitions[0].current_leader.leader_id == 1


def test_an_old_leader_epoch_is_told_the_new_one() -> None:
    quiet = racks()
    quiet.kill(1)
    quiet.until(lambda: quiet.leader("t") == 2 and quiet.replica(2, "t").leading is not None)
    quiet.until(lambda: quiet.replica(3, "t").leader_epoch == quiet.partition("t").leader_epoch)
    for node in (2, 3):
        answer = quiet.call(node, ApiKey.FETCH, 16, quiet.fetch_body("t", 0, epoch=0))
        row = answer.responses[0].partitions[0]
        assert row.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert row.current_leader.leader_id == 2
        assert row.current_leader.leader_epoch == quiet.partition("t").leader_epoch
        assert [each.node_id for each in answer.node_endpoints] == [2]


def test_other_errors_say_nothing_of_leaders() -> None:
    quiet = racks()
    answer = quiet.call(1, ApiKey.FETCH, 16, quiet.fetch_body("t", 9))
    assert answer.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert answer.responses[0].partitions[0].current_leader.leader_id == -1
    assert answer.node_endpoints == ()
