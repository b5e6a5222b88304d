"""Avro schemas ↔ Spark types. Used when a query is planned; needs pyspark, but no session.

Null, boolean, int, long, float, double, bytes, string, decimal, date and timestamps map directly. An enum is
a string, fixed is binary, a uuid is a string. A time of day is its number of milli- or microseconds. A union
of several types is a struct with one member set. An unsupported type raises a `SchemaError` that names the
field.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pyspark.sql import types as spark

from ottla.spark.values.avro_tree import Avro, branches, is_choice, kind_of, logical_of, widened
from ottla.spark.values.errors import SchemaError, at

_PLAIN: Final[dict[str, spark.DataType]] = {
    "boolean": spark.BooleanType(),
    "int": spark.IntegerType(),
    "long": spark.LongType(),
    "float": spark.FloatType(),
    "double": spark.DoubleType(),
    "bytes": spark.BinaryType(),
    "fixed": spark.BinaryType(),
    "string": spark.StringType(),
    "enum": spark.StringType(),
}
_LOGICAL: Final[dict[str, spark.DataType]] = {
    "int-date": spark.DateType(),
    "long-timestamp-millis": spark.TimestampType(),
    "long-timestamp-micros": spark.TimestampType(),
    "long-local-timestamp-millis": spark.TimestampNTZType(),
    "long-local-timestamp-micros": spark.TimestampNTZType(),
}
_TEXTS: Final[dict[type[spark.DataType], Any]] = {
    spark.BooleanType: "boolean",
    spark.ByteType: "int",
    spark.ShortType: "int",
    spark.IntegerType: "int",
    spark.LongType: "long",
    spark.FloatType: "float",
    spark.DoubleType: "double",
    spark.BinaryType: "bytes",
    spark.StringType: "string",
    spark.DateType: {"type": "int", "logicalType": "date"},
    spark.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    spark.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


def spark_type(avro: Avro) -> spark.DataType:
    """The column type for values of this schema."""
    entered: list[str] = []

    def of(node: Any, path: str) -> spark.DataType:
        node = avro.resolve(node)
        kind = kind_of(node)
        if kind == "union":
            return _of_union(node, path)
        if kind == "record":
            if node["name"] in entered:
                raise SchemaError(
                    f"{path}: {node['name']} is recursive, which no column can hold: use a schema without "
                    "that field"
                )
            entered.append(node["name"])
            fields = [
                spark.StructField(each["name"], of(each["type"], at(path, each["name"])))
                for each in node["fields"]
            ]
            entered.pop()
            return spark.StructType(fields)
        if kind == "array":
            return spark.ArrayType(of(node["items"], f"{path}[]"))
        if kind == "map":
            return spark.MapType(spark.StringType(), of(node["values"], f"{path}{{}}"))
        logical = logical_of(node) or ""
        if logical.endswith("-decimal"):
            if node["precision"] > 38:
                raise SchemaError(f"{path}: a decimal of {node['precision']} digits; Spark has at most 38")
            return spark.DecimalType(node["precision"], node.get("scale", 0))
        found = _LOGICAL.get(logical) or _PLAIN.get(kind)
        if found is None:
            raise SchemaError(f"{path or 'the schema'}: no column holds Avro's type {kind}")
        return found

    def _of_union(node: list[Any], path: str) -> spark.DataType:
        if is_choice(node):
            return spark.StructType(
                [
                    spark.StructField(f"member{place}", of(each, path))
                    for place, each in enumerate(branches(node))
                ]
            )
        if not branches(node):
            raise SchemaError(f"{path or 'the schema'}: no column holds null alone")
        return of(widened(node) or branches(node)[0], path)

    return of(avro.root, "")


def avro_schema(struct: spark.StructType, name: str) -> str:
    """Create an Avro schema for the rows of a DataFrame.

    Args:
        struct: The schema of the DataFrame.
        name: The full name of the Avro record.

    Returns:
        The schema as JSON text.

    Raises:
        SchemaError: A column has a type that Avro lacks.

    Example:
        >>> avro_schema(df.schema, "shop.Order")
    """

    def of(type_: spark.DataType, path: str) -> Any:
        if isinstance(type_, spark.StructType):
            # Each record needs a unique name: the names of the fields around it, joined.
            fields = [
                {
                    "name": each.name,
                    "type": optional(of(each.dataType, f"{path}_{each.name}")),
                    "default": None,
                }
                if each.nullable
                else {"name": each.name, "type": of(each.dataType, f"{path}_{each.name}")}
                for each in type_.fields
            ]
            return {"type": "record", "name": path, "fields": fields}
        if isinstance(type_, spark.ArrayType):
            items = of(type_.elementType, f"{path}_item")
            return {"type": "array", "items": optional(items) if type_.containsNull else items}
        if isinstance(type_, spark.MapType):
            if not isinstance(type_.keyType, spark.StringType):
                raise SchemaError(
                    f"{path}: keys of Avro maps are strings, not {type_.keyType.simpleString()}"
                )
            values = of(type_.valueType, f"{path}_value")
            return {"type": "map", "values": optional(values) if type_.valueContainsNull else values}
        if isinstance(type_, spark.DecimalType):
            return {
                "type": "bytes",
                "logicalType": "decimal",
                "precision": type_.precision,
                "scale": type_.scale,
            }
        found = _TEXTS.get(type(type_))
        if found is None:
            raise SchemaError(f"{path}: Avro has no type for {type_.simpleString()}")
        return found

    def optional(node: Any) -> Any:
        return ["null", node]

    return json.dumps(of(struct, name))
