"""Offsets in MySQL or MariaDB, through PyMySQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ottla.client.consumer.stores.drivers import driver
from ottla.client.consumer.stores.sql import TABLE, SqlOffsets


class MySQLOffsets(SqlOffsets[Any]):
    """Offsets in a table of a MySQL or MariaDB database.

    Create it with PyMySQL's arguments, `MySQLOffsets(host=..., user=..., password=..., database=...)`, or
    with a connection, `MySQLOffsets(connection)`. `store.transaction()` returns PyMySQL's connection.
    """

    insert: ClassVar[str] = "INSERT IGNORE INTO {table} VALUES ({row})"
    #: A primary key is limited to 3072 bytes, with up to four bytes per character.
    columns: ClassVar[str] = (
        "group_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, topic VARCHAR(249) CHARACTER SET ascii COLLATE ascii_bin, "
        "partition_number INTEGER, next_offset BIGINT NOT NULL, PRIMARY KEY (group_id, topic, partition_number)"
    )

    def __init__(self, connection: Any = None, *, table: str = TABLE, **connect: Any) -> None:
        owned = connection is None
        if owned:
            connection = driver("pymysql", "PyMySQL").connect(**connect)
        connection.autocommit(True)
        super().__init__(connection, table, owned=owned)

    def _run(self, statement: str, values: Sequence[Any] = ()) -> tuple[int, list[Any]]:
        with self.connection.cursor() as cursor:
            changed = cursor.execute(statement, values)
            return changed, list(cursor.fetchall())

    def _begin(self) -> None:
        self.connection.begin()

    def _end(self, *, commits: bool) -> None:
        if commits:
            self.connection.commit()
        else:
            self.connection.rollback()

    def _shut(self) -> None:
        self.connection.close()
