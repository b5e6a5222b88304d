"""A database as the table sinks use it: one class a kind, found by the scheme of its URL.

It writes SQL and runs it; it decides nothing about batches. Connections are in autocommit mode, and transactions are begun and ended by
statements, so that `run` is the one way to the server. Values in statements are marked %s.

A batch's rows are staged in a table of their own with these columns beside the rows': ottla_attempt, the task attempt that wrote the row;
ottla_row, its place in the batch; ottla_delete, 1 for a deletion; ottla_order, what tells which row of a key is the last; and, if refused
rows are to be sent somewhere, ottla_topic, ottla_partition and ottla_offset.
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
    """A column of a table that is there."""

    name: str
    declared: str
    #: A row may leave it out.
    optional: bool
    #: What is behind the point, or behind the second, is rounded to so many digits; None if it is not.
    digits: int | None = None

    def __str__(self) -> str:
        return (
            self.declared
            if self.digits is None
            else f"{self.declared} with {self.digits} digits of a fraction"
        )


@dataclass(frozen=True, slots=True)
class StagedRows:
    """A batch's staging table, and whose rows in it count."""

    table: str
    shape: Shape
    attempts: tuple[int, ...]
    #: Only the last row of each key is left in it.
    is_thinned: bool = False
    #: Only these rows, both ends included.
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
    """All staging tables of a sink begin like this. Names in databases are short."""
    return f"ottla_stage_{hashlib.sha256(sink_id.encode()).hexdigest()[:16]}_"


