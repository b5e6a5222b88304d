"""The SDK's offset stores on real servers: Redis, MariaDB, PostgreSQL. SQLite's are in the default tests.

What stores promise is in `tests/client/consumer/store_behaviour.py`; here is also a consumer that keeps its place in each.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pymysql
import pytest
import redis

from ottla.stores import MySQLOffsets, PostgreSQLOffsets, RedisOffsets
from tests.client.consumer.group_behaviour import create, fill, member
from tests.client.consumer.store_behaviour import *  # noqa: F403 (every test of it is one of this file)
from tests.client.consumer.store_behaviour import opened
from tests.crash.broker_process import BrokerProcess
from tests.interop.databases import mariadb_server, postgresql_server, redis_server


class InRedis:
    server = staticmethod(redis_server)

    def __init__(self, port: int) -> None:
        self.url = f"redis://127.0.0.1:{port}/0"
        self.stores: list[Any] = []
        with redis.Redis.from_url(self.url) as client:
            client.flushdb()

    def open(self) -> Any:
        return opened(self.stores, lambda: RedisOffsets(self.url))

    def add(self, handle: Any, amount: int) -> None:
        handle.incrby("total", amount)

    def total(self) -> int:
        with redis.Redis.from_url(self.url) as client:
            return int(client.get("total") or 0)  # type: ignore[arg-type]


class InMariaDB:
    server = staticmethod(mariadb_server)

    def __init__(self, port: int) -> None:
        self.settings: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": port,
            "user": "root",
            "database": "totals",
        }
        self.stores: list[Any] = []
        with closing(pymysql.connect(**self.settings)) as connection, connection.cursor() as cursor:
            cursor.execute("DROP TABLE IF EXISTS ottla_offsets, amounts")
            cursor.execute("CREATE TABLE amounts (amount INTEGER)")

    def open(self) -> Any:
        return opened(self.stores, lambda: MySQLOffsets(**self.settings))

    def add(self, handle: Any, amount: int) -> None:
        with handle.cursor() as cursor:
            cursor.execute("INSERT INTO amounts VALUES (%s)", (amount,))

    def total(self) -> int:
        with closing(pymysql.connect(**self.settings)) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT coalesce(sum(amount), 0) FROM amounts")
            return int(cursor.fetchall()[0][0])


class InPostgreSQL:
    server = staticmethod(postgresql_server)

    def __init__(self, port: int) -> None:
        self.where = f"host=127.0.0.1 port={port} user=totals dbname=totals"
        self.stores: list[Any] = []
        with psycopg.connect(self.where) as connection:
            connection.execute("DROP TABLE IF EXISTS ottla_offsets, amounts")
            connection.execute("CREATE TABLE amounts (amount INTEGER)")

    def open(self) -> Any:
        return opened(self.stores, lambda: PostgreSQLOffsets(self.where))

    def add(self, handle: Any, amount: int) -> None:
        handle.execute("INSERT INTO amounts VALUES (%s)", (amount,))

    def total(self) -> int:
        with psycopg.connect(self.where) as connection:
            [(total,)] = connection.execute("SELECT coalesce(sum(amount), 0) FROM amounts").fetchall()
            return int(total)


@pytest.fixture(scope="session", params=[InRedis, InMariaDB, InPostgreSQL])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Any]]:
    """Makes an empty database on a running server."""
    kind = request.param
    with kind.server(tmp_path_factory.mktemp(kind.__name__)) as port:
        yield lambda: kind(port)


@pytest.fixture
def database(server: Callable[[], Any]) -> Iterator[Any]:
    database = server()
    yield database
    for store in database.stores:
        store.close()


def test_a_consumer_counts_exactly_once(broker: BrokerProcess, topic: str, database: Any) -> None:
    create(broker.address, topic, 2)
    fill(broker.address, topic, 20, 2)

    def count(limit: int) -> None:
        store = database.open()
        done = 0
        with member(
            broker.address, topic, offset_store=store, enable_auto_commit=False, max_poll_records=5
        ) as consumer:
            consumer.subscribe([topic])
            for batch in consumer.batches():
                if done >= limit:
                    raise ZeroDivisionError
                with store.transaction() as handle:
                    for records in batch.values():
                        for record in records:
                            database.add(handle, int(record.value or b""))
                        done += len(records)
                    consumer.commit()
                if database.total() == 2 * sum(range(20)):
                    return

    with pytest.raises(ZeroDivisionError):
        count(15)
    count(1000)
    assert database.total() == 2 * sum(range(20))
