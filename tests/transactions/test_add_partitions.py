"""AddPartitionsToTxn and AddOffsetsToTxn: what begins a transaction, what belongs to it, and who may say so."""

import pytest

from ottla.model.errors import ErrorCode
from ottla.transactions.formats import EPOCH_MAX, Entry, State
from tests.transactions.conftest import OFFSETS, WALL_MS, A, B, World

ALL = pytest.mark.parametrize("version", range(6))


@ALL
def test_the_first_partition_begins_a_transaction(world: World, version: int) -> None:
    pair = world.producer()
    world.advance(500)
    heard = world.add(pair, A, version=version)
    assert heard.partitions == {A: ErrorCode.NONE}
    entry = world.entry()
    assert (entry.state, entry.partitions) == (State.ONGOING, {A})
    assert (entry.started_ms, entry.updated_ms) == (WALL_MS + 1500, WALL_MS + 1500)
    # From version 4 on it is a leader that asks, for a client of KIP-890.
    assert entry.client_version == (2 if version >= 4 else 0)


def test_more_are_added_to_the_same(world: World) -> None:
    pair = world.producer()
    world.add(pair, A)
    world.advance(500)
    assert world.add(pair, A, B).partitions == {A: ErrorCode.NONE, B: ErrorCode.NONE}
    entry = world.entry()
    assert entry.partitions == {A, B}
    assert (entry.started_ms, entry.updated_ms) == (WALL_MS + 1000, WALL_MS + 1500)


def test_what_is_known_is_not_written_again_and_its_answer_waits_all_the_same(world: World) -> None:
    pair = world.producer()
    world.counts_at_once = False
    first = world.add(pair, A, B)
    written = len(world.log)
    again = world.add(pair, B)
    assert len(world.log) == written
    assert not first.is_answered and not again.is_answered
    world.count()
    assert first.error is again.error is ErrorCode.NONE


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(("adds", "ends"), [(3, 4), (5, 5)], ids=["v1", "v2"])
def test_the_next_one_begins_with_nothing(world: World, commit: bool, adds: int, ends: int) -> None:
    pair = world.producer()
    world.add(pair, A, version=adds)
    world.end(pair, commit, version=ends)
    world.mark()
    world.advance(500)
    _id, epoch = world.entry().producer_id, world.entry().producer_epoch
    assert world.add((1001, epoch), B, version=adds).error is ErrorCode.NONE
    assert (world.state(), world.entry().partitions) == (State.ONGOING, {B})
    assert world.entry().started_ms == WALL_MS + 1500


# --- errors, in their order --------------------------------------------------------------------------------------


