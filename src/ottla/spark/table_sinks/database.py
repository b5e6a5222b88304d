"""The databases of the table sinks: one class per kind, selected by the URL scheme.

It builds and runs SQL; it decides nothing about batches. Connections are in autocommit mode. Transactions are
opened and closed by statements, so that `run` is the only way to the server. Placeholders in statements are
%s.

The staging table of a batch has these additional columns:

- ottla_attempt: the task attempt that wrote the row
- ottla_row: the position of the row in the batch
- ottla_delete: 1 for a deletion
- ottla_order: the value that decides which row of a key is the last
- ottla_topic, ottla_partition and ottla_offset: only if refused rows are sent to a dead-letter topic
"""

from __future__ import annotations

import abc
import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ottla.spark.table_sinks.errors import SinkError
from ottla.spark.table_sinks.progress import Progress
from ottla.spark.table_sinks.shape import Column, Shape, check_name

if TYPE_CHECKING:
    import pyarrow as pa

PROGRESS: Final = "ottla_progress"
ATTEMPT: Final = Column("ottla_attempt", "long")
ROW: Final = Column("ottla_row", "long")
DELETE: Final = Column("ottla_delete", "integer")
ORDER: Final = "ottla_order"
POSITION_COLUMNS: Final = (
    Column("ottla_topic", "string"),
    Column("ottla_partition", "integer"),
    Column("ottla_offset", "long"),
)


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of an existing table."""

    name: str
    declared: str
    #: An INSERT may omit it.
    optional: bool
    #: Values are rounded to this many fractional digits; None if they are not rounded.
    digits: int | None = None

    def __str__(self) -> str:
        return (
            self.declared if self.digits is None else f"{self.declared} with {self.digits} fractional digits"
        )


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows of a staging table that belong to the batch."""

    table: str
    shape: Shape
    attempts: tuple[int, ...]
    #: The table contains only the last row of each key.
    has_last_rows_only: bool = False
    #: Only these row numbers, inclusive.
    between: tuple[int, int] | None = None


def staging_columns(shape: Shape, *, with_position: bool) -> tuple[Column, ...]:
    order = (
        ()
        if shape.order is None
        else (Column(ORDER, shape.order.kind, shape.order.precision, shape.order.scale),)
    )
    position = POSITION_COLUMNS if with_position and shape.has_position else ()
    return (ATTEMPT, ROW, DELETE, *order, *position, *shape.columns)


def staging_prefix(sink_id: str) -> str:
    """The prefix of a sink's staging tables. It is hashed, because databases limit the length of names."""
    return f"ottla_stage_{hashlib.sha256(sink_id.encode()).hexdigest()[:16]}_"


