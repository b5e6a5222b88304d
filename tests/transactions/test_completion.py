"""Markers: who is owed them, until when, and what comes after."""

import pytest

from ottla.model.errors import ErrorCode
from ottla.transactions.formats import Place, State
from ottla.transactions.host import Marker, MarkerRequest
from tests.transactions.conftest import OFFSETS, A, B, World

COMMITS = pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
PASSING = [
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED,
]  # fmt: skip


def ended(world: World, commit: bool = True, *places: Place, version: int = 5) -> None:
    pair = world.producer()
    world.add(pair, *(place for place in places or (A, B) if place != OFFSETS), version=3)
    if OFFSETS in places:
        world.add_offsets(pair)
    assert world.end(pair, commit, version=version).error is ErrorCode.NONE


@COMMITS
@pytest.mark.parametrize("version", [4, 5])
def test_each_leader_is_told_of_its_partitions(world: World, commit: bool, version: int) -> None:
    ended(world, commit, A, B, OFFSETS, version=version)
    marker = Marker(1001, int(version == 5), commit, 4, 2 if version == 5 else 0)
    assert world.sent == [MarkerRequest(1, "t", marker, (OFFSETS, A)), MarkerRequest(2, "t", marker, (B,))]
    assert world.state() is (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT)
    world.shard.markers_answered(world.sent[1], {B: ErrorCode.NONE})
    assert world.shard.describe("t")["topics"] == [
        {"topic": "__consumer_offsets", "partitions": [7]},
        {"topic": "a", "partitions": [0]},
    ]
    assert world.state() in (State.PREPARE_COMMIT, State.PREPARE_ABORT)
    world.shard.markers_answered(world.sent[0], {OFFSETS: ErrorCode.NONE, A: ErrorCode.NONE})
    entry = world.entry()
    assert entry.state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    assert not entry.partitions and not world.shard.completions.pending


@pytest.mark.parametrize("code", PASSING)
def test_what_may_pass_is_tried_again(world: World, code: ErrorCode) -> None:
    ended(world)
    world.mark({B: code})
    assert not world.sent
    world.advance(100)
    (again,) = world.sent
    assert again.partitions == (B,)
    world.mark()
    assert world.state() is State.COMPLETE_COMMIT


def test_a_broker_that_does_not_answer_is_told_again(world: World) -> None:
    ended(world, True, A)
    (owed,) = world.sent
    world.sent.clear()
    world.shard.markers_answered(owed, {})
    world.advance(100)
    assert world.sent == [owed]
    world.mark()
    assert world.state() is State.COMPLETE_COMMIT


def test_attempts_become_rarer(world: World) -> None:
    ended(world, True, A)
    for _ in range(12):
        world.mark({A: ErrorCode.NOT_LEADER_OR_FOLLOWER})
        world.advance(500 if _ < 5 else 1_010)
        assert world.sent
    world.mark({A: ErrorCode.NOT_LEADER_OR_FOLLOWER})
    world.advance(900)
    assert not world.sent


def test_who_leads_now_is_told(world: World) -> None:
    ended(world, True, A)
    world.leaders[A] = 3
    world.mark({A: ErrorCode.NOT_LEADER_OR_FOLLOWER})
    world.coordinator_epoch = 6
    world.advance(100)
    # A leader that leads on in its next epoch is still the coordinator, and says so.
    assert (world.sent[0].node_id, world.sent[0].marker.coordinator_epoch) == (3, 6)


def test_a_partition_without_a_leader_is_waited_for(world: World) -> None:
    world.leaders[B] = -1
    ended(world)
    assert [owed.partitions for owed in world.sent] == [(A,)]
    world.mark()
    world.advance(5_000)
    assert not world.sent and world.state() is State.PREPARE_COMMIT
    world.leaders[B] = 1
    world.advance(1_100)
    assert [owed.partitions for owed in world.sent] == [(B,)]
    world.mark()
    assert world.state() is State.COMPLETE_COMMIT


