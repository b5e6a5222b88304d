"""Which columns of the rows go where: what is written, what is the key, what orders rows of one key, what makes a row a deletion. Pure.

A topic's position (columns topic, partition and offset, all three) is where a row came from: it is used for the progress and to tell which
row of a key is the last one, and is written only if `columns=` names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ottla.spark.table_sinks.errors import SchemaMismatch, SinkError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

POSITION: Final = ("topic", "partition", "offset")
#: What else a record has beside key and value: it says nothing about whether the value is null.
METADATA: Final = ("timestamp", "timestampType", "headers")
#: The sink's own columns begin like this.
OWN: Final = "ottla_"
#: The kinds of column that all databases have, by Spark's names.
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
    #: Of decimals.
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.kind == "decimal" else self.kind


def fraction_digits(column: Column) -> int:
    """How many digits behind the point, or behind the second, its values have at most."""
    if column.kind in ("timestamp", "timestamp_ntz"):
        return 6
    return column.scale


@dataclass(frozen=True, slots=True)
class Shape:
    #: What is written, in the order of the rows.
    columns: tuple[Column, ...]
    #: Empty: every row is appended.
    key: tuple[str, ...]
    #: The row with the greatest value is the last one of its key; without one it is the order in which rows come.
    order: Column | None
    #: A boolean column that makes a row a deletion.
    delete_when: str | None
    #: A row whose `telling` columns are all null is a deletion.
    tombstones: bool
    #: Rows say where in which topic they were.
    has_position: bool

    @property
    def telling(self) -> tuple[Column, ...]:
        """The columns that must all be null in a tombstone."""
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
    """How rows of this schema are written; raises `SchemaMismatch`."""
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
        raise SchemaMismatch(f"columns= must name the key's columns too: {', '.join(absent)} is missing")
    written = tuple(_column(schema, name) for name in columns)
    _check_names(written)
    if delete_when is not None and schema[delete_when].dataType.typeName() != "boolean":
        raise SchemaMismatch(f"delete_when={delete_when!r} must name a boolean column")
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
            f"column {name!r} is of type {of.simpleString()}, which databases do not have: make it a text with "
            "to_json(), or columns of its own, or leave it out with columns="
        )
    return Column(name, kind, getattr(of, "precision", 0), getattr(of, "scale", 0))


def _check_names(columns: Sequence[Column]) -> None:
    seen: set[str] = set()
    for column in columns:
        folded = column.name.lower()
        if folded in seen:
            raise SchemaMismatch(
                f"two columns are named {column.name!r}: databases do not tell upper from lower case"
            )
        seen.add(folded)
        if folded.startswith(OWN):
            raise SchemaMismatch(f"column {column.name!r}: names that begin with {OWN} are the sink's own")
        check_name(column.name)


def check_name(name: str) -> None:
    if not name or any(letter in name for letter in "%\0"):
        raise SinkError(f"{name!r} cannot be the name of a column or table: it must not be empty, nor hold %")
