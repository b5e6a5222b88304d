"""The table sink guarantees on SQLite, and SQLite specifics."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from ottla.spark import table_sinks
from ottla.spark.table_sinks.sqlite import SQLite, affinity
from tests.spark.table_sinks.rows import Rows
from tests.spark.table_sinks.table_behaviour import *  # noqa: F403 (every test of it is one of this file)


class InSQLite:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(statement).fetchall()

    def staging(self, prefix: str) -> list[str]:
        with SQLite(self.url).opened() as connection:
            return SQLite(self.url).tables_like(connection, prefix)


@pytest.fixture
def place(tmp_path: Path) -> InSQLite:
    return InSQLite(tmp_path / "tables.db")


@pytest.mark.parametrize(
    ("declared", "found"),
    [("BIGINT", "INTEGER"), ("varchar(9)", "TEXT"), ("DATETIME", "NUMERIC"), ("", "ANY"), ("double", "REAL"), ("BLOB", "BLOB")],
)  # fmt: skip
def test_declared_types_mean_what_they_mean_to_sqlite(declared: str, found: str) -> None:
    assert affinity(declared) == found


def test_what_sqlite_would_make_a_null_is_refused(place: InSQLite) -> None:
    sink = table_sinks.append(place.url, table="numbers", sink_id="numbers")
    with pytest.raises(table_sinks.RowsRefused, match="SQLite has no NaN"):
        sink(Rows("n double", [(1.0,), (float("nan"),)]), 0)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:tables.db"])
def test_a_database_in_memory_is_refused(url: str) -> None:
    with pytest.raises(table_sinks.SinkError, match="sqlite:///path"):
        table_sinks.append(url, table="t", sink_id="s")
