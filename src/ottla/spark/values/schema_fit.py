"""Whether rows of a type can be written with a schema at all: asked when a query is planned, so that it does not fail at its first row. Pure.

Only what no value of a column could mend is found: columns that the schema has no field for, fields that must be there and have no column, types that
never fit. Whether a number is small enough, or a text one of an enum's, is seen when it is written.
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
#: The types of columns that may hold what a field's type wants; what is not listed may be anything.
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
#: JSON writes times and bytes as texts, and what may be anything is a text to Spark: only here a text says what it is.
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
    """What is wrong, a text each, with the names of columns."""
    try:
        wanted = type_of(planned)
    except SchemaError:
        # A schema that holds itself has no type, and can be written with all the same.
        return []
    if not isinstance(wanted, spark.StructType):
        return [f"the schema is of {wanted.simpleString()}, and rows are written as records"]
    fitting = {**_FITTING, **_AVROS_OWN} if planned.schema.kind == AVRO else _FITTING
    present = set(rows.fieldNames())
    missing = [name for name in _needed(planned) if name not in present]
    return [
        *_compare(rows, wanted, "", fitting),
        *(f"the schema's field {name} must be there, and there is no such column" for name in missing),
    ]


def _compare(
    given: spark.DataType, wanted: spark.DataType, path: str, fitting: dict[str, tuple[str, ...]]
) -> list[str]:
    if _is_choice(wanted):
        return []
    allowed = fitting.get(wanted.typeName())
    # Nothing is known of a column of nulls; a time of day is written as a number.
    if allowed is not None and given.typeName() not in (*allowed, "void", "time"):
        return [f"column {path} is {given.simpleString()}, and the schema's field is {wanted.simpleString()}"]
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
    """A union of several types, to Spark a struct; any of them may be given as it is."""
    return isinstance(wanted, spark.StructType) and "member0" in wanted.fieldNames()


def _needed(planned: Plan) -> list[str]:
    """Fields that rows cannot leave out."""
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