class Database(abc.ABC):
    """Where to connect, and this kind's SQL. Sent to executors, so it holds no connection."""

    schemes: ClassVar[tuple[str, ...]]
    quotes: ClassVar[str] = '"'
    #: Begins a transaction that may write.
    begin: ClassVar[str] = "BEGIN"
    #: What locks the rows that a SELECT finds.
    for_update: ClassVar[str] = " FOR UPDATE"
    create_staging: ClassVar[str] = "CREATE TABLE"
    insert_once: ClassVar[str] = "INSERT INTO {table} {row} ON CONFLICT DO NOTHING"
    #: Type of the columns of the progress table: the sink's id, and texts.
    id_type: ClassVar[str] = "TEXT"
    text_type: ClassVar[str] = "TEXT"
    #: Makes checks that wait for the end of the transaction happen at once.
    check_now: ClassVar[str | None] = None
    #: Makes a statement that needs a table for itself give up soon if another has it.
    wait_little: ClassVar[str | None] = None

    # --- what each kind does its own way ----------------------------------------------------------------------

    @abc.abstractmethod
    def connect(self) -> Any:
        """A new connection, in autocommit mode."""

    @abc.abstractmethod
    def run(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows that come back."""

    @abc.abstractmethod
    def type_of(self, column: Column, *, in_key: bool) -> str:
        """What a column of a new table is declared as."""

    @abc.abstractmethod
    def fits(self, column: Column, found: TableColumn) -> bool:
        """Every value of the column can be kept in that one as it is, but for its size: what is too large is refused, row by row."""

    @abc.abstractmethod
    def columns_of(self, connection: Any, table: str) -> list[TableColumn]:
        """Of a table; none if there is no such table."""

    @abc.abstractmethod
    def unique_keys(self, connection: Any, table: str) -> list[frozenset[str]]:
        """The sets of columns that are unique in a table."""

    @abc.abstractmethod
    def tables_like(self, connection: Any, prefix: str) -> list[str]:
        """The tables whose names begin so."""

    @abc.abstractmethod
    def stage(self, connection: Any, table: str, columns: Sequence[Column], rows: pa.RecordBatch) -> None:
        """Add rows to a staging table, whose columns these are, within the transaction that is open."""

    @abc.abstractmethod
    def unfit(self, column: Column, values: pa.Array, *, in_key: bool) -> tuple[pa.Array, str] | None:
        """Which values this kind of database cannot hold at all, and why; None if there are none such."""

    @abc.abstractmethod
    def is_refusal(self, error: Exception) -> bool:
        """The database does not take a row: a constraint, a value out of range."""

    @abc.abstractmethod
    def is_passing(self, error: Exception) -> bool:
        """It may go well the next time: a deadlock, a lost connection."""

    def fold(self, name: str) -> str:
        """Columns whose names are alike after this are one column."""
        return name.lower()

    def broken_late(self, connection: Any) -> int:
        """How many rows break a rule that the database looks at only when the transaction ends, and not even `check_now` makes it look before."""
        return 0

    def reason(self, error: Exception) -> str:
        """What the database says of a row that it refuses."""
        return str(error).strip()

    # --- what they do alike ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def opened(self) -> Iterator[Any]:
        connection = self.connect()
        try:
            yield connection
        finally:
            # The server ends a transaction whose client has gone; a dead connection cannot be closed properly.
            with contextlib.suppress(Exception):
                connection.close()

    def quote(self, name: str) -> str:
        """A table's name may have its schema before it: `sales.orders`."""
        parts = name.split(".")
        for part in parts:
            check_name(part)
        return ".".join(
            self.quotes + part.replace(self.quotes, self.quotes * 2) + self.quotes for part in parts
        )

    def name(self, column: str) -> str:
        """A column's name, in which a dot is just a letter."""
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
        """Make a table if it is not there."""
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
        """Has room for every value, so that it is the merge that refuses one."""
        return self.type_of(column, in_key=in_key)

    def drop(self, connection: Any, table: str) -> None:
        self.run(connection, f"DROP TABLE IF EXISTS {self.quote(table)}")

    # --- progress

    def create_progress(self, connection: Any, sink_id: str) -> None:
        """The table, and a row to lock: without one, two drivers' first batches would not wait for each other."""
        self.create(
            connection,
            f"CREATE TABLE IF NOT EXISTS {self.quote(PROGRESS)} (sink_id {self.id_type} NOT NULL PRIMARY KEY, "
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
        """A SELECT of the rows that count, one a key."""
        where = f"ottla_attempt IN ({', '.join(map(str, staged.attempts)) or 'NULL'})"
        if staged.between is not None:
            where += f" AND ottla_row BETWEEN {staged.between[0]} AND {staged.between[1]}"
        source = f"{self.quote(staged.table)} WHERE {where}"
        if not staged.shape.key or staged.is_thinned:
            return f"SELECT * FROM {source}"  # noqa: S608
        return (
            f"SELECT * FROM (SELECT s.*, ROW_NUMBER() OVER ({self._last(staged.shape)}) AS ottla_nth "  # noqa: S608
            f"FROM {self.quote(staged.table)} s WHERE {where}) numbered WHERE ottla_nth = 1"
        )

    def _last(self, shape: Shape) -> str:
        order = "ottla_order IS NULL, ottla_order DESC, " if shape.order is not None else ""
        return f"PARTITION BY {self.names(shape.key)} ORDER BY {order}ottla_row DESC"

    def thin(self, connection: Any, staged: StagedRows) -> list[int]:
        """Leave only the rows that count, one a key; their places, in order."""
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
        """How many rows each attempt has in the staging table."""
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
        """Put the staged rows into the target, within the transaction that is open."""
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
    """What is run within counts at its end, or not at all."""
    database.run(connection, database.begin)
    try:
        yield
        database.run(connection, "COMMIT")
    except BaseException:
        # A connection that is lost has rolled back already.
        with contextlib.suppress(Exception):
            database.run(connection, "ROLLBACK")
        raise


def database_of(url: str) -> Database:
    """By the URL's scheme: postgresql://, mysql://, mariadb:// or sqlite:///path."""
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
        f"a database is given as postgresql://user:password@host/database, mysql://…, mariadb://… or sqlite:///path/to/file, not as {scheme}:…"
    )
