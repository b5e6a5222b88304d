"""A shard as a whole: replay, expiry, what is told of transactions."""

from collections import Counter

import pytest

from ottla.model.errors import ErrorCode
from ottla.transactions import shard
from ottla.transactions.formats import Record, State
from ottla.transactions.shard import STATES, Filter
from tests.transactions.conftest import TIMEOUT_MS, WALL_MS, A, B, World

DAY_MS = 86_400_000


def test_a_state_is_what_the_records_say(world: World) -> None:
    pair = world.producer()
    world.producer("other")
    world.add(pair, A, version=5)
    world.end(pair, True)
    world.mark()
    world.init(pair=(1001, 1))
    before = {name: each.entry for name, each in world.shard.transactions.items()}
    world.move()
    assert {name: each.entry for name, each in world.shard.transactions.items()} == before


def test_a_tombstone_forgets(world: World) -> None:
    pair = world.producer()
    world.add(pair, A)
    world.shard.replay(Record("t", None))
    world.shard.replay(Record("t", None))
    assert not world.shard.transactions and not world.shard.ongoing


# --- expiry ------------------------------------------------------------------------------------------------------


def test_who_is_not_seen_for_long_is_forgotten(world: World) -> None:
    world.producer()
    pair = world.producer("complete")
    world.add(pair, A, transactional_id="complete")
    world.end(pair, True, transactional_id="complete")
    world.mark()
    world.advance(6 * DAY_MS)
    world.producer("young")
    assert len(world.shard.transactions) == 3
    world.advance(DAY_MS + 2 * 3_600_000)
    assert set(world.shard.transactions) == {"young"}
    world.move()
    assert set(world.shard.transactions) == {"young"}
    assert world.init().producer[1] == 0
    assert world.end((1002, 0), True, transactional_id="complete").error is (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING
    )


def test_what_is_going_on_is_never_forgotten() -> None:
    world = World(
        transaction_max_timeout_ms="2000000000", transactional_id_expiration_ms="1000",
        transaction_remove_expired_transaction_cleanup_interval_ms="1000",
    )  # fmt: skip
    pair = world.init(timeout_ms=2_000_000_000).producer
    world.add(pair, A)
    world.advance(10_000)
    assert world.state() is State.ONGOING
    world.end(pair, True, version=4)
    world.advance(10_000)
    assert world.state() is State.PREPARE_COMMIT
    world.mark()
    world.advance(500)
    assert world.state() is State.COMPLETE_COMMIT
    world.advance(2_000)
    assert not world.shard.transactions


def test_nothing_is_forgotten_that_could_not_be_written(world: World) -> None:
    world.producer()
    world.is_writable = False
    world.advance(8 * DAY_MS)
    assert world.shard.transactions
    world.is_writable = True
    world.advance(4_000_000)
    assert not world.shard.transactions


def test_who_waits_for_an_id_is_not_forgotten(world: World) -> None:
    world.producer()
    world.shard.transactions["t"].entry = world.entry()._replace(producer_epoch=32766)
    world.gives_ids = False
    heard = world.init()
    world.advance(8 * DAY_MS)
    world.waiting_for_ids.pop()(5)
    assert heard.producer == (5, 0)


# --- telling -----------------------------------------------------------------------------------------------------


def test_describing(world: World) -> None:
    pair = world.producer()
    assert world.shard.describe("t") == {
        "error_code": 0, "transactional_id": "t", "transaction_state": "Empty", "transaction_timeout_ms": TIMEOUT_MS,
        "transaction_start_time_ms": -1, "producer_id": 1001, "producer_epoch": 0, "topics": [],
    }  # fmt: skip
    world.leaders["a", 1] = 1
    world.add(pair, A, B, ("a", 1))
    told = world.shard.describe("t")
    assert (told["transaction_state"], told["transaction_start_time_ms"]) == ("Ongoing", WALL_MS + 1000)
    assert told["topics"] == [{"topic": "a", "partitions": [0, 1]}, {"topic": "b", "partitions": [3]}]
    world.end(pair, False, version=4)
    world.mark({B: ErrorCode.NOT_LEADER_OR_FOLLOWER})
    told = world.shard.describe("t")
    # What hangs is what has no marker yet.
    assert (told["transaction_state"], told["topics"]) == (
        "PrepareAbort", [{"topic": "b", "partitions": [3]}],
    )  # fmt: skip
    assert world.shard.describe("x")["error_code"] == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert world.shard.describe("")["error_code"] == ErrorCode.INVALID_REQUEST


