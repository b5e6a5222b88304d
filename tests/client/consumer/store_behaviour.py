"""The behaviour of every offset store: run on SQLite here, and on real database servers by `tests/interop`.

Each test gets `open_store`, which opens a store on one database, and `totals`, which reads and writes the
same database.
"""

from collections.abc import Callable
from typing import Any, Protocol

import pytest

from ottla.client.metadata import TopicPartition
from ottla.stores import OffsetsMoved

A, B = TopicPartition("a", 0), TopicPartition("b", 1)


class Database(Protocol):
    """A database with a store in it and a counter beside."""

    def open(self) -> Any:
        """One more store on it."""

    def add(self, handle: Any, amount: int) -> None:
        """Count within a transaction of the store, whose handle that is."""

    def total(self) -> int: ...


def test_what_is_saved_is_loaded_by_group(database: Database) -> None:
    store = database.open()
    assert store.load("g", [A, B]) == {}
    store.save("g", {A: 7})
    store.save("g", {A: 8, B: 2})
    assert store.load("g", [A, B]) == {A: 8, B: 2}
    assert store.load("other", [A]) == {}
    again = database.open()
    assert again.load("g", [A, B, TopicPartition("a", 1)]) == {A: 8, B: 2}
    again.save("g", {A: 3})
    assert again.load("g", [A]) == {A: 3}


def test_results_and_offsets_go_together_or_not_at_all(database: Database) -> None:
    store = database.open()
    store.load("g", [A])
    with store.transaction() as handle:
        assert store.in_transaction
        database.add(handle, 5)
        store.save("g", {A: 10})
    assert not store.in_transaction
    assert (database.total(), store.load("g", [A])) == (5, {A: 10})

    def fail() -> None:
        with store.transaction() as handle:
            database.add(handle, 50)
            store.save("g", {A: 20})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (database.total(), database.open().load("g", [A])) == (5, {A: 10})
    # What was rolled back is forgotten: it goes on from where it was.
    with store.transaction() as handle:
        database.add(handle, 1)
        store.save("g", {A: 11})
    assert (database.total(), database.open().load("g", [A])) == (6, {A: 11})


@pytest.mark.parametrize("start", [None, 4])
def test_whoever_was_overtaken_counts_for_nothing(database: Database, start: int | None) -> None:
    paused, other = database.open(), database.open()
    if start is not None:
        database.open().save("g", {A: start})
    for store in (paused, other):
        store.load("g", [A])
    other.save("g", {A: 9})

    def count() -> None:
        with paused.transaction() as handle:
            database.add(handle, 100)
            paused.save("g", {A: 6})

    with pytest.raises(OffsetsMoved, match="is at 9 of a-0"):
        count()
    assert (database.total(), other.load("g", [A])) == (0, {A: 9})
    # Having looked again, it may go on.
    assert paused.load("g", [A]) == {A: 9}
    paused.save("g", {A: 12})
    assert other.load("g", [A]) == {A: 12}


def opened(stores: list[Any], make: Callable[[], Any]) -> Any:
    stores.append(make())
    return stores[-1]
