"""Tables of MariaDB and PostgreSQL as sinks of streaming queries, on real servers. SQLite's are in the default tests.

What sinks promise is in `tests/spark/table_sinks/table_behaviour.py`; here is also what is peculiar to each server.
"""

import datetime
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pymysql
import pytest

from ottla.spark import table_sinks
from ottla.spark.table_sinks.database import database_of
from tests.interop.databases import mariadb_server, postgresql_server
from tests.sdk.reading import eventually
from tests.spark.table_sinks.rows import Rows
from tests.spark.table_sinks.table_behaviour import *  # noqa: F403 (every test of it is one of this file)
from tests.spark.table_sinks.table_behaviour import PEOPLE, Letters, people, table


class InMariaDB:
    server = staticmethod(mariadb_server)

    def __init__(self, port: int) -> None:
        self.url = f"mariadb://root@127.0.0.1:{port}/totals"
        self.port = port
        for name in self.staging(""):
            self.ask(f"SET STATEMENT foreign_key_checks = 0 FOR DROP TABLE `{name}`")

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with (
            closing(pymysql.connect(host="127.0.0.1", port=self.port, user="root", database="totals", autocommit=True)) as connection,
            connection.cursor() as cursor,
        ):  # fmt: skip
            cursor.execute(statement)
            return list(cursor.fetchall())

    def staging(self, prefix: str) -> list[str]:
        database = database_of(self.url)
        with database.opened() as connection:
            return database.tables_like(connection, prefix)


class InPostgreSQL:
    server = staticmethod(postgresql_server)

    def __init__(self, port: int) -> None:
        self.url = f"postgresql://totals@127.0.0.1:{port}/totals"
        self.ask("SET client_min_messages = error; DROP SCHEMA public CASCADE; CREATE SCHEMA public")

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, options="-c timezone=UTC") as connection:
            cursor = connection.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def staging(self, prefix: str) -> list[str]:
        database = database_of(self.url)
        with database.opened() as connection:
            return database.tables_like(connection, prefix)


@pytest.fixture(scope="session", params=[InMariaDB, InPostgreSQL])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Any]]:
    """Makes an empty database on a running server."""
    kind = request.param
    with kind.server(tmp_path_factory.mktemp(kind.__name__)) as port:
        yield lambda: kind(port)


@pytest.fixture
def place(server: Callable[[], Any]) -> Any:
    return server()


def test_a_value_that_is_too_long_is_refused_and_not_cut(place: Any) -> None:
    place.ask("CREATE TABLE people (id BIGINT PRIMARY KEY, name VARCHAR(5), age INTEGER)")
    with pytest.raises(Exception, match=r"(?i)too long"):
        people(place)(Rows(PEOPLE, [(1, "longer than five", 1)]), 0)
    assert table(place) == []


def test_a_table_with_keys_that_ignore_case_is_served(place: Any) -> None:
    """Of MySQL's collations; PostgreSQL compares texts as they are."""
    collation = "CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci" if "mariadb" in place.url else ""
    place.ask(f"CREATE TABLE people (id VARCHAR(20) {collation} PRIMARY KEY, n INTEGER)")
    sink = people(place)
    sink(Rows("id string, n int", [("a", 1), ("b", 1)]), 0)
    sink(Rows("id string, n int", [("a", 2), ("b", None)]), 1)
    assert table(place) == [("a", 2)]


def test_a_commit_whose_connection_is_lost_is_done_once(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has committed, and the driver does not hear of it."""
    kind = type(database_of(place.url))
    run = kind.run
    ran: list[str] = []
    lost: list[str] = []

    def lose(self: Any, connection: Any, statement: str, values: Any = ()) -> Any:
        found = run(self, connection, statement, values)
        ran.append(statement)
        # The progress has moved: it is the driver's commit, not a task's.
        if statement == "COMMIT" and "ottla_progress" in ran[-2] and not lost:
            lost.append(statement)
            number = "pg_backend_pid()" if "postgresql" in place.url else "connection_id()"
            [(backend,)] = run(self, connection, f"SELECT {number}")
            place.ask(
                f"SELECT pg_terminate_backend({backend})" if "postgresql" in place.url else f"KILL {backend}"
            )
            run(self, connection, "SELECT 1")
        return found

    monkeypatch.setattr(kind, "run", lose)
    table_sinks.append(place.url, table="people", sink_id="people")(Rows(PEOPLE, [(1, "a", 1)]), 0)
    assert lost and table(place) == [(1, "a", 1)]


def test_a_table_in_another_schema(place: Any) -> None:
    place.ask("DROP SCHEMA IF EXISTS elsewhere" + ("" if "mariadb" in place.url else " CASCADE"))
    place.ask("CREATE SCHEMA elsewhere")
    sink = table_sinks.upsert(place.url, table="elsewhere.people", key="id", sink_id="people")
    for batch in range(2):
        sink(Rows(PEOPLE, [(1, "a", batch)]), batch)
    # The table is there now, and is found to fit.
    table_sinks.upsert(place.url, table="elsewhere.people", key="id", sink_id="people")(
        Rows(PEOPLE, [(2, "b", 1)]), 2
    )
    assert place.ask("SELECT id, age FROM elsewhere.people ORDER BY id") == [(1, 1), (2, 1)]


def test_a_table_that_would_round_values_in_silence_is_refused(place: Any) -> None:
    moment = "DATETIME" if "mariadb" in place.url else "TIMESTAMP(0)"
    place.ask(f"CREATE TABLE people (id BIGINT PRIMARY KEY, price NUMERIC(10, 2), at {moment})")
    schema = "id bigint, price decimal(20,5), at timestamp_ntz"
    with pytest.raises(table_sinks.SchemaMismatch) as failed:
        people(place)(Rows(schema, []), 0)
    assert "column price is" in str(failed.value) and "with 2 fractional digits" in str(failed.value)
    assert "column at is" in str(failed.value) and "with 0 fractional digits" in str(failed.value)
    place.ask("DROP TABLE people")
    # What the sink makes itself fits, and is found to.
    for batch in range(2):
        people(place)(Rows(f"{schema}, share double", []), batch)


def test_a_table_that_another_makes_at_the_same_moment(place: Any) -> None:
    """PostgreSQL's IF NOT EXISTS does not see what is not committed, and then meets it. MariaDB makes no tables in transactions."""
    if "mariadb" in place.url:
        return
    with psycopg.connect(place.url) as first, ThreadPoolExecutor(1) as threads:
        first.execute("CREATE TABLE people (id BIGINT PRIMARY KEY, name TEXT, age INTEGER)")
        sink = threads.submit(people(place), Rows(PEOPLE, [(1, "a", 1)]), 0)
        eventually(
            lambda: place.ask("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'") != [],
            "the sink waits for the other",
        )
        first.commit()
        sink.result()
    assert table(place) == [(1, "a", 1)]


def test_a_value_that_cannot_even_be_staged_is_a_dead_letter(place: Any) -> None:
    """MariaDB has no NaN, PostgreSQL no zero character."""
    letters = Letters()
    bad = [(2, "a\0b", 0.0, None), (3, "c", math.nan, None), (5, "e", 0.0, datetime.date(1, 1, 1))]
    good = [(1, "a", 1.0, datetime.date(2026, 1, 1)), (4, "d", 0.5, None)]
    rows = Rows("id bigint, name string, share double, day date", [*good, *bad])
    people(place, dead_letters=letters)(rows, 0)
    refused = {each["row"]["id"] for each in letters.sent}
    assert refused == ({3} if "mariadb" in place.url else {2})
    assert table(place, "id") == [(number,) for number in range(1, 6) if number not in refused]
