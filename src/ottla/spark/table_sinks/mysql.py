"""MariaDB and MySQL, through PyMySQL.

Rows are staged by multi-row INSERTs, built here: PyMySQL's way is slower.

Sessions use strict mode, so that unfit values are refused and not truncated. The time zone is UTC. Keys of
created tables are compared byte by byte: by the default collation "a", "A" and "a " would be one key. ON
DUPLICATE KEY also matches other unique columns and would change a row of another key. For tables with such
columns, existing rows are updated first and others inserted afterwards, which is slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from ottla.spark.table_sinks.database import Database, StagedRows, TableColumn
from ottla.spark.table_sinks.drivers import driver
from ottla.spark.table_sinks.errors import SinkError
from ottla.spark.table_sinks.shape import Column, fraction_digits

if TYPE_CHECKING:
    import pyarrow as pa

#: Characters of a key, up to four bytes each: an InnoDB index holds 3072 bytes.
KEY_LENGTH: Final = 255
#: The maximum key length of InnoDB.
STAGED_KEY_BYTES_MAX: Final = 3072
#: Below the default max_allowed_packet of 16 MiB, even with four bytes per character.
STATEMENT_CHARACTERS_MAX: Final = 2 << 20
_TYPES: Final = {
    "boolean": "BOOLEAN", "byte": "TINYINT", "short": "SMALLINT", "integer": "INTEGER", "long": "BIGINT", "float": "FLOAT",
    "double": "DOUBLE", "decimal": "DECIMAL({precision}, {scale})", "string": "LONGTEXT", "binary": "LONGBLOB",
    "date": "DATE", "timestamp": "DATETIME(6)", "timestamp_ntz": "DATETIME(6)",
}  # fmt: skip
_LONG: Final = ("bigint", "decimal")
_INT: Final = ("int", *_LONG)
_SHORT: Final = ("smallint", "mediumint", *_INT)
_FITTING: Final = {
    "boolean": ("tinyint", *_SHORT), "byte": ("tinyint", *_SHORT), "short": _SHORT, "integer": _INT, "long": _LONG,
    "float": ("float", "double"), "double": ("double",), "decimal": ("decimal",),
    "string": ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json", "enum", "uuid"),
    "binary": ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "date": ("date",),
    "timestamp": ("datetime", "timestamp"), "timestamp_ntz": ("datetime",),
}  # fmt: skip
#: Types that round to a number of digits.
_ROUNDING: Final = ("decimal", "float", "double", "datetime", "timestamp")
_FLOAT_DIGITS: Final = 1 << 10
#: Settings of PyMySQL that are not strings.
_NUMBERS: Final = ("connect_timeout", "read_timeout", "write_timeout", "max_allowed_packet", "client_flag")
_SWITCHES: Final = (
    "local_infile", "binary_prefix", "compress", "named_pipe", "ssl_disabled", "ssl_verify_cert", "ssl_verify_identity",
)  # fmt: skip
_DEADLOCKS: Final = (1205, 1213)
_LOST: Final = (2006, 2013, 2055, 1927)
#: A trigger's error, an invalid value, a CHECK constraint of MariaDB and of MySQL. PyMySQL has other classes
#: for them.
_REFUSALS: Final = (1644, 1366, 1292, 4025, 3819)


class MySQL(Database):
    schemes: ClassVar = ("mysql", "mariadb")
    quotes: ClassVar = "`"
    begin: ClassVar = "START TRANSACTION"
    insert_once: ClassVar = "INSERT IGNORE INTO {table} {row}"
    short_lock_timeout: ClassVar = "SET SESSION lock_wait_timeout = 5"
    id_type: ClassVar = f"VARCHAR({KEY_LENGTH}) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    text_type: ClassVar = "LONGTEXT CHARACTER SET utf8mb4"

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        database = unquote(parts.path.lstrip("/"))
        if not parts.hostname or not database:
            raise SinkError(
                "a MySQL URL needs host and database: use mysql://user:password@host:port/database"
            )
        self.settings: dict[str, Any] = {
            "host": parts.hostname,
            "port": parts.port or 3306,
            "user": unquote(parts.username or "") or None,
            "password": unquote(parts.password or ""),
            "database": database,
            **{name: _setting(name, value) for name, value in parse_qsl(parts.query)},
        }
        #: The collation that distinguishes all strings. Its name depends on the server.
        self._exact = "utf8mb4_bin"

    def connect(self) -> Any:
        pymysql = driver("pymysql", "PyMySQL")
        try:
            connection = pymysql.connect(autocommit=True, charset="utf8mb4", **self.settings)
        except TypeError as error:
            raise SinkError(
                f"PyMySQL rejects a parameter of the database URL (after the ?): {error}"
            ) from None
        is_mariadb = "MariaDB" in connection.server_version
        self._exact = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
        isolation = "tx_isolation" if is_mariadb else "transaction_isolation"
        # Sorting compares only max_sort_length bytes, which must cover the longest key.
        self.run(
            connection,
            "SET SESSION sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO', time_zone = '+00:00', "
            f"max_sort_length = {4 * STAGED_KEY_BYTES_MAX}, {isolation} = 'READ-COMMITTED'",
        )
        return connection

    def run(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def type_of(self, column: Column, *, in_key: bool) -> str:
        if column.kind == "string":
            kind = f"VARCHAR({KEY_LENGTH})" if in_key else "LONGTEXT"
            return f"{kind} CHARACTER SET utf8mb4 COLLATE {self._exact}"
        if column.kind == "binary" and in_key:
            return f"VARBINARY({KEY_LENGTH})"
        return _TYPES[column.kind].format(precision=column.precision, scale=column.scale)

    def staging_type(self, column: Column, *, in_key: bool) -> str:
        if in_key and column.kind == "string":
            return f"VARCHAR({STAGED_KEY_BYTES_MAX // 4}) CHARACTER SET utf8mb4 COLLATE {self._exact}"
        if in_key and column.kind == "binary":
            return f"VARBINARY({STAGED_KEY_BYTES_MAX})"
        return self.type_of(column, in_key=in_key)

    def fits(self, column: Column, found: TableColumn) -> bool:
        if found.declared not in _FITTING[column.kind]:
            return False
        # A FLOAT(9, 2) rounds to two digits, which is never enough.
        wanted = _FLOAT_DIGITS if column.kind in ("float", "double") else fraction_digits(column)
        return found.digits is None or found.digits >= wanted

    def _catalog(self, connection: Any, columns: str, view: str, table: str) -> list[tuple[Any, ...]]:
        schema, _, name = table.rpartition(".")
        return self.run(
            connection,
            f"SELECT {columns} FROM information_schema.{view} "  # noqa: S608  # our own names
            "WHERE table_schema = coalesce(%s, database()) AND table_name = %s",
            (schema or None, name),
        )

    def columns_of(self, connection: Any, table: str) -> list[TableColumn]:
        found = self._catalog(
            connection,
            "column_name, lower(data_type), is_nullable, column_default, extra, coalesce(numeric_scale, "
            "datetime_precision)",
            "columns",
            table,
        )
        return [
            TableColumn(
                name,
                declared,
                nullable == "YES" or default is not None or extra != "",
                digits if declared in _ROUNDING else None,
            )
            for name, declared, nullable, default, extra, digits in found
        ]

    def unique_keys(self, connection: Any, table: str) -> list[frozenset[str]]:
        keys: dict[str, set[str]] = {}
        for index, column, differs in self._catalog(
            connection, "index_name, column_name, non_unique", "statistics", table
        ):
            if not differs:
                keys.setdefault(index, set()).add(column)
        return [frozenset(columns) for columns in keys.values()]

    def tables_like(self, connection: Any, prefix: str) -> list[str]:
        found = self.run(
            connection,
            "SELECT table_name FROM information_schema.tables "
            "WHERE table_schema = database() AND left(table_name, %s) = %s",
            (len(prefix), prefix),
        )
        return [name for (name,) in found]

    def stage(self, connection: Any, table: str, columns: Sequence[Column], rows: pa.RecordBatch) -> None:
        escape = driver("pymysql.converters", "PyMySQL").escape_string
        texts = [_literals(column, rows.column(number), escape) for number, column in enumerate(columns)]
        head = f"INSERT INTO {self.quote(table)} VALUES "  # noqa: S608  # a name of our own
        waiting: list[str] = []
        size = 0
        for row in zip(*texts, strict=True):
            text = ",".join(row)
            if waiting and size + len(text) > STATEMENT_CHARACTERS_MAX:
                self.run(connection, f"{head}({'),('.join(waiting)})")
                waiting, size = [], 0
            waiting.append(text)
            size += len(text) + 3
        if waiting:
            self.run(connection, f"{head}({'),('.join(waiting)})")

    def unfit(self, column: Column, values: pa.Array, *, in_key: bool) -> tuple[pa.Array, str] | None:
        import pyarrow.compute as pc

        if in_key and column.kind in ("string", "binary"):
            length = pc.utf8_length if column.kind == "string" else pc.binary_length
            most = STAGED_KEY_BYTES_MAX // (4 if column.kind == "string" else 1)
            return pc.greater(
                length(values), most
            ), f"longer than InnoDB's maximum key length of {STAGED_KEY_BYTES_MAX} bytes"
        if column.kind not in ("float", "double"):
            return None
        return pc.invert(pc.is_finite(values)), "MySQL has no NaN and no infinity"

    def is_refusal(self, error: Exception) -> bool:
        pymysql = driver("pymysql", "PyMySQL")
        return isinstance(error, pymysql.err.IntegrityError | pymysql.err.DataError) or (
            isinstance(error, pymysql.err.MySQLError) and error.args[:1] and error.args[0] in _REFUSALS
        )

    def reason(self, error: Exception) -> str:
        return str(error.args[-1])

    def is_passing(self, error: Exception) -> bool:
        pymysql = driver("pymysql", "PyMySQL")
        if isinstance(error, pymysql.err.InterfaceError):
            return True
        return isinstance(error, pymysql.err.OperationalError) and error.args[0] in (*_DEADLOCKS, *_LOST)

    def keep_last_rows(self, connection: Any, staged: StagedRows) -> list[int]:
        rows = [
            row
            for (row,) in self.run(
                connection,
                f"SELECT ottla_row FROM ({self.chosen(staged)}) kept ORDER BY ottla_row",  # noqa: S608
            )
        ]
        if staged.shape.key:
            # MySQL cannot read a table in the statement that deletes from it.
            self.run(connection, f"UPDATE {self.quote(staged.table)} SET ottla_delete = ottla_delete + 2")  # noqa: S608
            self.run(
                connection,
                f"UPDATE {self.quote(staged.table)} s JOIN (SELECT ottla_row AS kept_row, ottla_attempt AS kept_attempt "  # noqa: S608
                f"FROM ({self.chosen(staged)}) last) kept ON s.ottla_row = kept.kept_row "
                "AND s.ottla_attempt = kept.kept_attempt SET s.ottla_delete = s.ottla_delete - 2",
            )
            self.run(connection, f"DELETE FROM {self.quote(staged.table)} WHERE ottla_delete >= 2")  # noqa: S608
        return rows

    def _joined(self, shape_key: Sequence[str]) -> str:
        return " AND ".join(f"t.{self.name(key)} = s.{self.name(key)}" for key in shape_key)

    def delete_statement(self, target: str, staged: StagedRows) -> str:
        return (
            f"DELETE t FROM {self.quote(target)} t JOIN ({self.chosen(staged)}) s "
            f"ON {self._joined(staged.shape.key)} WHERE s.ottla_delete = 1"
        )

    def merge(self, connection: Any, target: str, staged: StagedRows, *, deletes: bool) -> None:
        if deletes:
            self.run(connection, self.delete_statement(target, staged))
        has_others = len(self.unique_keys(connection, target)) > 1
        for statement in (
            self.write_apart(target, staged) if has_others else self.write_statements(target, staged)
        ):
            self.run(connection, statement)

    def write_statements(self, target: str, staged: StagedRows) -> list[str]:
        shape = staged.shape
        insert = (
            f"INSERT INTO {self.quote(target)} ({self.names(shape.columns)}) SELECT {self.names(shape.columns)} "  # noqa: S608
            f"FROM ({self.chosen(staged)}) chosen WHERE ottla_delete = 0"
        )
        if not shape.key:
            return [insert]
        # A row with only key columns sets the key to itself.
        columns = shape.values or shape.columns
        sets = ", ".join(f"{self.name(each.name)} = VALUES({self.name(each.name)})" for each in columns)
        return [f"{insert} ON DUPLICATE KEY UPDATE {sets}"]

    def write_apart(self, target: str, staged: StagedRows) -> list[str]:
        """As `write_statements`, for a table with other unique columns."""
        shape = staged.shape
        if not shape.key:
            return self.write_statements(target, staged)
        statements = []
        sets = ", ".join(f"t.{self.name(each.name)} = s.{self.name(each.name)}" for each in shape.values)
        if sets:
            statements.append(
                f"UPDATE {self.quote(target)} t JOIN ({self.chosen(staged)}) s ON {self._joined(shape.key)} "  # noqa: S608
                f"SET {sets} WHERE s.ottla_delete = 0"
            )
        new = ", ".join(f"s.{self.name(each.name)}" for each in shape.columns)
        statements.append(
            f"INSERT INTO {self.quote(target)} ({self.names(shape.columns)}) SELECT {new} FROM ({self.chosen(staged)}) s "  # noqa: S608
            f"LEFT JOIN {self.quote(target)} t ON {self._joined(shape.key)} "
            f"WHERE s.ottla_delete = 0 AND t.{self.name(shape.key[0])} IS NULL"
        )
        return statements


def _setting(name: str, value: str) -> str | int | bool:
    """Convert a URL parameter to the type that PyMySQL expects."""
    if name in _NUMBERS:
        if not value.isdecimal():
            raise SinkError(f"{name} in the database's URL must be a whole number, not {value!r}")
        return int(value)
    if name in _SWITCHES:
        if value.lower() not in ("true", "false", "1", "0"):
            raise SinkError(f"{name} in the database's URL must be true or false, not {value!r}")
        return value.lower() in ("true", "1")
    return value


def _literals(column: Column, values: pa.Array, escape: Callable[[str], str]) -> list[str]:
    """The values as SQL literals."""
    import pyarrow as pa

    kind = column.kind
    if kind in ("byte", "short", "integer", "long"):
        return ["NULL" if value is None else str(value) for value in values.to_pylist()]
    if kind == "string":
        return ["NULL" if value is None else f"'{escape(value)}'" for value in values.to_pylist()]
    if kind == "binary":
        return ["NULL" if value is None else f"X'{value.hex()}'" for value in values.to_pylist()]
    if kind == "boolean":
        return ["NULL" if value is None else "01"[value] for value in values.to_pylist()]
    if kind == "decimal":
        return ["NULL" if value is None else format(value, "f") for value in values.to_pylist()]
    if kind in ("float", "double"):
        return ["NULL" if value is None else repr(value) for value in values.to_pylist()]
    if kind == "timestamp":
        # In UTC, like the session. The server does not accept a zone suffix.
        values = values.cast(pa.timestamp("us"))
    # Dates and times.
    return ["NULL" if value is None else f"'{value}'" for value in values.cast(pa.string()).to_pylist()]