@pytest.mark.parametrize("code", [ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION])
def test_what_cannot_have_a_marker_needs_none(world: World, code: ErrorCode) -> None:
    ended(world)
    world.mark({B: code})
    assert world.state() is State.COMPLETE_COMMIT


def test_a_deleted_topic_needs_no_marker(world: World) -> None:
    ended(world)
    del world.leaders[B]
    world.mark({B: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    world.advance(100)
    assert world.state() is State.COMPLETE_COMMIT


def test_a_transaction_of_deleted_topics_alone_completes_by_itself(world: World) -> None:
    pair = world.producer()
    world.add(pair, A, B)
    del world.leaders[A], world.leaders[B]
    assert world.end(pair, True).error is ErrorCode.NONE
    assert world.state() is State.COMPLETE_COMMIT and not world.sent


def test_an_answer_is_taken_once_and_only_for_its_own(world: World) -> None:
    """With version 1 the next transaction's markers look the same: an answer that comes late must not count for them."""
    pair = world.producer()
    world.add(pair, A)
    world.end(pair, True, version=4)
    (first,) = world.mark()
    world.add(pair, A)
    world.end(pair, True, version=4)
    world.shard.markers_answered(first, {A: ErrorCode.NONE})
    assert world.state() is State.PREPARE_COMMIT
    world.mark()
    assert world.state() is State.COMPLETE_COMMIT
    world.shard.markers_answered(first, {A: ErrorCode.NONE})


# --- coordinators come and go (R18) ------------------------------------------------------------------------------


@COMMITS
@pytest.mark.parametrize("version", [4, 5])
def test_the_next_coordinator_goes_on(world: World, commit: bool, version: int) -> None:
    ended(world, commit, version=version)
    # One marker was written; the new coordinator cannot know, and tells both.
    world.shard.markers_answered(world.sent[0], {A: ErrorCode.NONE})
    before = world.sent[0].marker
    world.sent.clear()
    world.move()
    assert {place for owed in world.sent for place in owed.partitions} == {A, B}
    assert {owed.marker for owed in world.sent} == {before._replace(coordinator_epoch=5)}
    world.mark()
    assert world.state() is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)


def test_it_goes_on_when_what_it_found_counts(world: World) -> None:
    ended(world)
    world.sent.clear()
    world.end_role()
    world.counts_at_once, world.counted = False, 0
    world.begin()
    assert not world.sent and world.init().is_answered is False
    world.count()
    assert world.sent


def test_who_is_not_the_coordinator_any_more_sends_nothing(world: World) -> None:
    ended(world)
    world.mark({A: ErrorCode.NOT_LEADER_OR_FOLLOWER})
    before = world.shard
    world.end_role()
    world.advance(10_000)
    assert not world.sent and not before.completions.pending


def test_a_completion_that_is_lost_is_made_again(world: World) -> None:
    ended(world)
    world.counts_at_once = False
    world.mark()
    assert world.state() is State.COMPLETE_COMMIT
    world.move()
    assert world.state() is State.PREPARE_COMMIT
    world.mark()
    assert world.state() is State.COMPLETE_COMMIT


def test_a_completion_waits_until_it_can_be_written(world: World) -> None:
    ended(world)
    world.is_writable = False
    world.mark()
    world.advance(5_000)
    assert world.state() is State.PREPARE_COMMIT
    world.is_writable = True
    world.advance(1_100)
    assert world.state() is State.COMPLETE_COMMIT and not world.sent


def test_brokers_may_answer_at_once() -> None:
    class Local(World):
        def send_markers(self, owed: object) -> None:
            super().send_markers(owed)  # type: ignore[arg-type]
            self.mark()

    world = Local()
    ended(world)
    assert world.states() == [State.EMPTY, State.ONGOING, State.PREPARE_COMMIT, State.COMPLETE_COMMIT]