def test_listing(world: World) -> None:
    for name in ("one", "two", "three"):
        world.producer(name)
    world.add((1001, 0), A, transactional_id="one")
    world.advance(5_000)
    world.add((1002, 0), A, transactional_id="two")

    def names(wanted: Filter) -> set[str]:
        return {row["transactional_id"] for row in world.shard.listed(wanted)}

    assert names(Filter()) == {"one", "two", "three"}
    assert names(Filter(producer_ids=[1002, 1003, 9])) == {"two", "three"}
    assert names(Filter(states=[State.ONGOING])) == {"one", "two"}
    assert names(Filter(states=[])) == set()
    assert names(Filter(duration_ms=0)) == {"one"}
    assert names(Filter(duration_ms=4_999)) == {"one"}
    assert names(Filter(duration_ms=5_000)) == set()
    assert names(Filter(matches=lambda name: name.startswith("t"))) == {"two", "three"}
    assert names(Filter(producer_ids=[1001, 1003], states=[State.ONGOING])) == {"one"}
    assert world.shard.listed(Filter(producer_ids=[1001])) == [
        {"transactional_id": "one", "producer_id": 1001, "transaction_state": "Ongoing"}
    ]


def test_states_can_be_asked_for_by_name() -> None:
    assert set(STATES) == {
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
        "PrepareEpochFence",
    }  # fmt: skip


# --- limits ------------------------------------------------------------------------------------------------------


def test_transactions_that_time_out_together_are_aborted_in_slices(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client can let thousands begin with one deadline: others have their turns in between."""
    monkeypatch.setattr(shard, "_ABORTS_PER_TURN", 3)
    for number in range(10):
        pair = world.producer(f"t{number}")
        assert world.add(pair, A, transactional_id=f"t{number}").error is ErrorCode.NONE
    aborted: Counter[int] = Counter()
    world.advance(TIMEOUT_MS - 1)
    for _ in range(2000):
        before = len(world.shard.ongoing)
        world.advance(8)
        aborted[before - len(world.shard.ongoing)] += 1
    assert not world.shard.ongoing
    assert {count: times for count, times in aborted.items() if count} == {3: 3, 1: 1}


def test_ids_that_expire_together_are_forgotten_in_slices(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard, "_EXPIRATIONS_PER_TURN", 4)
    for number in range(10):
        world.producer(f"t{number}")
    written = len(world.log)
    world.advance(8 * DAY_MS)
    assert not world.shard.transactions and not world.shard.size
    assert len(world.log) == written + 10


def test_new_ids_are_refused_when_the_broker_has_too_many(world: World) -> None:
    world.ids_max = 2
    pair = world.producer("one")
    world.producer("two")
    assert world.init("three").error is ErrorCode.POLICY_VIOLATION
    assert world.init("one").error is ErrorCode.NONE
    world.size_max = world.shard.size
    pair = world.init("one").producer
    assert world.add(pair, A, transactional_id="one").error is ErrorCode.POLICY_VIOLATION
    world.size_max += 1000
    assert world.add(pair, A, transactional_id="one").error is ErrorCode.NONE


def test_the_size_is_what_a_count_says(world: World) -> None:
    pair = world.producer("one")
    world.add(pair, A, B, transactional_id="one", version=5)
    assert world.shard.size == sum(each.size for each in world.shard.transactions.values()) > 300
    world.end(pair, True, transactional_id="one")
    world.mark()
    assert world.shard.size == len("one")
    world.move()
    assert world.shard.size == len("one")
