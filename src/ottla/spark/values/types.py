"""Spark types of JSON Schema and Protobuf. Used when a query is planned; needs pyspark, but no session."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import types as spark

from ottla.spark.values.errors import SchemaError, at
from ottla.spark.values.json_schema import Node
from ottla.spark.values.protobuf import DURATION, TEXTS, TIMESTAMP, WRAPPERS, entry_of, is_map

_JSON: Final[dict[str, spark.DataType]] = {
    "string": spark.StringType(),
    "integer": spark.LongType(),
    "number": spark.DoubleType(),
    "boolean": spark.BooleanType(),
    "any": spark.StringType(),
}


def json_type(node: Node) -> spark.DataType:
    if node.kind == "object":
        return spark.StructType(
            [spark.StructField(name, json_type(each)) for name, each in node.fields.items()]
        )
    if node.inner is not None:
        inner = json_type(node.inner)
        return spark.ArrayType(inner) if node.kind == "array" else spark.MapType(spark.StringType(), inner)
    return _JSON[node.kind]


def protobuf_type(descriptor: Any, path: str = "", entered: tuple[str, ...] = ()) -> spark.StructType:
    if descriptor.full_name in entered:
        raise SchemaError(
            f"{path}: {descriptor.full_name} is recursive, which no column can hold: use a schema without "
            "that field"
        )
    inside = (*entered, descriptor.full_name)
    fields = []
    for field in descriptor.fields:
        here = at(path, field.name)
        of: spark.DataType
        if is_map(field):
            key, value = (_protobuf_field(each, f"{here}{{}}", inside) for each in entry_of(field))
            of = spark.MapType(key, value)
        elif field.is_repeated:
            of = spark.ArrayType(_protobuf_field(field, f"{here}[]", inside))
        else:
            of = _protobuf_field(field, here, inside)
        fields.append(spark.StructField(field.name, of))
    return spark.StructType(fields)


def _protobuf_field(field: Any, path: str, entered: tuple[str, ...]) -> spark.DataType:
    if field.enum_type is not None:
        return spark.StringType()
    if field.message_type is None:
        return _PROTOBUF[field.cpp_type] if field.type != field.TYPE_BYTES else spark.BinaryType()
    name = field.message_type.full_name
    if name == TIMESTAMP:
        return spark.TimestampType()
    if name == DURATION:
        return spark.DayTimeIntervalType()
    if name in WRAPPERS:
        return _protobuf_field(field.message_type.fields_by_name["value"], path, entered)
    if name in TEXTS:
        return spark.StringType()
    return protobuf_type(field.message_type, path, entered)


#: By `FieldDescriptor.cpp_type`.
_PROTOBUF: Final[dict[int, spark.DataType]] = {
    1: spark.IntegerType(),
    2: spark.LongType(),
    3: spark.LongType(),
    4: spark.DecimalType(20, 0),
    5: spark.DoubleType(),
    6: spark.FloatType(),
    7: spark.BooleanType(),
    9: spark.StringType(),
}
