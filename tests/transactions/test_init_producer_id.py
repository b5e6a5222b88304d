"""InitProducerId: new and known ids, epochs, fencing, and going on after an error."""

import pytest

from ottla.model.errors import ErrorCode
from ottla.transactions.formats import EPOCH_MAX, Entry, State
from tests.transactions.conftest import WALL_MS, A, World

#: AddPartitionsToTxn and EndTxn of a client with transactions of version 1, and of version 2.
VERSIONS = pytest.mark.parametrize(("adds", "ends"), [(3, 4), (5, 5)], ids=["v1", "v2"])


def test_a_new_id_gets_a_producer_id_of_its_own(world: World) -> None:
    heard = world.init()
    assert (heard.error, heard.producer) == (ErrorCode.NONE, (1001, 0))
    assert world.entry() == Entry(1001, 0, 60_000, State.EMPTY, WALL_MS + 1000, previous_producer_id=1001)
    assert world.init("other").producer == (1002, 0)


def test_who_comes_again_has_the_same_id_and_the_next_epoch(world: World) -> None:
    assert [world.init().producer for _ in range(3)] == [(1001, 0), (1001, 1), (1001, 2)]
    world.move()
    assert world.init(timeout_ms=5).producer == (1001, 3)
    assert world.entry().timeout_ms == 5


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"pair": (7, -1)}, ErrorCode.INVALID_REQUEST),
        ({"pair": (-1, 7)}, ErrorCode.INVALID_REQUEST),
        ({"timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"timeout_ms": -1}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"two_phase": True}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ({"keep_prepared": True}, ErrorCode.UNSUPPORTED_VERSION),
        # The order of the checks.
        ({"transactional_id": "", "two_phase": True, "timeout_ms": 0}, ErrorCode.INVALID_REQUEST),
        (
            {"two_phase": True, "keep_prepared": True, "timeout_ms": 0},
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        ({"keep_prepared": True, "timeout_ms": 0}, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_what_is_refused_leaves_nothing_behind(
    world: World, changes: dict[str, object], code: ErrorCode
) -> None:
    heard = world.init(**changes)  # type: ignore[arg-type]
    assert (heard.error, heard.producer) == (code, (-1, -1))
    assert not world.log and not world.shard.transactions and world.next_producer_id == 1000


def test_the_longest_time_out_is_the_brokers() -> None:
    world = World(transaction_max_timeout_ms="70000")
    assert world.init(timeout_ms=70_000).error is ErrorCode.NONE
    assert world.init(timeout_ms=70_001).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT


# --- a transaction is going on -----------------------------------------------------------------------------------


@VERSIONS
def test_a_transaction_of_the_predecessor_is_aborted_first(world: World, adds: int, ends: int) -> None:
    first = world.producer()
    world.add(first, A, version=adds)
    assert world.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.state() is State.PREPARE_ABORT
    assert world.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    (owed,) = world.mark()
    # In an epoch that nobody has had, so that nothing of the predecessor is taken after it.
    assert (owed.marker.producer_epoch, owed.marker.commit, owed.partitions) == (1, False, (A,))
    assert world.state() is State.COMPLETE_ABORT
    assert world.init().producer == (1001, 2)
    assert world.add(first, A, version=adds).error is ErrorCode.PRODUCER_FENCED
    assert world.end(first, True, version=ends).error is ErrorCode.PRODUCER_FENCED
    assert world.state() is State.EMPTY


def test_the_answer_to_who_has_fenced_waits_for_the_record(world: World) -> None:
    first = world.producer()
    world.add(first, A)
    world.counts_at_once = False
    heard = world.init()
    assert not heard.is_answered and not world.sent
    world.count()
    assert heard.error is ErrorCode.CONCURRENT_TRANSACTIONS and world.sent


@pytest.mark.parametrize("version", range(7))
def test_old_clients_hear_of_fencing_by_another_name(world: World, version: int) -> None:
    first = world.producer()
    world.init()
    expected = ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert world.init(pair=first, version=version).error is expected


# --- going on after an error (KIP-360) ---------------------------------------------------------------------------


def test_who_names_itself_gets_the_next_epoch(world: World) -> None:
    first = world.producer()
    assert world.init(pair=first).producer == (1001, 1)


def test_a_repetition_gets_the_same_answer_even_from_another_coordinator(world: World) -> None:
    first = world.producer()
    assert world.init(pair=first).producer == (1001, 1)
    for _ in range(2):
        assert world.init(pair=first).producer == (1001, 1)
        world.move()
    assert world.init(pair=(1001, 1)).producer == (1001, 2)
    assert world.init(pair=first).error is ErrorCode.PRODUCER_FENCED


def test_whoever_was_passed_by_somebody_new_is_fenced(world: World) -> None:
    first = world.producer()
    second = world.producer()
    for pair in (first, (1001, 5), (9, 0)):
        assert world.init(pair=pair).error is ErrorCode.PRODUCER_FENCED
    assert world.init(pair=second).producer == (1001, 2)


def test_a_fenced_producer_cannot_abort_its_successors_transaction(world: World) -> None:
    first, second = world.producer(), world.producer()
    world.add(second, A)
    assert world.init(pair=first).error is ErrorCode.PRODUCER_FENCED
    assert world.state() is State.ONGOING
    # The present one may, to begin anew.
    assert world.init(pair=second).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.state() is State.PREPARE_ABORT


def test_who_names_an_id_that_was_forgotten_gets_a_new_one(world: World) -> None:
    assert world.init(pair=(77, 3)).producer == (1001, 0)


def test_after_its_time_out_a_producer_may_go_on(world: World) -> None:
    first = world.producer()
    world.add(first, A)
    world.advance(80_000)
    world.mark()
    assert world.init(pair=first).producer == (1001, 1)
    assert world.entry().state is State.EMPTY


@pytest.mark.parametrize("pair", [(1001, 0), (1001, 1)])
def test_nobody_gets_an_epoch_while_an_end_is_carried_out(world: World, pair: tuple[int, int]) -> None:
    world.producer()
    world.add((1001, 0), A, version=5)
    world.end((1001, 0), True)
    assert world.init(pair=pair).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.init(pair=(1001, 7)).error is ErrorCode.PRODUCER_FENCED
    assert world.init().error is ErrorCode.CONCURRENT_TRANSACTIONS


# --- epochs are used up ------------------------------------------------------------------------------------------


def used_up(world: World, state: State = State.EMPTY) -> tuple[int, int]:
    world.put(Entry(50, EPOCH_MAX - 1, 60_000, state, WALL_MS, previous_producer_id=50))
    return 50, EPOCH_MAX - 1


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_with_its_epochs_used_up_an_id_gets_another_producer_id(world: World, state: State) -> None:
    used_up(world, state)
    assert world.init().producer == (1001, 0)
    assert world.init(pair=(50, EPOCH_MAX - 1)).error is ErrorCode.PRODUCER_FENCED


def test_the_repetition_of_that_is_known_too(world: World) -> None:
    last = used_up(world)
    assert world.init(pair=last).producer == (1001, 0)
    for _ in range(2):
        world.move()
        assert world.init(pair=last).producer == (1001, 0)
    assert world.next_producer_id == 1001
    assert world.init(pair=(1001, 0)).producer == (1001, 1)
    assert world.init(pair=last).error is ErrorCode.PRODUCER_FENCED


def test_the_last_epoch_of_all_is_given_to_nobody(world: World) -> None:
    world.put(Entry(50, EPOCH_MAX, 60_000, State.COMPLETE_ABORT, WALL_MS, WALL_MS, previous_producer_id=50))
    assert world.init().producer == (1001, 0)


# --- producer ids that have to be waited for ---------------------------------------------------------------------


def test_meanwhile_others_are_kept_away(world: World) -> None:
    world.gives_ids = False
    heard = world.init()
    assert not heard.is_answered
    assert world.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    (done,) = world.waiting_for_ids
    done(5)
    assert heard.producer == (5, 0)
    assert world.init().producer == (5, 1)


def test_who_cannot_have_one_may_try_again(world: World) -> None:
    world.gives_ids = False
    heard = world.init()
    world.waiting_for_ids.pop()(None)
    assert heard.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and heard.error.retriable
    assert not world.shard.transactions
    world.gives_ids = True
    assert world.init().producer == (1001, 0)


def test_one_that_comes_too_late_changes_nothing(world: World) -> None:
    world.gives_ids = False
    heard = world.init()
    (done,) = world.waiting_for_ids
    world.move()
    assert heard.error is ErrorCode.NOT_COORDINATOR
    done(5)
    assert not world.log and not world.shard.transactions


def test_what_cannot_be_written_is_refused(world: World) -> None:
    world.record_bytes_max = 100
    assert world.init("t" * 100).error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert not world.log


# --- what is told counts -----------------------------------------------------------------------------------------


def test_answers_leave_when_their_records_count(world: World) -> None:
    world.counts_at_once = False
    first, second = world.init(), world.init()
    stale = world.init(pair=(1001, 0))
    assert not (first.is_answered or second.is_answered or stale.is_answered)
    world.count(1)
    assert first.producer == (1001, 0) and not second.is_answered
    world.count()
    assert second.producer == (1001, 1)
    # A refusal that is built on what may be lost would fence somebody for ever.
    assert stale.error is ErrorCode.PRODUCER_FENCED
