"""EndTxn by version, state and epoch; time-outs; and what a producer hears that was fenced by one."""

import pytest

from ottla.model.errors import ErrorCode
from ottla.transactions.formats import EPOCH_MAX, Entry, Place, State
from tests.transactions.conftest import WALL_MS, A, B, World

OLD = pytest.mark.parametrize("version", range(5))
COMMITS = pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])

#: By state and what is asked for.
AS_V1 = {
    (State.EMPTY, True): ErrorCode.INVALID_TXN_STATE,
    (State.EMPTY, False): ErrorCode.INVALID_TXN_STATE,
    (State.ONGOING, True): ErrorCode.NONE,
    (State.ONGOING, False): ErrorCode.NONE,
    (State.PREPARE_COMMIT, True): ErrorCode.CONCURRENT_TRANSACTIONS,
    (State.PREPARE_COMMIT, False): ErrorCode.INVALID_TXN_STATE,
    (State.PREPARE_ABORT, True): ErrorCode.INVALID_TXN_STATE,
    (State.PREPARE_ABORT, False): ErrorCode.CONCURRENT_TRANSACTIONS,
    (State.COMPLETE_COMMIT, True): ErrorCode.NONE,
    (State.COMPLETE_COMMIT, False): ErrorCode.INVALID_TXN_STATE,
    (State.COMPLETE_ABORT, True): ErrorCode.INVALID_TXN_STATE,
    (State.COMPLETE_ABORT, False): ErrorCode.NONE,
}
#: With the present epoch: the error, and whether it is an end of its own.
AS_V2 = {
    (State.EMPTY, True): (ErrorCode.INVALID_TXN_STATE, False),
    (State.EMPTY, False): (ErrorCode.NONE, True),
    (State.ONGOING, True): (ErrorCode.NONE, True),
    (State.ONGOING, False): (ErrorCode.NONE, True),
    (State.PREPARE_COMMIT, True): (ErrorCode.CONCURRENT_TRANSACTIONS, False),
    (State.PREPARE_COMMIT, False): (ErrorCode.CONCURRENT_TRANSACTIONS, False),
    (State.PREPARE_ABORT, True): (ErrorCode.CONCURRENT_TRANSACTIONS, False),
    (State.PREPARE_ABORT, False): (ErrorCode.CONCURRENT_TRANSACTIONS, False),
    (State.COMPLETE_COMMIT, True): (ErrorCode.INVALID_TXN_STATE, False),
    (State.COMPLETE_COMMIT, False): (ErrorCode.NONE, True),
    (State.COMPLETE_ABORT, True): (ErrorCode.INVALID_TXN_STATE, False),
    (State.COMPLETE_ABORT, False): (ErrorCode.NONE, True),
}
#: With the epoch before.
AGAIN_V2 = {
    (State.EMPTY, True): ErrorCode.PRODUCER_FENCED,
    (State.EMPTY, False): ErrorCode.PRODUCER_FENCED,
    (State.ONGOING, True): ErrorCode.PRODUCER_FENCED,
    (State.ONGOING, False): ErrorCode.PRODUCER_FENCED,
    (State.PREPARE_COMMIT, True): ErrorCode.CONCURRENT_TRANSACTIONS,
    (State.PREPARE_COMMIT, False): ErrorCode.INVALID_TXN_STATE,
    (State.PREPARE_ABORT, True): ErrorCode.PRODUCER_FENCED,
    (State.PREPARE_ABORT, False): ErrorCode.CONCURRENT_TRANSACTIONS,
    (State.COMPLETE_COMMIT, True): ErrorCode.NONE,
    (State.COMPLETE_COMMIT, False): ErrorCode.INVALID_TXN_STATE,
    (State.COMPLETE_ABORT, True): ErrorCode.PRODUCER_FENCED,
    (State.COMPLETE_ABORT, False): ErrorCode.NONE,
}


def put(world: World, state: State, epoch: int = 5, version: int = 2) -> None:
    has = (
        frozenset({A})
        if state in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)
        else frozenset[Place]()
    )
    started_ms = -1 if state is State.EMPTY else WALL_MS
    world.put(Entry(50, epoch, 60_000, state, WALL_MS, started_ms, has, 50, client_version=version))


def names(value: object) -> str:
    return value.title if isinstance(value, State) else ("commit" if value else "abort")


@pytest.mark.parametrize(("state", "commit"), AS_V1, ids=names)
@OLD
def test_version_1(world: World, version: int, state: State, commit: bool) -> None:
    put(world, state, version=0)
    written = len(world.log)
    heard = world.end((50, 5), commit, version=version)
    assert (heard.error, heard.producer) == (AS_V1[state, commit], (-1, -1))
    assert len(world.log) - written == (state is State.ONGOING)
    if state is State.ONGOING:
        assert world.state() is (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT)
        assert (world.entry().producer_epoch, world.entry().client_version) == (5, 0)


