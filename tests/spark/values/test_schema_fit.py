import json

import pytest
from pyspark.sql.types import StructType

from ottla.spark.values.codecs import SchemaOptions, plan
from ottla.spark.values.registry import Location
from ottla.spark.values.schema_fit import misfits

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "who", "type": ["null", "string"], "default": None},
            {"name": "state", "type": {"type": "enum", "name": "S", "symbols": ["A"]}, "default": "A"},
            {"name": "price", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
            {"name": "choice", "type": ["null", "long", "string"]},
            {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "L", "fields": [{"name": "n", "type": "int"}]}}, "default": []},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}, "default": 0},
        ],
    }
)  # fmt: skip
JSON = json.dumps(
    {
        "type": "object",
        "required": ["id"],
        "properties": {"id": {"type": "integer"}, "at": {"type": "string"}, "tags": {"type": "object", "additionalProperties": {"type": "number"}}, "any": {}},
    }
)  # fmt: skip
PROTO = 'syntax = "proto3"; package p; message O { int64 id = 1; bool on = 2; repeated string tags = 3; E e = 4; O same = 5; } enum E { A = 0; }'
FLAT = 'syntax = "proto3"; package p; message O { int64 id = 1; bool on = 2; repeated string tags = 3; E e = 4; } enum E { A = 0; }'

#: Spark reads the texts of types.
pytestmark = pytest.mark.usefixtures("spark")


def found(kind: str, schema: str, columns: str) -> list[str]:
    planned = plan(Location.of("http://127.0.0.1:9"), SchemaOptions(schema=schema, schema_type=kind))
    return misfits(planned, StructType.fromDDL(columns))


@pytest.mark.parametrize(
    ("kind", "schema", "columns"),
    [
        ("AVRO", AVRO, "id BIGINT"),
        ("AVRO", AVRO, "id INT, who STRING, state STRING, price DECIMAL(5,1), choice STRING, lines ARRAY<STRUCT<n: INT>>, at TIMESTAMP"),
        ("AVRO", AVRO, "id BIGINT, price INT, choice STRUCT<member0: BIGINT, member1: STRING>, who VOID"),
        ("JSON", JSON, "id DECIMAL(5,0), at TIMESTAMP, tags MAP<STRING, DOUBLE>, any STRING"),
        ("JSON", JSON, "id INT, at BINARY, tags STRUCT<a: INT>, any ARRAY<INT>"),
        ("PROTOBUF", FLAT, "id INT, on BOOLEAN, tags ARRAY<STRING>, e INT"),
        ("PROTOBUF", FLAT, "e STRING"),
        # Nothing is known of a type that is recursive.
        ("PROTOBUF", PROTO, "id BIGINT, nope INT"),
    ],
)  # fmt: skip
def test_what_may_fit_is_left_to_its_values(kind: str, schema: str, columns: str) -> None:
    assert found(kind, schema, columns) == []


@pytest.mark.parametrize(
    ("kind", "schema", "columns", "said"),
    [
        ("AVRO", AVRO, "who STRING", ["the schema requires the field id, but there is no such column"]),
        ("AVRO", AVRO, "id STRING", ["column id is string, but the schema's field is bigint"]),
        ("AVRO", AVRO, "id DOUBLE", ["column id is double, but the schema's field is bigint"]),
        ("AVRO", AVRO, "id BIGINT, who INT", ["column who is int, but the schema's field is string"]),
        ("AVRO", AVRO, "id BIGINT, at TIMESTAMP_NTZ", ["column at is timestamp_ntz, but the schema's field is timestamp"]),
        ("AVRO", AVRO, "id BIGINT, lines ARRAY<STRUCT<n: INT, m: INT>>", ["the schema has no field for column lines[].m: it has n"]),
        ("AVRO", AVRO, "id BIGINT, more INT", ["the schema has no field for column more: it has id, who, state, price, choice, lines, at"]),
        ("JSON", JSON, "at STRING", ["the schema requires the field id, but there is no such column"]),
        ("JSON", JSON, "id STRING, tags MAP<STRING, STRING>",
         ["column id is string, but the schema's field is bigint", "column tags{} is string, but the schema's field is double"]),
        ("PROTOBUF", FLAT, "id STRING, on INT, tags STRING",
         ["column id is string, but the schema's field is bigint", "column on is int, but the schema's field is boolean",
          "column tags is string, but the schema's field is array<string>"]),
        ("AVRO", '"string"', "id STRING", ["the schema is string, not a record"]),
    ],
)  # fmt: skip
def test_what_no_value_can_mend_is_told(kind: str, schema: str, columns: str, said: list[str]) -> None:
    assert found(kind, schema, columns) == said