@ALL
def test_errors_are_the_transactions_and_each_partitions(world: World, version: int) -> None:
    pair = world.producer()
    written = len(world.log)
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH

    def heard(producer: tuple[int, int], transactional_id: str = "t") -> ErrorCode:
        answer = world.add(producer, A, B, transactional_id=transactional_id, version=version)
        assert answer.partitions == {A: answer.error, B: answer.error}
        return answer.error

    assert heard(pair, "") is ErrorCode.INVALID_REQUEST
    assert heard(pair, "nobody") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert heard((9, 7)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert heard((1001, 7)) is fenced
    assert heard((1001, -1)) is fenced
    assert heard((-1, -1)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert len(world.log) == written and world.state() is State.EMPTY


@ALL
def test_one_partition_that_does_not_exist_and_none_is_added(world: World, version: int) -> None:
    pair = world.producer()
    nowhere = ("a", 99)
    heard = world.add(pair, A, nowhere, version=version)
    assert heard.partitions == {
        A: ErrorCode.OPERATION_NOT_ATTEMPTED,
        nowhere: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert world.state() is State.EMPTY


def test_a_partition_without_a_leader_exists(world: World) -> None:
    pair = world.producer()
    world.leaders[A] = -1
    assert world.add(pair, A).error is ErrorCode.NONE


@pytest.mark.parametrize("commit", [True, False])
def test_while_an_end_is_carried_out_producers_wait(world: World, commit: bool) -> None:
    pair = world.producer()
    world.add(pair, A)
    world.end(pair, commit, version=4)
    assert world.add(pair, B).error is ErrorCode.CONCURRENT_TRANSACTIONS
    world.mark()
    assert world.add(pair, B).error is ErrorCode.NONE


@pytest.mark.parametrize("commit", [True, False])
def test_what_comes_late_from_before_the_end_stays_out(world: World, commit: bool) -> None:
    pair = world.producer()
    world.add(pair, A, version=5)
    following = world.end(pair, commit).producer
    assert world.add(pair, B, version=5).error is ErrorCode.PRODUCER_FENCED
    assert world.add(following, B, version=5).error is ErrorCode.CONCURRENT_TRANSACTIONS
    world.mark()
    assert world.add(pair, B, version=5).error is ErrorCode.PRODUCER_FENCED
    assert world.add(following, B, version=5).error is ErrorCode.NONE


def test_a_producer_with_a_new_id_waits_like_any_other(world: World) -> None:
    pair = (50, EPOCH_MAX - 1)
    world.put(Entry(*pair, 60_000, State.ONGOING, WALL_MS, WALL_MS, frozenset({A}), 50, client_version=2))
    following = world.end(pair, True).producer
    assert following == (1001, 0)
    assert world.add(following, B, version=5).error is ErrorCode.CONCURRENT_TRANSACTIONS
    world.mark()
    assert world.add(following, B, version=5).error is ErrorCode.NONE


def test_what_is_too_long_to_be_ended_is_not_begun(world: World) -> None:
    pair = world.producer()
    places = {("topic-of-some-length", number): 1 for number in range(60)}
    world.leaders.update(places)
    world.record_bytes_max = 300
    refused = world.add(pair, *places)
    assert refused.error is ErrorCode.UNKNOWN_SERVER_ERROR and world.state() is State.EMPTY
    # As many as fit: the longest record that its end can need fits too.
    for count in range(59, 0, -1):
        if world.add(pair, *list(places)[:count]).error is ErrorCode.NONE:
            break
    assert count > 10
    world.shard.transactions["t"].entry = world.entry()._replace(producer_epoch=EPOCH_MAX - 1)
    assert world.end((1001, EPOCH_MAX - 1), True).error is ErrorCode.NONE
    assert len(world.log[-1][0]) + len(world.log[-1][1] or b"") <= world.record_bytes_max


# --- verifying (KIP-890) -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5])
def test_a_leader_asks_whether_a_partition_was_added(world: World, version: int) -> None:
    pair = world.producer()
    world.add(pair, A)
    written = len(world.log)
    heard = world.add(pair, A, B, version=version, verify=True)
    absent = ErrorCode.TRANSACTION_ABORTABLE if version >= 5 else ErrorCode.INVALID_TXN_STATE
    assert heard.partitions == {A: ErrorCode.NONE, B: absent}
    assert world.add((1001, 9), A, version=version, verify=True).error is ErrorCode.PRODUCER_FENCED
    assert world.add((9, 0), A, version=version, verify=True).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert len(world.log) == written


@pytest.mark.parametrize("version", [4, 5])
def test_nothing_is_verified_at_the_end_of_a_transaction_or_after(world: World, version: int) -> None:
    pair = world.producer()
    world.add(pair, A)
    world.end(pair, True, version=4)
    verified = world.add(pair, A, version=version, verify=True)
    assert verified.partitions == {A: ErrorCode.CONCURRENT_TRANSACTIONS}
    world.mark()
    assert world.add(pair, A, version=version, verify=True).partitions[A] is not ErrorCode.NONE
    assert world.state() is State.COMPLETE_COMMIT


def test_a_verification_counts_what_counts(world: World) -> None:
    pair = world.producer()
    world.counts_at_once = False
    world.add(pair, A, version=5)
    verified = world.add(pair, A, version=5, verify=True)
    assert not verified.is_answered
    world.count()
    assert verified.partitions == {A: ErrorCode.NONE}


# --- offsets -----------------------------------------------------------------------------------------------------


def test_the_partition_of_a_groups_offsets_is_one_of_the_transaction(world: World) -> None:
    pair = world.producer()
    assert world.add_offsets(pair).error is ErrorCode.NONE
    assert (world.state(), world.entry().partitions) == (State.ONGOING, {OFFSETS})
    world.add(pair, A)
    world.end(pair, True, version=4)
    assert {place for owed in world.sent for place in owed.partitions} == {A, OFFSETS}


@pytest.mark.parametrize("version", range(5))
def test_errors_of_add_offsets(world: World, version: int) -> None:
    world.producer()
    expected = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert world.add_offsets((1001, 9), version=version).error is expected
    assert world.add_offsets((9, 0), version=version).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    del world.leaders[OFFSETS]
    assert world.add_offsets((1001, 0), version=version).error is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_while_a_producer_id_is_waited_for_nothing_is_added(world: World) -> None:
    pair = (50, EPOCH_MAX - 1)
    world.put(Entry(*pair, 60_000, State.ONGOING, WALL_MS, WALL_MS, frozenset({A}), 50, client_version=2))
    world.gives_ids = False
    ended = world.end(pair, True)
    assert world.add(pair, B, version=5).error is ErrorCode.CONCURRENT_TRANSACTIONS
    world.waiting_for_ids.pop()(5)
    assert ended.producer == (5, 0)
    assert world.entry().partitions == {A}
