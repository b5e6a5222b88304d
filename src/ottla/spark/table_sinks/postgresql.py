"""PostgreSQL, through psycopg 3.

Rows are staged by COPY, as CSV that Arrow writes, into an unlogged table. A server crash empties that table;
the commit detects this by the row count.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ottla.spark.table_sinks.database import Database, TableColumn
from ottla.spark.table_sinks.drivers import driver
from ottla.spark.table_sinks.shape import Column, fraction_digits

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES: Final = {
    "boolean": "BOOLEAN", "byte": "SMALLINT", "short": "SMALLINT", "integer": "INTEGER", "long": "BIGINT",
    "float": "REAL", "double": "DOUBLE PRECISION", "decimal": "NUMERIC({precision}, {scale})", "string": "TEXT",
    "binary": "BYTEA", "date": "DATE", "timestamp": "TIMESTAMP WITH TIME ZONE", "timestamp_ntz": "TIMESTAMP",
}  # fmt: skip
#: PostgreSQL's type names.
_FITTING: Final = {
    "boolean": ("bool",), "byte": ("int2", "int4", "int8", "numeric"), "short": ("int2", "int4", "int8", "numeric"),
    "integer": ("int4", "int8", "numeric"), "long": ("int8", "numeric"), "float": ("float4", "float8"),
    "double": ("float8",), "decimal": ("numeric",), "string": ("text", "varchar", "bpchar"), "binary": ("bytea",),
    "date": ("date",), "timestamp": ("timestamptz",), "timestamp_ntz": ("timestamp",),
}  # fmt: skip


class PostgreSQL(Database):
    schemes: ClassVar = ("postgresql", "postgres")
    create_staging: ClassVar = "CREATE UNLOGGED TABLE"
    check_now: ClassVar = "SET CONSTRAINTS ALL IMMEDIATE"
    short_lock_timeout: ClassVar = "SET lock_timeout = '5s'"

    def __init__(self, url: str) -> None:
        self.url = url

    def connect(self) -> Any:
        psycopg = driver("psycopg", "psycopg[binary]")
        return psycopg.connect(self.url, autocommit=True)

    def run(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall()) if cursor.description is not None else []

    def type_of(self, column: Column, *, in_key: bool) -> str:
        return _TYPES[column.kind].format(precision=column.precision, scale=column.scale)

    def fits(self, column: Column, found: TableColumn) -> bool:
        if found.declared not in _FITTING[column.kind]:
            return False
        return found.digits is None or found.digits >= fraction_digits(column)

    def fold(self, name: str) -> str:
        # Names are quoted, so their case matters.
        return name

    def create(self, connection: Any, statement: str) -> None:
        psycopg = driver("psycopg", "psycopg[binary]")
        try:
            self.run(connection, statement)
        except psycopg.errors.UniqueViolation:
            # Another session created it between the existence check and the creation.
            self.run(connection, statement)

    def columns_of(self, connection: Any, table: str) -> list[TableColumn]:
        found = self.run(
            connection,
            "SELECT a.attname, t.typname, NOT a.attnotnull OR a.atthasdef OR a.attidentity <> '', "
            "a.atttypmod "
            "FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid "
            "WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
            (self.quote(table),),
        )
        return [
            TableColumn(name, declared, optional, _digits(declared, modifier))
            for name, declared, optional, modifier in found
        ]

    def unique_keys(self, connection: Any, table: str) -> list[frozenset[str]]:
        found = self.run(
            connection,
            "SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a "
            "ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) "
            "WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indimmediate AND i.indpred IS NULL "
            "AND i.indexprs IS NULL GROUP BY i.indexrelid",
            (self.quote(table),),
        )
        return [frozenset(names) for (names,) in found]

    def tables_like(self, connection: Any, prefix: str) -> list[str]:
        found = self.run(
            connection,
            "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND "
            "starts_with(tablename, %s)",
            (prefix,),
        )
        return [name for (name,) in found]

    def stage(self, connection: Any, table: str, columns: Sequence[Column], rows: pa.RecordBatch) -> None:
        import pyarrow as pa
        from pyarrow import csv

        written = [_as_text(column, rows.column(number)) for number, column in enumerate(columns)]
        buffer = io.BytesIO()
        # Strings are quoted and nulls are not: this is how COPY distinguishes an empty string from null.
        csv.write_csv(
            pa.record_batch(written, names=[column.name for column in columns]),
            buffer,
            csv.WriteOptions(include_header=False),
        )
        with (
            connection.cursor() as cursor,
            cursor.copy(f"COPY {self.quote(table)} FROM STDIN WITH (FORMAT csv)") as copy,
        ):
            copy.write(buffer.getbuffer())

    def unfit(self, column: Column, values: pa.Array, *, in_key: bool) -> tuple[pa.Array, str] | None:
        import pyarrow.compute as pc

        if column.kind != "string":
            return None
        return pc.match_substring(values, "\0"), "PostgreSQL text cannot contain the character NUL"

    def is_refusal(self, error: Exception) -> bool:
        psycopg = driver("psycopg", "psycopg[binary]")
        return isinstance(error, psycopg.IntegrityError | psycopg.DataError) or (
            # Raised by a trigger or a procedure.
            getattr(error, "sqlstate", None) == "P0001"
        )

    def is_passing(self, error: Exception) -> bool:
        psycopg = driver("psycopg", "psycopg[binary]")
        return isinstance(error, psycopg.OperationalError)


def _digits(declared: str, modifier: int) -> int | None:
    """The fractional digits in a type modifier of PostgreSQL; -1 means no modifier."""
    if modifier < 0:
        return None
    if declared == "numeric":
        # The scale is a signed 11-bit number below the precision; the modifier has an offset of 4.
        return ((modifier - 4 & 0x7FF) ^ 1024) - 1024
    return modifier if declared in ("timestamp", "timestamptz") else None


def _as_text(column: Column, values: pa.Array) -> pa.Array:
    """Convert values whose Arrow CSV form differs from PostgreSQL's input form."""
    import pyarrow as pa

    if column.kind == "binary":
        return pa.array(
            [None if value is None else "\\x" + value.hex() for value in values.to_pylist()], pa.string()
        )
    if column.kind == "decimal":
        return pa.array(
            [None if value is None else format(value, "f") for value in values.to_pylist()], pa.string()
        )
    return values
