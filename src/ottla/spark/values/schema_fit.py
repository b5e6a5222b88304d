"""Checks, when a query is planned, whether rows of a type can be written with a schema at all. Pure.

It finds only problems that no value could avoid: columns without a field, required fields without a column,
and types that never fit. Ranges of numbers and symbols of enums are checked when a value is written.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import types as spark

from ottla.spark.values import avro_tree, json_schema
from ottla.spark.values.codecs import Plan
from ottla.spark.values.columns import type_of
from ottla.spark.values.errors import SchemaError, at
from ottla.spark.values.registry import AVRO, JSON

_WHOLE: Final = ("byte", "short", "integer", "long")
_NUMBERS: Final = (*_WHOLE, "float", "double", "decimal")
#: Column types that fit a field's type. Types that are not listed fit everything.
_FITTING: Final[dict[str, tuple[str, ...]]] = {
    "boolean": ("boolean",),
    "integer": _NUMBERS,
    "long": _NUMBERS,
    "float": _NUMBERS,
    "double": _NUMBERS,
    "decimal": _NUMBERS,
    "date": ("date",),
    "timestamp": ("timestamp",),
    "timestamp_ntz": ("timestamp_ntz",),
    "struct": ("struct",),
    "array": ("array",),
    "map": ("map", "struct"),
}
#: JSON writes times and bytes as strings, and ANY is a string in Spark: only here a string has its own type.
_AVROS_OWN: Final[dict[str, tuple[str, ...]]] = {
    "integer": _WHOLE,
    "long": _WHOLE,
    "float": (*_WHOLE, "float", "double"),
    "double": (*_WHOLE, "float", "double"),
    "decimal": (*_WHOLE, "decimal"),
    "string": ("string", "char", "varchar"),
    "binary": ("binary",),
}


def misfits(planned: Plan, rows: spark.StructType) -> list[str]:
    """The problems, with the names of columns."""
    try:
        wanted = type_of(planned)
    except SchemaError:
        # A recursive schema has no column type, but can be used for writing.
        return []
    if not isinstance(wanted, spark.StructType):
        return [f"the schema is {wanted.simpleString()}, not a record"]
    fitting = {**_FITTING, **_AVROS_OWN} if planned.schema.kind == AVRO else _FITTING
    present = set(rows.fieldNames())
    missing = [name for name in _needed(planned) if name not in present]
    return [
        *_compare(rows, wanted, "", fitting),
        *(f"the schema requires the field {name}, but there is no such column" for name in missing),
    ]


def _compare(
    given: spark.DataType, wanted: spark.DataType, path: str, fitting: dict[str, tuple[str, ...]]
) -> list[str]:
    if _is_choice(wanted):
        return []
    allowed = fitting.get(wanted.typeName())
    # A column of nulls fits everything; a time of day is written as a number.
    if allowed is not None and given.typeName() not in (*allowed, "void", "time"):
        return [f"column {path} is {given.simpleString()}, but the schema's field is {wanted.simpleString()}"]
    if isinstance(given, spark.StructType) and isinstance(wanted, spark.StructType):
        found: list[str] = []
        for field in given.fields:
            here = at(path, field.name)
            if field.name not in wanted.fieldNames():
                known = ", ".join(wanted.fieldNames())
                found.append(f"the schema has no field for column {here}: it has {known}")
            else:
                found += _compare(field.dataType, wanted[field.name].dataType, here, fitting)
        return found
    if isinstance(given, spark.ArrayType) and isinstance(wanted, spark.ArrayType):
        return _compare(given.elementType, wanted.elementType, f"{path}[]", fitting)
    if isinstance(given, spark.MapType) and isinstance(wanted, spark.MapType):
        return _compare(given.valueType, wanted.valueType, f"{path}{{}}", fitting)
    return []


def _is_choice(wanted: spark.DataType) -> bool:
    """A union of several types, which Spark sees as a struct: a column of any of its types fits."""
    return isinstance(wanted, spark.StructType) and "member0" in wanted.fieldNames()


def _needed(planned: Plan) -> list[str]:
    """The required fields."""
    if planned.schema.kind == AVRO:
        avro = avro_tree.parse(planned.schema)
        root = avro.resolve(avro.root)
        if avro_tree.kind_of(root) != "record":
            return []
        return [
            each["name"]
            for each in root["fields"]
            if "default" not in each
            and not (avro_tree.kind_of(each["type"]) == "union" and "null" in each["type"])
        ]
    if planned.schema.kind == JSON:
        return sorted(json_schema.parse(planned.schema).required)
    return []