@pytest.mark.parametrize(("state", "commit"), AS_V2, ids=names)
def test_version_2_with_the_present_epoch(world: World, state: State, commit: bool) -> None:
    put(world, state)
    written = len(world.log)
    code, is_an_end = AS_V2[state, commit]
    heard = world.end((50, 5), commit)
    assert heard.error is code
    assert heard.producer == ((50, 6) if is_an_end else (-1, -1))
    if not is_an_end:
        assert len(world.log) == written
        return
    assert world.states()[1] is (State.PREPARE_COMMIT if commit else State.PREPARE_ABORT)
    world.mark()
    assert world.state() is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    assert (world.entry().producer_epoch, world.entry().client_version) == (6, 2)
    assert world.entry().started_ms >= WALL_MS


@pytest.mark.parametrize(("state", "commit"), AGAIN_V2, ids=names)
def test_version_2_with_the_epoch_before(world: World, state: State, commit: bool) -> None:
    put(world, state)
    written = len(world.log)
    heard = world.end((50, 4), commit)
    code = AGAIN_V2[state, commit]
    assert heard.error is code
    # A repetition hears what the first one should have.
    assert heard.producer == ((50, 5) if code is ErrorCode.NONE else (-1, -1))
    assert len(world.log) == written


@pytest.mark.parametrize("state", [State.COMPLETE_COMMIT, State.COMPLETE_ABORT, State.PREPARE_COMMIT])
@COMMITS
def test_an_end_of_version_1_has_no_epoch_before(world: World, state: State, commit: bool) -> None:
    """Its epoch was raised by somebody new: who had the one before is fenced, not repeating."""
    put(world, state, version=0)
    assert world.end((50, 4), commit).error is ErrorCode.PRODUCER_FENCED


@COMMITS
def test_an_end_of_version_1_is_waited_for_by_a_client_that_has_learnt_more(
    world: World, commit: bool
) -> None:
    put(world, State.PREPARE_COMMIT, version=0)
    expected = ErrorCode.CONCURRENT_TRANSACTIONS if commit else ErrorCode.INVALID_TXN_STATE
    assert world.end((50, 5), commit, version=5).error is expected


@pytest.mark.parametrize("version", range(6))
def test_errors_in_their_order(world: World, version: int) -> None:
    put(world, State.ONGOING)
    fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
    expected = {
        ("", 50, 5): ErrorCode.INVALID_REQUEST,
        ("nobody", 50, 5): ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ("t", 9, 4): ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ("t", -1, -1): ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ("t", 50, 4): fenced,
        ("t", 50, 6): fenced,
        ("t", 50, -1): fenced,
    }
    for (transactional_id, *pair), code in expected.items():
        heard = world.end((pair[0], pair[1]), True, transactional_id=transactional_id, version=version)
        assert (heard.error, heard.producer) == (code, (-1, -1))
    assert world.state() is State.ONGOING


@pytest.mark.parametrize("version", [4, 5])
@COMMITS
def test_the_answer_and_the_markers_wait_for_the_record(world: World, version: int, commit: bool) -> None:
    put(world, State.ONGOING)
    world.counts_at_once = False
    heard = world.end((50, 5), commit, version=version)
    assert not heard.is_answered and not world.sent
    world.count()
    assert heard.error is ErrorCode.NONE
    (owed,) = world.sent
    assert owed.marker.commit is commit


@pytest.mark.parametrize("version", [4, 5])
def test_an_end_that_never_counts_is_none(world: World, version: int) -> None:
    put(world, State.ONGOING)
    world.counts_at_once = False
    heard = world.end((50, 5), True, version=version)
    world.move()
    assert heard.error is ErrorCode.NOT_COORDINATOR
    assert world.state() is State.ONGOING and not world.sent
    again = world.end((50, 5), False, version=version)
    world.count()
    assert again.error is ErrorCode.NONE and not world.sent[0].marker.commit


# --- epochs are used up ------------------------------------------------------------------------------------------


@COMMITS
def test_a_producer_goes_on_with_another_id(world: World, commit: bool) -> None:
    pair = (50, EPOCH_MAX - 1)
    put(world, State.ONGOING, EPOCH_MAX - 1)
    assert world.end(pair, commit).producer == (1001, 0)
    assert world.end(pair, commit).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert world.end((1001, 0), False).error is ErrorCode.CONCURRENT_TRANSACTIONS
    (owed,) = world.mark()
    assert (owed.marker.producer_id, owed.marker.producer_epoch) == (50, EPOCH_MAX)
    entry = world.entry()
    assert (entry.producer_id, entry.producer_epoch) == (1001, 0)
    assert (entry.previous_producer_id, entry.next_producer_id) == (50, -1)
    # It was not answered, perhaps, and asks again, perhaps somebody else.
    world.move()
    again = world.end(pair, commit)
    assert (again.error, again.producer) == (ErrorCode.NONE, (1001, 0))
    expected = ErrorCode.INVALID_TXN_STATE if commit else ErrorCode.PRODUCER_FENCED
    assert world.end(pair, not commit).error is expected
    assert world.next_producer_id == 1001