class Database(abc.ABC):
    """The address of a database, and its SQL dialect. It is sent to executors, so it holds no connection."""

    schemes: ClassVar[tuple[str, ...]]
    quotes: ClassVar[str] = '"'
    #: Opens a write transaction.
    begin: ClassVar[str] = "BEGIN"
    #: Locks the rows of a SELECT.
    for_update: ClassVar[str] = " FOR UPDATE"
    create_staging: ClassVar[str] = "CREATE TABLE"
    insert_once: ClassVar[str] = "INSERT INTO {table} {row} ON CONFLICT DO NOTHING"
    #: Column types of the progress table: for the sink id, and for other strings.
    id_type: ClassVar[str] = "TEXT"
    text_type: ClassVar[str] = "TEXT"
    #: Makes deferred constraints immediate.
    check_now: ClassVar[str | None] = None
    #: Shortens the timeout for table locks.
    short_lock_timeout: ClassVar[str | None] = None

    # --- specific to each database -----------------------------------------------------------------------

    @abc.abstractmethod
    def connect(self) -> Any:
        """Open a new connection in autocommit mode."""

    @abc.abstractmethod
    def run(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""

    @abc.abstractmethod
    def type_of(self, column: Column, *, in_key: bool) -> str:
        """The column type for a new table."""

    @abc.abstractmethod
    def fits(self, column: Column, found: TableColumn) -> bool:
        """Whether the table column can store every value unchanged. Sizes are checked per row."""

    @abc.abstractmethod
    def columns_of(self, connection: Any, table: str) -> list[TableColumn]:
        """The columns of a table; empty if the table does not exist."""

    @abc.abstractmethod
    def unique_keys(self, connection: Any, table: str) -> list[frozenset[str]]:
        """The unique keys of a table, as sets of columns."""

    @abc.abstractmethod
    def tables_like(self, connection: Any, prefix: str) -> list[str]:
        """The tables whose names start with this prefix."""

    @abc.abstractmethod
    def stage(self, connection: Any, table: str, columns: Sequence[Column], rows: pa.RecordBatch) -> None:
        """Insert rows into a staging table with these columns, in the open transaction."""

    @abc.abstractmethod
    def unfit(self, column: Column, values: pa.Array, *, in_key: bool) -> tuple[pa.Array, str] | None:
        """The values that this kind of database cannot store, and the reason; None if it stores all."""

    @abc.abstractmethod
    def is_refusal(self, error: Exception) -> bool:
        """Whether the database refuses a row: a constraint, or a value out of range."""

    @abc.abstractmethod
    def is_passing(self, error: Exception) -> bool:
        """Whether the error is transient: a deadlock, a lost connection."""

    def fold(self, name: str) -> str:
        """Normalize a column name: columns with equal normalized names are the same."""
        return name.lower()

    def deferred_violations(self, connection: Any) -> int:
        """The number of rows that violate a deferred constraint which `check_now` does not make immediate."""
        return 0

    def reason(self, error: Exception) -> str:
        """The database's message about a refused row."""
        return str(error).strip()

    # --- shared by all databases -------------------------------------------------------------------------

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        connection = self.connect()
        try:
            yield connection
        finally:
            # The server aborts the transaction of a lost client. Closing a dead connection may fail.
            with contextlib.suppress(Exception):
                connection.close()

    def quote(self, name: str) -> str:
        """Quote a table name, which may have a schema: `sales.orders`."""
        parts = name.split(".")
        for part in parts:
            check_name(part)
        return ".".join(
            self.quotes + part.replace(self.quotes, self.quotes * 2) + self.quotes for part in parts
        )

    def name(self, column: str) -> str:
        """Quote a column name; a dot is part of the name."""
        return self.quotes + column.replace(self.quotes, self.quotes * 2) + self.quotes

    def names(self, columns: Sequence[Column] | Sequence[str]) -> str:
        return ", ".join(self.name(each if isinstance(each, str) else each.name) for each in columns)

    def create_table(self, connection: Any, table: str, shape: Shape) -> None:
        declared = ", ".join(
            f"{self.name(column.name)} {self.type_of(column, in_key=column.name in shape.key)}"
            + (" NOT NULL" if column.name in shape.key else "")
            for column in shape.columns
        )
        primary = f", PRIMARY KEY ({self.names(shape.key)})" if shape.key else ""
        self.create(connection, f"CREATE TABLE IF NOT EXISTS {self.quote(table)} ({declared}{primary})")

    def create(self, connection: Any, statement: str) -> None:
        """Create a table if it does not exist."""
        self.run(connection, statement)

    def create_staging_table(
        self, connection: Any, table: str, columns: Sequence[Column], key: Sequence[str]
    ) -> None:
        declared = ", ".join(
            f"{self.name(column.name)} {self.staging_type(column, in_key=column.name in key)}"
            for column in columns
        )
        self.run(connection, f"{self.create_staging} {self.quote(table)} ({declared})")

    def staging_type(self, column: Column, *, in_key: bool) -> str:
        """The column type in a staging table.

        It stores every value, so that only the merge can refuse one.
        """
        return self.type_of(column, in_key=in_key)

    def drop(self, connection: Any, table: str) -> None:
        self.run(connection, f"DROP TABLE IF EXISTS {self.quote(table)}")

    # --- progress

    def create_progress(self, connection: Any, sink_id: str) -> None:
        """Create the progress table and a row to lock, which serializes the first batches of two drivers."""
        self.create(
            connection,
            f"CREATE TABLE IF NOT EXISTS {self.quote(PROGRESS)} (sink_id {self.id_type} NOT NULL PRIMARY "
            "KEY, "
            f"batch_id BIGINT NOT NULL, query_id {self.text_type}, source_offsets {self.text_type})",
        )
        row = "(sink_id, batch_id) VALUES (%s, -1)"
        self.run(connection, self.insert_once.format(table=self.quote(PROGRESS), row=row), (sink_id,))

    def progress(self, connection: Any, sink_id: str, *, locks: bool = False) -> Progress | None:
        rows = self.run(
            connection,
            f"SELECT batch_id, query_id, source_offsets FROM {self.quote(PROGRESS)} WHERE sink_id = %s"  # noqa: S608  # our own names
            + (self.for_update if locks else ""),
            (sink_id,),
        )
        if not rows or rows[0][0] < 0:
            return None
        [(batch_id, query_id, offsets)] = rows
        return Progress(batch_id, query_id, None if offsets is None else json.loads(offsets))

    def advance(self, connection: Any, sink_id: str, progress: Progress) -> None:
        offsets = None if progress.offsets is None else json.dumps(progress.offsets)
        self.run(
            connection,
            f"UPDATE {self.quote(PROGRESS)} SET batch_id = %s, query_id = %s, source_offsets = %s WHERE sink_id = %s",  # noqa: S608
            (progress.batch_id, progress.query_id, offsets, sink_id),
        )

    # --- the merge

    def chosen(self, staged: StagedRows) -> str:
        """A SELECT of the batch's rows, one per key."""
        where = f"ottla_attempt IN ({', '.join(map(str, staged.attempts)) or 'NULL'})"
        if staged.between is not None:
            where += f" AND ottla_row BETWEEN {staged.between[0]} AND {staged.between[1]}"
        source = f"{self.quote(staged.table)} WHERE {where}"
        if not staged.shape.key or staged.has_last_rows_only:
            return f"SELECT * FROM {source}"  # noqa: S608
        return (
            f"SELECT * FROM (SELECT s.*, ROW_NUMBER() OVER ({self._last(staged.shape)}) AS ottla_nth "  # noqa: S608
            f"FROM {self.quote(staged.table)} s WHERE {where}) numbered WHERE ottla_nth = 1"
        )

    def _last(self, shape: Shape) -> str:
        order = "ottla_order IS NULL, ottla_order DESC, " if shape.order is not None else ""
        return f"PARTITION BY {self.names(shape.key)} ORDER BY {order}ottla_row DESC"

    def keep_last_rows(self, connection: Any, staged: StagedRows) -> list[int]:
        """Delete all staged rows except the batch's last row of each key.

        Returns the remaining row numbers, sorted.
        """
        if staged.shape.key:
            self.run(
                connection,
                f"DELETE FROM {self.quote(staged.table)} WHERE ottla_row NOT IN "  # noqa: S608
                f"(SELECT ottla_row FROM ({self.chosen(staged)}) kept) OR ottla_attempt NOT IN "
                f"({', '.join(map(str, staged.attempts)) or 'NULL'})",
            )
        found = self.run(
            connection,
            f"SELECT ottla_row FROM ({self.chosen(staged)}) kept ORDER BY ottla_row",  # noqa: S608
        )
        return [row for (row,) in found]

    def staged_counts(self, connection: Any, staged: StagedRows) -> dict[int, int]:
        """The number of staged rows of each attempt."""
        found = self.run(
            connection,
            f"SELECT ottla_attempt, count(*) FROM {self.quote(staged.table)} GROUP BY ottla_attempt",  # noqa: S608
        )
        return {attempt: count for attempt, count in found}  # noqa: C416  # rows are tuples of any length to mypy

    def staged_row(
        self, connection: Any, staged: StagedRows, row: int, columns: Sequence[str]
    ) -> tuple[Any, ...]:
        attempts = ", ".join(map(str, staged.attempts))
        [found] = self.run(
            connection,
            f"SELECT {self.names(columns)} FROM {self.quote(staged.table)} "  # noqa: S608
            f"WHERE ottla_row = %s AND ottla_attempt IN ({attempts})",
            (row,),
        )
        return found

    def merge(self, connection: Any, target: str, staged: StagedRows, *, deletes: bool) -> None:
        """Merge the staged rows into the target table, in the open transaction."""
        if deletes:
            self.run(connection, self.delete_statement(target, staged))
        for statement in self.write_statements(target, staged):
            self.run(connection, statement)

    def delete_statement(self, target: str, staged: StagedRows) -> str:
        key = self.names(staged.shape.key)
        return (
            f"DELETE FROM {self.quote(target)} WHERE ({key}) IN "  # noqa: S608
            f"(SELECT {key} FROM ({self.chosen(staged)}) gone WHERE ottla_delete = 1)"
        )

    def write_statements(self, target: str, staged: StagedRows) -> list[str]:
        shape = staged.shape
        insert = (
            f"INSERT INTO {self.quote(target)} ({self.names(shape.columns)}) SELECT {self.names(shape.columns)} "  # noqa: S608
            f"FROM ({self.chosen(staged)}) chosen WHERE ottla_delete = 0"
        )
        if not shape.key:
            return [insert]
        sets = ", ".join(f"{self.name(each.name)} = excluded.{self.name(each.name)}" for each in shape.values)
        action = f"DO UPDATE SET {sets}" if sets else "DO NOTHING"
        return [f"{insert} ON CONFLICT ({self.names(shape.key)}) {action}"]


@contextlib.contextmanager
def transaction(database: Database, connection: Any) -> Iterator[None]:
    """Run the block in a transaction: commit at the end, roll back on an error."""
    database.run(connection, database.begin)
    try:
        yield
        database.run(connection, "COMMIT")
    except BaseException:
        # A lost connection has already rolled back.
        with contextlib.suppress(Exception):
            database.run(connection, "ROLLBACK")
        raise


def database_of(url: str) -> Database:
    """Select the database by the URL scheme: postgresql://, mysql://, mariadb:// or sqlite:///path."""
    from ottla.spark.table_sinks.mysql import MySQL
    from ottla.spark.table_sinks.postgresql import PostgreSQL
    from ottla.spark.table_sinks.sqlite import SQLite

    scheme = url.partition(":")[0]
    if scheme in PostgreSQL.schemes:
        return PostgreSQL(url)
    if scheme in MySQL.schemes:
        return MySQL(url)
    if scheme in SQLite.schemes:
        return SQLite(url)
    raise SinkError(
        f"a database URL cannot start with {scheme}: — use postgresql://user:password@host/database, "
        "mysql://…, "
        "mariadb://… or sqlite:///path/to/file"
    )
