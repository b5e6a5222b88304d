"""The common part of SQL offset stores: one row per partition, and saves that detect another consumer.

    group_id | topic | partition_number | next_offset

A save changes a row only from the value that this store has loaded or saved last. So a paused consumer whose
partitions went to another one raises `OffsetsMoved`, and its transaction is rolled back. One connection, one
thread at a time.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, TypeVar

from ottla.client.consumer.stores.store import OffsetStore, moved
from ottla.client.errors import KafkaError, SettingError
from ottla.client.metadata import TopicPartition

Connection = TypeVar("Connection")

TABLE = "ottla_offsets"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")


class SqlOffsets(ABC, OffsetStore, Generic[Connection]):
    """The common part of SQL stores. Subclasses run statements and define the SQL that differs."""

    #: The placeholder of a value in a statement.
    value: ClassVar[str] = "%s"
    #: A statement that inserts a row unless it exists.
    insert: ClassVar[str] = "INSERT INTO {table} VALUES ({row}) ON CONFLICT DO NOTHING"
    columns: ClassVar[str] = (
        "group_id TEXT, topic TEXT, partition_number INTEGER, next_offset BIGINT NOT NULL, "
        "PRIMARY KEY (group_id, topic, partition_number)"
    )

    def __init__(self, connection: Connection, table: str, *, owned: bool) -> None:
        if not _NAME.fullmatch(table):
            raise SettingError(f"{table!r} is not a table name: use letters, digits and _")
        self.connection = connection
        self._table = table
        self._is_owned = owned
        self._lock = threading.RLock()
        self._depth = 0
        #: A save inside the open transaction failed: the transaction must be rolled back, even if the error
        #: is caught.
        self._is_doomed = False
        #: The last loaded or saved offset of each partition, None for none. Changes of an open transaction
        #: are separate.
        self._known: dict[tuple[str, TopicPartition], int | None] = {}
        self._pending: dict[tuple[str, TopicPartition], int | None] = {}
        where = f"group_id = {self.value} AND topic = {self.value} AND partition_number = {self.value}"
        self._select = f"SELECT next_offset FROM {table} WHERE {where}"  # noqa: S608  # checked above
        self._insert = self.insert.format(table=table, row=", ".join([self.value] * 4))
        self._update = f"UPDATE {table} SET next_offset = {self.value} WHERE {where}"  # noqa: S608  # checked above
        with self.transaction():
            self._run(f"CREATE TABLE IF NOT EXISTS {table} ({self.columns})")

    # Database specific

    @abstractmethod
    def _run(self, statement: str, values: Sequence[Any] = ()) -> tuple[int, list[Any]]:
        """Run a statement. Return the number of changed rows, and the found rows."""

    @abstractmethod
    def _begin(self) -> None:
        """Open a transaction."""

    @abstractmethod
    def _end(self, *, commits: bool) -> None:
        """Commit or roll back."""

    @abstractmethod
    def _shut(self) -> None:
        """Close the connection."""

    # Offsets

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open: then the consumer's commits belong to it."""
        return self._depth > 0

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Run a database transaction: writes and committed offsets take effect together, or not at all.

        with store.transaction() as connection:
            connection.execute(...)
            consumer.commit()
        """
        with self._lock:
            if self._depth == 0:
                self._begin()
            self._depth += 1
            try:
                yield self.connection
            except BaseException:
                self._close_transaction(commits=False)
                raise
            else:
                self._close_transaction(commits=True)

    def _close_transaction(self, *, commits: bool) -> None:
        self._depth -= 1
        if self._depth:
            self._is_doomed |= not commits
            return
        pending, self._pending = self._pending, {}
        doomed, self._is_doomed = self._is_doomed, False
        self._end(commits=commits and not doomed)
        if commits and doomed:
            raise KafkaError(
                "the transaction was rolled back, because offsets could not be saved in it",
                advice="See the error that was raised inside the transaction",
            )
        if commits:
            self._known.update(pending)

    def load(self, group: str, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        with self.transaction():
            for tp in partitions:
                rows = self._run(self._select, (group, *tp))[1]
                self._pending[group, tp] = int(rows[0][0]) if rows else None
                if rows:
                    found[tp] = int(rows[0][0])
        return found

    def save(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        with self.transaction():
            # Everyone saves in the same order, so that two consumers do not deadlock.
            for tp, offset in sorted(offsets.items()):
                self._save_one(group, tp, offset)

    def _save_one(self, group: str, tp: TopicPartition, offset: int) -> None:
        key = (group, tp)
        if key in self._pending or key in self._known:
            known = self._pending[key] if key in self._pending else self._known[key]
            if known == offset:
                return
            if known is None:
                changed, _ = self._run(self._insert, (group, *tp, offset))
            else:
                changed, _ = self._run(
                    f"{self._update} AND next_offset = {self.value}", (offset, group, *tp, known)
                )
            if not changed:
                rows = self._run(self._select, (group, *tp))[1]
                raise moved(group, tp, known, int(rows[0][0]) if rows else None)
        elif not self._run(self._insert, (group, *tp, offset))[0]:
            self._run(self._update, (offset, group, *tp))
        self._pending[key] = offset

    def close(self) -> None:
        """Close the connection if the store created it."""
        if self._is_owned:
            self._is_owned = False
            self._shut()