def test_version_1_has_no_epochs_to_use_up(world: World) -> None:
    put(world, State.ONGOING, EPOCH_MAX - 1, version=0)
    assert world.end((50, EPOCH_MAX - 1), True, version=4).error is ErrorCode.NONE
    world.mark()
    assert (world.entry().producer_id, world.entry().producer_epoch) == (50, EPOCH_MAX - 1)


def test_who_cannot_have_an_id_may_end_later(world: World) -> None:
    put(world, State.ONGOING, EPOCH_MAX - 1)
    world.gives_ids = False
    heard = world.end((50, EPOCH_MAX - 1), True)
    assert world.end((50, EPOCH_MAX - 1), True).error is ErrorCode.CONCURRENT_TRANSACTIONS
    world.waiting_for_ids.pop()(None)
    assert heard.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and world.state() is State.ONGOING
    world.gives_ids = True
    assert world.end((50, EPOCH_MAX - 1), True).producer == (1001, 0)


# --- time-outs (R19) ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("adds", "ends"), [(3, 4), (5, 5)], ids=["v1", "v2"])
def test_what_takes_too_long_is_aborted(world: World, adds: int, ends: int) -> None:
    pair = world.producer()
    world.add(pair, A, version=adds)
    world.advance(59_000)
    world.add(pair, B, version=adds)
    assert world.state() is State.ONGOING
    world.advance(12_000)
    assert world.state() is State.PREPARE_ABORT
    assert {place for owed in world.sent for place in owed.partitions} == {A, B}
    assert world.sent[0].marker[:3] == (1001, 1, False)
    assert world.end(pair, True, version=ends).error is ErrorCode.PRODUCER_FENCED
    world.mark()
    # Nothing that it did is committed; who knows version 2 may go on.
    commit = world.end(pair, True, version=ends).error
    abort = world.end(pair, False, version=ends)
    if ends == 5:
        assert commit is ErrorCode.PRODUCER_FENCED
        assert (abort.error, abort.producer) == (ErrorCode.NONE, (1001, 1))
    else:
        assert commit is abort.error is ErrorCode.PRODUCER_FENCED
    assert world.state() is State.COMPLETE_ABORT


def test_what_is_ended_in_time_is_left_alone(world: World) -> None:
    pair = world.producer()
    world.add(pair, A)
    world.advance(55_000)
    world.end(pair, True, version=4)
    world.advance(20_000)
    assert world.state() is State.PREPARE_COMMIT
    world.mark()
    world.advance(100_000)
    world.add(pair, A)
    world.advance(50_000)
    assert world.state() is State.ONGOING


def test_the_next_coordinator_counts_from_the_beginning(world: World) -> None:
    pair = world.producer()
    world.add(pair, A)
    world.advance(50_000)
    world.move()
    world.advance(21_000)
    assert world.state() is State.PREPARE_ABORT


def test_a_clock_that_is_set_ends_no_transaction(world: World) -> None:
    pair = world.producer()
    world.add(pair, A)
    world.wall_ahead_ms = 10**9
    world.advance(45_000)
    assert world.state() is State.ONGOING
    world.wall_ahead_ms = -(10**9)
    world.move()
    # A date in the future gives no more time than there was.
    world.advance(71_000)
    assert world.state() is State.PREPARE_ABORT


def test_how_often_is_looked() -> None:
    world = World(transaction_abort_timed_out_transaction_cleanup_interval_ms="500")
    world.add(world.producer(), A)
    world.advance(59_000)
    assert world.state() is State.ONGOING
    world.advance(1_600)
    assert world.state() is State.PREPARE_ABORT


def test_what_kafka_lets_take_for_ever_does(world: World) -> None:
    entry = Entry(50, 5, 2**31 - 1, State.ONGOING, WALL_MS, WALL_MS, frozenset({A}), 50)
    world.put(entry)
    world.advance(2**32)
    assert world.entry() == entry


def test_nothing_is_aborted_that_could_not_be_written(world: World) -> None:
    world.add(world.producer(), A)
    world.is_writable = False
    world.advance(100_000)
    assert world.state() is State.ONGOING
    world.is_writable = True
    world.advance(10_100)
    assert world.state() is State.PREPARE_ABORT


def test_a_time_out_with_used_up_epochs_waits_for_an_id(world: World) -> None:
    put(world, State.ONGOING, EPOCH_MAX - 1)
    world.gives_ids = False
    world.advance(100_000)
    assert len(world.waiting_for_ids) == 1
    world.waiting_for_ids.pop()(None)
    assert world.state() is State.ONGOING
    world.advance(11_000)
    world.waiting_for_ids.pop()(7)
    assert (world.state(), world.entry().next_producer_id) == (State.PREPARE_ABORT, 7)
    world.mark()
    assert world.end((50, EPOCH_MAX - 1), False).producer == (7, 0)
