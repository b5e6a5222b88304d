"""SQLite: a file that the driver and all tasks can open, so all run on one machine.

Times are stored as UTC text, which SQLite's functions read. Decimals are stored as text, because its numbers
would round them.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import unquote

from ottla.spark.table_sinks.database import ORDER, Database, TableColumn
from ottla.spark.table_sinks.errors import SinkError
from ottla.spark.table_sinks.shape import Column

if TYPE_CHECKING:
    import pyarrow as pa

#: Lock timeout: tasks write one after another.
LOCK_S_MAX: Final = 120.0
_TYPES: Final = {
    "boolean": "BOOLEAN", "byte": "INTEGER", "short": "INTEGER", "integer": "INTEGER", "long": "INTEGER",
    "float": "REAL", "double": "REAL", "decimal": "TEXT", "string": "TEXT", "binary": "BLOB", "date": "TEXT",
    "timestamp": "TEXT", "timestamp_ntz": "TEXT",
}  # fmt: skip
_WHOLE: Final = ("INTEGER", "NUMERIC")
_TIME: Final = ("TEXT", "NUMERIC")
_FITTING: Final = {
    "boolean": _WHOLE, "byte": _WHOLE, "short": _WHOLE, "integer": _WHOLE, "long": _WHOLE, "float": ("REAL", "NUMERIC"),
    "double": ("REAL", "NUMERIC"), "string": ("TEXT",), "binary": ("BLOB",), "date": _TIME, "timestamp": _TIME,
    "timestamp_ntz": _TIME,
}  # fmt: skip
#: Decimal digits that SQLite's numbers keep exactly.
_EXACT_DIGITS: Final = 15


def affinity(declared: str) -> str:
    """The type affinity of a declared type, by SQLite's rules."""
    upper = declared.upper()
    for parts, name in (
        (("INT",), "INTEGER"),
        (("CHAR", "CLOB", "TEXT"), "TEXT"),
        (("BLOB",), "BLOB"),
        (("REAL", "FLOA", "DOUB"), "REAL"),
    ):
        if any(part in upper for part in parts):
            return name
    return "NUMERIC" if upper else "ANY"


class SQLite(Database):
    schemes: ClassVar = ("sqlite",)
    #: SQLite has one writer at a time: this takes the write lock.
    begin: ClassVar = "BEGIN IMMEDIATE"
    for_update: ClassVar = ""
    check_now: ClassVar = "PRAGMA defer_foreign_keys = OFF"

    def __init__(self, url: str) -> None:
        path = unquote(url.removeprefix("sqlite://"))
        # The usual form: three slashes and a relative path, or four slashes and an absolute path.
        if not path.startswith("/") or len(path) < 2:
            raise SinkError(
                "a SQLite URL needs a file, because each task would have its own in-memory database: use "
                "sqlite:///path/from/here or sqlite:////path/from/root"
            )
        # Tasks may run in another working directory.
        self.path = os.path.abspath(path[1:])

    def connect(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(self.path, timeout=LOCK_S_MAX, isolation_level=None)
        except sqlite3.OperationalError as error:
            raise SinkError(f"SQLite cannot open {self.path}: {error}: check path and permissions") from None
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    def run(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        cursor = connection.execute(statement.replace("%s", "?"), values)
        try:
            return list(cursor.fetchall())
        finally:
            cursor.close()

    def type_of(self, column: Column, *, in_key: bool) -> str:
        return _TYPES[column.kind]

    def fits(self, column: Column, found: TableColumn) -> bool:
        kept_as = affinity(found.declared)
        if kept_as == "ANY":
            return True
        if column.kind == "decimal":
            return kept_as == "TEXT" or (kept_as == "NUMERIC" and column.precision <= _EXACT_DIGITS)
        return kept_as in _FITTING[column.kind]

    def columns_of(self, connection: Any, table: str) -> list[TableColumn]:
        found = self.run(connection, f"PRAGMA table_info({self.quote(table)})")
        return [
            TableColumn(name, declared, not_null == 0 or default is not None)
            for _, name, declared, not_null, default, _ in found
        ]

    def unique_keys(self, connection: Any, table: str) -> list[frozenset[str]]:
        columns = self.run(connection, f"PRAGMA table_info({self.quote(table)})")
        keys = [frozenset(name for _, name, _, _, _, place in columns if place)]
        for _, index, unique, _, partial in self.run(connection, f"PRAGMA index_list({self.quote(table)})"):
            if unique and not partial:
                parts = self.run(connection, f"PRAGMA index_info({self.name(index)})")
                keys.append(frozenset(name for _, _, name in parts))
        return [key for key in keys if key]

    def tables_like(self, connection: Any, prefix: str) -> list[str]:
        found = self.run(
            connection,
            "SELECT name FROM sqlite_master WHERE type = 'table' AND substr(name, 1, %s) = %s",
            (len(prefix), prefix),
        )
        return [name for (name,) in found]

    def stage(self, connection: Any, table: str, columns: Sequence[Column], rows: pa.RecordBatch) -> None:
        values = [_values(column, rows.column(number)) for number, column in enumerate(columns)]
        marks = ", ".join("?" * len(columns))
        connection.executemany(
            f"INSERT INTO {self.quote(table)} VALUES ({marks})",  # noqa: S608  # a name of our own
            zip(*values, strict=True),
        )

    def unfit(self, column: Column, values: pa.Array, *, in_key: bool) -> tuple[pa.Array, str] | None:
        import pyarrow.compute as pc

        if column.kind not in ("float", "double"):
            return None
        return pc.is_nan(values), "SQLite has no NaN"

    def deferred_violations(self, connection: Any) -> int:
        deferred = "SELECT count(*) FROM sqlite_master WHERE upper(sql) LIKE '%DEFERRED%'"
        if connection.execute(deferred).fetchone() == (0,):
            return 0
        return len(self.run(connection, "PRAGMA foreign_key_check"))

    def is_refusal(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.IntegrityError | sqlite3.DataError)

    def is_passing(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


def _values(column: Column, values: pa.Array) -> list[Any]:
    import pyarrow as pa

    if column.kind == "decimal" and column.name == ORDER:
        # Strings of equal length, which sort like the numbers.
        most = 10**column.precision
        return [
            None if value is None else str(2 * most + int(format(value, "f").replace(".", "")))
            for value in values.to_pylist()
        ]
    if column.kind == "decimal":
        return [None if value is None else format(value, "f") for value in values.to_pylist()]
    if column.kind in ("date", "timestamp", "timestamp_ntz"):
        return list(values.cast(pa.string()).to_pylist())
    return list(values.to_pylist())
