"""The roles of the columns: written columns, key, order of the rows of a key, and deletions. Pure.

The position of a row is where it came from: the columns topic, partition and offset, if all three exist. It
is used for the progress and to find the last row of a key. It is written only if `columns=` names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.spark.table_sinks.errors import SchemaMismatch, SinkError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

POSITION: Final = ("topic", "partition", "offset")
#: Other columns of a record: they do not decide whether a row is a tombstone.
METADATA: Final = ("timestamp", "timestampType", "headers")
#: Prefix of the sink's own columns.
OWN: Final = "ottla_"
#: Spark types that all databases support.
KINDS: Final = frozenset(
    (
        "boolean", "byte", "short", "integer", "long", "float", "double", "decimal", "string", "binary", "date", "timestamp",
        "timestamp_ntz",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: str
    #: For decimals.
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.kind == "decimal" else self.kind


def fraction_digits(column: Column) -> int:
    """The maximum number of fractional digits of the values; for timestamps, of the seconds."""
    if column.kind in ("timestamp", "timestamp_ntz"):
        return 6
    return column.scale


@dataclass(frozen=True, slots=True)
class Shape:
    #: The columns to write, in the order of the rows.
    columns: tuple[Column, ...]
    #: Empty: every row is appended.
    key: tuple[str, ...]
    #: The row with the greatest value is the last of its key. Without it, the last row of the batch is.
    order: Column | None
    #: A boolean column that marks deletions.
    delete_when: str | None
    #: Whether a row whose `tombstone_columns` columns are all null is a deletion.
    tombstones: bool
    #: Whether rows have topic, partition and offset.
    has_position: bool

    @property
    def tombstone_columns(self) -> tuple[Column, ...]:
        """The columns that are all null in a tombstone."""
        order = None if self.order is None else self.order.name
        apart = {order, *((*POSITION, *METADATA) if self.has_position else ())}
        return tuple(column for column in self.values if column.name not in apart)

    @property
    def values(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.name not in self.key)


def shape_of(
    schema: StructType,
    *,
    key: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    order_by: str | None = None,
    delete_when: str | None = None,
    tombstones: bool = True,
) -> Shape:
    """Return how rows of this schema are written. Raises `SchemaMismatch`."""
    names = [field.name for field in schema.fields]
    for what, wanted in (("key", key), ("columns", columns or ())):
        for name in wanted:
            _find(names, name, what)
    for what, one in (("order_by", order_by), ("delete_when", delete_when)):
        if one is not None:
            _find(names, one, what)
    has_position = _has_position(schema)
    if columns is None:
        unwritten = {delete_when, *(POSITION if has_position else ())} - set(key)
        columns = [name for name in names if name not in unwritten]
    absent = [name for name in key if name not in columns]
    if absent:
        raise SchemaMismatch(f"columns= lacks columns of the key: add {', '.join(absent)}")
    written = tuple(_column(schema, name) for name in columns)
    _check_names(written)
    if delete_when is not None and schema[delete_when].dataType.typeName() != "boolean":
        raise SchemaMismatch(f"delete_when={delete_when!r} is not a boolean column: name one, or cast it")
    if order_by is None and has_position:
        order_by = "offset"
    return Shape(
        columns=written,
        key=tuple(key),
        order=None if order_by is None or not key else _column(schema, order_by),
        delete_when=delete_when if key else None,
        tombstones=tombstones and bool(key) and delete_when is None,
        has_position=has_position,
    )


def _find(names: Sequence[str], name: str, what: str) -> None:
    if name not in names:
        raise SchemaMismatch(f"{what}: the rows have no column {name!r}; they have {', '.join(names)}")


def _has_position(schema: StructType) -> bool:
    kinds = {field.name: field.dataType.typeName() for field in schema.fields}
    return (
        kinds.get("topic") == "string"
        and kinds.get("partition") in ("integer", "long")
        and kinds.get("offset") == "long"
    )


def _column(schema: StructType, name: str) -> Column:
    of = schema[name].dataType
    kind = of.typeName()
    if kind in ("char", "varchar"):
        kind = "string"
    if kind not in KINDS:
        raise SchemaMismatch(
            f"column {name!r} has the type {of.simpleString()}, which databases do not support: convert it "
            "with "
            "to_json(), split it into columns, or leave it out with columns="
        )
    return Column(name, kind, getattr(of, "precision", 0), getattr(of, "scale", 0))


def _check_names(columns: Sequence[Column]) -> None:
    seen: set[str] = set()
    for column in columns:
        folded = column.name.lower()
        if folded in seen:
            raise SchemaMismatch(
                f"two columns are named {column.name!r}, and databases ignore case: rename one"
            )
        seen.add(folded)
        if folded.startswith(OWN):
            raise SchemaMismatch(f"column {column.name!r} has the reserved prefix {OWN}: rename it")
        check_name(column.name)


def check_name(name: str) -> None:
    if not name or any(letter in name for letter in "%\0"):
        raise SinkError(
            f"{name!r} is not allowed as the name of a column or table: use a non-empty name without %"
        )
