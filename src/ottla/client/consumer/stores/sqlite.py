"""Offsets in SQLite, in the file of the results: exactly once into a local database, without a driver."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from ottla.client.consumer.stores.sql import TABLE, SqlOffsets

#: How long to wait for another process that writes.
BUSY_S = 30.0


class SQLiteOffsets(SqlOffsets[sqlite3.Connection]):
    """Offsets in a table of an SQLite database: a path, or a connection with `check_same_thread=False`.

    store = SQLiteOffsets("totals.db")
    consumer = ottla.Consumer(address, group_id="totals", offset_store=store, enable_auto_commit=False)
    consumer.subscribe(["orders"])
    for batch in consumer.batches():
        with store.transaction() as connection:
            connection.executemany("INSERT INTO ...", rows_of(batch))
            consumer.commit()
    """

    value: ClassVar[str] = "?"

    def __init__(self, database: str | Path | sqlite3.Connection, table: str = TABLE) -> None:
        owned = not isinstance(database, sqlite3.Connection)
        connection = (
            database
            if isinstance(database, sqlite3.Connection)
            else sqlite3.connect(database, timeout=BUSY_S, check_same_thread=False)
        )
        # Only this store begins transactions.
        connection.isolation_level = None
        super().__init__(connection, table, owned=owned)

    def _run(self, statement: str, values: Sequence[Any] = ()) -> tuple[int, list[Any]]:
        cursor = self.connection.execute(statement, values)
        return cursor.rowcount, cursor.fetchall()

    def _begin(self) -> None:
        # Take the write lock at once: two readers that both upgrade later would block each other.
        self.connection.execute("BEGIN IMMEDIATE")

    def _end(self, *, commits: bool) -> None:
        self.connection.execute("COMMIT" if commits else "ROLLBACK")

    def _shut(self) -> None:
        self.connection.close()
