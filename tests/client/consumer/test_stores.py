"""Offset stores on SQLite, and consumers that use one."""

import asyncio
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import ottla
import ottla.aio
from ottla.client.errors import KafkaError, SettingError
from ottla.client.metadata import TopicPartition
from ottla.stores import MySQLOffsets, OffsetsMoved, PostgreSQLOffsets, RedisOffsets, SQLiteOffsets
from tests.client.consumer.group_behaviour import create, fill, member, take, until
from tests.client.consumer.store_behaviour import *  # noqa: F403 (every test of it is one of this file)
from tests.client.consumer.store_behaviour import opened


class InSQLite:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.stores: list[SQLiteOffsets] = []
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE amounts (amount INTEGER)")
        connection.close()

    def open(self) -> Any:
        return opened(self.stores, lambda: SQLiteOffsets(self.path))

    def add(self, handle: Any, amount: int) -> None:
        handle.execute("INSERT INTO amounts VALUES (?)", (amount,))

    def total(self) -> int:
        connection = sqlite3.connect(self.path)
        try:
            return int(connection.execute("SELECT coalesce(sum(amount), 0) FROM amounts").fetchone()[0])
        finally:
            connection.close()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[InSQLite]:
    database = InSQLite(tmp_path / "totals.db")
    yield database
    for store in database.stores:
        store.close()


def test_an_error_that_is_caught_inside_still_undoes_the_transaction(database: InSQLite) -> None:
    first, second = database.open(), database.open()
    tp = TopicPartition("a", 0)
    first.load("g", [tp])
    second.save("g", {tp: 5})

    def swallow() -> None:
        with first.transaction() as connection:
            database.add(connection, 1)
            with pytest.raises(OffsetsMoved):
                first.save("g", {tp: 3})

    with pytest.raises(KafkaError, match="rolled back"):
        swallow()
    assert database.total() == 0


def test_a_table_is_named_by_letters(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "x.db", check_same_thread=False)
    with pytest.raises(SettingError, match="not a table name"):
        SQLiteOffsets(connection, "a; DROP TABLE b")
    store = SQLiteOffsets(connection, "main.places")
    store.save("g", {TopicPartition("a", 0): 1})
    # A connection that was given stays open.
    store.close()
    assert connection.execute("SELECT * FROM places").fetchall() == [("g", "a", 0, 1)]
    connection.close()


@pytest.mark.parametrize(
    ("module", "make"),
    [
        ("pymysql", lambda: MySQLOffsets(host="127.0.0.1")),
        ("psycopg", lambda: PostgreSQLOffsets("dbname=x")),
        ("redis", lambda: RedisOffsets("redis://127.0.0.1")),
    ],
)
def test_a_driver_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, module: str, make: Any) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"pip install 'ottla\[stores\]'"):
        make()


def test_a_consumer_counts_exactly_once(group_address: str, topic_name: str, database: InSQLite) -> None:
    """The three lines of the documentation, with a consumer that dies between two transactions and one that takes over."""
    create(group_address, topic_name, 2)
    fill(group_address, topic_name, 20, 2)

    def count(limit: int) -> None:
        store = SQLiteOffsets(database.path)
        consumer = member(
            group_address, topic_name, offset_store=store, enable_auto_commit=False, max_poll_records=5
        )
        consumer.subscribe([topic_name])
        done = 0
        with consumer:
            for batch in consumer.batches():
                records = [record for part in batch.values() for record in part]
                if done >= limit:
                    raise ZeroDivisionError
                with store.transaction() as connection:
                    for record in records:
                        database.add(connection, int(record.value or b""))
                    consumer.commit()
                done += len(records)
                if database.total() == 2 * sum(range(20)):
                    return

    with pytest.raises(ZeroDivisionError):
        count(15)
    count(1000)
    assert database.total() == 2 * sum(range(20))


class InMemory:
    """A store of the user's own: three methods."""

    def __init__(self) -> None:
        self.kept: dict[TopicPartition, int] = {}
        self.loaded: list[list[TopicPartition]] = []
        self.is_closed = False

    def load(self, group: str, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        self.loaded.append(sorted(partitions))
        return {tp: self.kept[tp] for tp in self.loaded[-1] if tp in self.kept}

    def save(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.kept.update(offsets)

    def close(self) -> None:
        self.is_closed = True


def test_a_store_is_asked_after_each_rebalance_and_told_what_was_read(
    group_address: str, topic_name: str
) -> None:
    tps = create(group_address, topic_name, 2)
    fill(group_address, topic_name, 10, 2)
    store = InMemory()
    store.kept[tps[1]] = 6
    kind = "cooperative-sticky"
    with member(group_address, topic_name, kind, offset_store=store) as first:
        first.subscribe([topic_name])
        assert len(take(first, 14)) == 14
        assert store.loaded == [tps]
        # Nothing of it is with the group: another store begins anew.
        with member(group_address, topic_name, kind, offset_store=InMemory()) as second:
            second.subscribe([topic_name])
            until(lambda: len(first.assignment()) == len(second.assignment()) == 1, first, second)
            moved = second.assignment()
        until(lambda: len(first.assignment()) == 2, first)
        assert store.loaded == [tps, moved]
        assert first.committed(tps) == dict.fromkeys(tps, (10, "", -1))
    assert store.kept == dict.fromkeys(tps, 10)
    assert store.is_closed


def test_assigned_partitions_begin_where_the_store_says(group_address: str, topic_name: str) -> None:
    [tp] = create(group_address, topic_name, 1)
    fill(group_address, topic_name, 10, 1)
    store = InMemory()
    store.kept[tp] = 4
    with ottla.Consumer(group_address, offset_store=store, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        assert [record.offset for record in take(consumer, 2)] == [4, 5]
    assert store.kept == {tp: 6}


def test_the_asyncio_consumer_commits_into_an_open_transaction(
    group_address: str, topic_name: str, database: InSQLite
) -> None:
    [tp] = create(group_address, topic_name, 1)
    fill(group_address, topic_name, 5, 1)
    store = database.open()

    async def work() -> None:
        async with ottla.aio.Consumer(
            group_address, offset_store=store, auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer:
            await consumer.assign([tp])
            polled: dict[TopicPartition, list[Any]] = {}
            while not polled:
                polled = await consumer.poll(1000)
            with store.transaction() as connection:
                database.add(connection, len(polled[tp]))
                await consumer.commit()

    asyncio.run(work())
    assert database.open().load("ottla", [tp]) == {tp: database.total()}
    assert database.total() > 0
