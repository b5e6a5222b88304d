import json
from typing import Any

import pytest
from pyspark.sql.types import DataType, StructType

from ottla.spark.values import avro_schema
from ottla.spark.values.avro import AvroReader
from ottla.spark.values.avro_types import spark_type
from ottla.spark.values.errors import SchemaError
from ottla.spark.values.registry import Schema


def column(schema: Any) -> str:
    return spark_type(AvroReader(Schema(1, "AVRO", json.dumps(schema)), columns=True).avro).simpleString()


def logical(base: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": name, **more}


FIXED = {"type": "fixed", "name": "F", "size": 16}


@pytest.mark.parametrize(
    ("schema", "type_"),
    [
        ("boolean", "boolean"),
        ("int", "int"),
        ("long", "bigint"),
        ("float", "float"),
        ("double", "double"),
        ("bytes", "binary"),
        ("string", "string"),
        (FIXED, "binary"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        (["null", "int"], "int"),
        (["int"], "int"),
        (["int", "null", "long"], "bigint"),
        (["float", "double"], "double"),
        (["null", "int", "string"], "struct<member0:int,member1:string>"),
        ({"type": "array", "items": ["null", "int"]}, "array<int>"),
        ({"type": "map", "values": "long"}, "map<string,bigint>"),
        (logical("int", "date"), "date"),
        (logical("long", "timestamp-millis"), "timestamp"),
        (logical("long", "timestamp-micros"), "timestamp"),
        (logical("long", "timestamp-nanos"), "bigint"),
        (logical("long", "local-timestamp-micros"), "timestamp_ntz"),
        (logical("int", "time-millis"), "int"),
        (logical("string", "uuid"), "string"),
        (logical("bytes", "decimal", precision=10, scale=2), "decimal(10,2)"),
        ({**FIXED, "logicalType": "decimal", "precision": 38}, "decimal(38,0)"),
        (logical("string", "decimal", precision=10), "string"),
        ({"type": "record", "name": "R", "fields": [{"name": "f", "type": FIXED}, {"name": "g", "type": "F"}]}, "struct<f:binary,g:binary>"),
    ],
)  # fmt: skip
def test_the_column_of_a_schema(schema: Any, type_: str) -> None:
    assert column(schema) == type_


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "record", "name": "R", "fields": [{"name": "f", "type": ["null", "R"]}]}, "f: R is recursive"),
        ({"type": "record", "name": "R", "fields": [{"name": "f", "type": ["int", "string", "R"]}]}, "R is recursive"),
        ({"type": "record", "name": "R", "fields": [{"name": "f", "type": "null"}]}, "f: no column holds Avro's type null"),
        ({"type": "map", "values": ["null"]}, "{}: no column holds null alone"),
        (logical("bytes", "decimal", precision=39), "at most 38"),
    ],
)  # fmt: skip
def test_what_no_column_holds_is_told(schema: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        column(schema)


def struct_of(ddl: str) -> StructType:
    struct = DataType.fromDDL(ddl)
    assert isinstance(struct, StructType)
    return struct


# Spark itself reads the text of types.
@pytest.mark.usefixtures("spark")
def test_a_schema_for_the_rows_of_a_frame_has_the_same_columns() -> None:
    struct = struct_of(
        "id bigint not null, d decimal(9,2), at timestamp, ntz timestamp_ntz, day date, b binary, s string, ok boolean, "
        "f float, g double, i int, tags array<string>, m map<string, struct<x: int, y: array<struct<z: string>>>>, "
        "inner struct<x: struct<x: int>>"
    )
    assert column(json.loads(avro_schema(struct, "shop.Order"))) == struct.simpleString()
    fields = json.loads(avro_schema(struct, "shop.Order"))["fields"]
    assert fields[0] == {"name": "id", "type": "long"}
    assert fields[6] == {"name": "s", "type": ["null", "string"], "default": None}


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("a map<int, string>", "o_a: keys of Avro maps are strings"),
        ("a interval day to second", "Avro has no type"),
    ],
)
def test_types_that_avro_has_not_are_told(ddl: str, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        avro_schema(struct_of(ddl), "o")
