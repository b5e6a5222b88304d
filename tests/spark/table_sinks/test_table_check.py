"""Checks whether a table fits the rows, without a server. `make interop` tests the catalog queries."""

import pytest

from ottla.spark.table_sinks.database import Database, TableColumn, database_of
from ottla.spark.table_sinks.errors import SchemaMismatch, SinkError
from ottla.spark.table_sinks.mysql import MySQL
from ottla.spark.table_sinks.postgresql import _digits
from ottla.spark.table_sinks.shape import shape_of
from ottla.spark.table_sinks.table_check import check_table
from tests.spark.table_sinks.rows import schema_of

POSTGRESQL, MYSQL, SQLITE = (
    database_of(url) for url in ("postgresql://me@host/db", "mysql://me@host/db", "sqlite:///x.db")
)


def check(database: Database, schema: str, *found: TableColumn) -> None:
    check_table(database, "t", shape_of(schema_of(schema)), found, [])


@pytest.mark.parametrize(
    ("database", "kind", "declared", "digits", "fits"),
    [
        (POSTGRESQL, "decimal(20,5)", "numeric", 2, False),
        (POSTGRESQL, "decimal(20,5)", "numeric", 5, True),
        (POSTGRESQL, "decimal(20,5)", "numeric", None, True),
        (POSTGRESQL, "bigint", "numeric", 0, True),
        (POSTGRESQL, "bigint", "numeric", -2, False),
        (POSTGRESQL, "timestamp", "timestamptz", 0, False),
        (POSTGRESQL, "timestamp", "timestamptz", None, True),
        (MYSQL, "decimal(20,5)", "decimal", 2, False),
        (MYSQL, "decimal(20,5)", "decimal", 9, True),
        (MYSQL, "timestamp_ntz", "datetime", 0, False),
        (MYSQL, "timestamp_ntz", "datetime", 6, True),
        (MYSQL, "double", "double", 2, False),
        (MYSQL, "double", "double", None, True),
    ],
)
def test_a_column_that_would_round_in_silence_is_refused(
    database: Database, kind: str, declared: str, digits: int | None, fits: bool
) -> None:
    found = TableColumn("x", declared, True, digits)
    if fits:
        check(database, f"x {kind}", found)
    else:
        with pytest.raises(SchemaMismatch, match=rf"column x is {declared} with {digits} fractional digits"):
            check(database, f"x {kind}", found)


@pytest.mark.parametrize(
    ("declared", "modifier", "digits"),
    [
        ("numeric", -1, None),
        ("numeric", (10 << 16 | 2) + 4, 2),
        ("numeric", (10 << 16 | 0x7FE) + 4, -2),
        ("timestamp", 3, 3),
        ("varchar", 13, None),
    ],
)
def test_postgresql_keeps_what_is_in_brackets(declared: str, modifier: int, digits: int | None) -> None:
    assert _digits(declared, modifier) == digits


def test_a_name_is_told_from_another_as_the_database_does() -> None:
    found = TableColumn("Name", "text", True)
    check(MYSQL, "name string", found)
    check(SQLITE, "name string", found)
    with pytest.raises(SchemaMismatch, match="no column name"):
        check(POSTGRESQL, "name string", found)


def test_settings_in_a_url_are_what_the_driver_takes() -> None:
    database = database_of(
        "mysql://me@host/db?connect_timeout=5&ssl_disabled=true&local_infile=0&init_command=7"
    )
    assert isinstance(database, MySQL)
    given = database.settings
    assert (given["connect_timeout"], given["ssl_disabled"], given["local_infile"]) == (5, True, False)
    assert given["init_command"] == "7"
    for query in ("connect_timeout=soon", "ssl_disabled=maybe"):
        with pytest.raises(SinkError, match=f"{query.partition('=')[0]} in the database's URL must be"):
            database_of(f"mysql://me@host/db?{query}")
