"""Offsets in PostgreSQL, through psycopg 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ottla.client.consumer.stores.drivers import driver
from ottla.client.consumer.stores.sql import TABLE, SqlOffsets


class PostgreSQLOffsets(SqlOffsets[Any]):
    """Offsets in a table of a PostgreSQL database.

    Create it with a connection string, `PostgreSQLOffsets("host=... dbname=...")`, or with a psycopg
    connection. `store.transaction()` returns the connection.
    """

    def __init__(self, connection: Any, table: str = TABLE) -> None:
        owned = isinstance(connection, str)
        if owned:
            connection = driver("psycopg", "psycopg").connect(connection, autocommit=True)
        connection.autocommit = True
        super().__init__(connection, table, owned=owned)

    def _run(self, statement: str, values: Sequence[Any] = ()) -> tuple[int, list[Any]]:
        cursor = self.connection.execute(statement, values)
        return cursor.rowcount, cursor.fetchall() if cursor.description else []

    def _begin(self) -> None:
        self.connection.execute("BEGIN")

    def _end(self, *, commits: bool) -> None:
        self.connection.execute("COMMIT" if commits else "ROLLBACK")

    def _shut(self) -> None:
        self.connection.close()
