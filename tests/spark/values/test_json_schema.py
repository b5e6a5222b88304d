import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.types import StructType

from ottla.spark.values.errors import BadValue, SchemaError
from ottla.spark.values.json_schema import JsonReader, JsonWriter, parse
from ottla.spark.values.registry import Schema
from ottla.spark.values.types import json_type
from ottla.spark.values.wire_format import header


def schema_of(schema: Any, references: tuple[tuple[str, Any], ...] = ()) -> Schema:
    return Schema(1, "JSON", json.dumps(schema), tuple((name, json.dumps(text)) for name, text in references))


def obj(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def column(schema: Any, *references: tuple[str, Any]) -> str:
    return json_type(parse(schema_of(schema, references))).simpleString()


def read(schema: Any, value: Any) -> Any:
    return JsonReader(schema_of(schema), columns=True).read(
        header(1) + json.dumps(value).encode(), schema_of(schema)
    )


def written(schema: Any, value: Any, *, columns: bool = True) -> Any:
    return json.loads(JsonWriter(schema_of(schema), columns=columns).write(value)[5:])


@pytest.mark.parametrize(
    ("schema", "type_"),
    [
        ({"type": "string"}, "string"),
        ({"type": "string", "format": "date-time"}, "string"),
        ({"type": "integer"}, "bigint"),
        ({"type": "number"}, "double"),
        ({"type": ["integer", "number"]}, "double"),
        ({"type": "boolean"}, "boolean"),
        ({"type": ["null", "integer"]}, "bigint"),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, "bigint"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "string"),
        ({"enum": ["a", "b"]}, "string"),
        ({"const": "a"}, "string"),
        ({}, "string"),
        (True, "string"),
        ({"type": ["string", "integer"]}, "string"),
        ({"type": "object"}, "string"),
        ({"type": "array"}, "array<string>"),
        ({"items": {"type": "integer"}}, "array<bigint>"),
        ({"type": "array", "items": [{"type": "integer"}]}, "array<string>"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "map<string,bigint>"),
        ({"properties": {"a": {"type": "integer"}}}, "struct<a:bigint>"),
        ({"allOf": [obj(a={"type": "integer"}), obj(b={"type": "string"})]}, "struct<a:bigint,b:string>"),
        ({"allOf": [obj(a={"type": "integer"})], **obj(b={"type": "string"})}, "struct<a:bigint,b:string>"),
        ({**obj(a={"$ref": "#/$defs/x~1y"}), "$defs": {"x/y": {"type": "integer"}}}, "struct<a:bigint>"),
        ({**obj(a={"$ref": "#n"}), "$defs": {"x": {"$anchor": "n", "type": "integer"}}}, "struct<a:bigint>"),
        (
            {**obj(a={"$ref": "#n"}), "definitions": {"x": {"$id": "#n", "type": "integer"}}},
            "struct<a:bigint>",
        ),
    ],
)
def test_the_column_of_a_schema(schema: Any, type_: str) -> None:
    assert column(schema) == type_


def test_references_to_other_schemas_of_the_registry() -> None:
    line = {"$defs": {"sku": {"type": "integer"}}, **obj(sku={"$ref": "#/$defs/sku"})}
    order = obj(first={"$ref": "line.json"}, sku={"$ref": "line.json#/$defs/sku"})
    assert column(order, ("line.json", line)) == "struct<first:struct<sku:bigint>,sku:bigint>"
    with pytest.raises(SchemaError, match=r"first: line\.json is not among the schema's references"):
        column(order)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$defs": {"t": obj(t={"$ref": "#/$defs/t"})}, "$ref": "#/$defs/t"}, "t: #/.*is recursive"),
        (obj(a={"$ref": "#/nowhere"}), "a: #/nowhere points at nothing"),
        (obj(a={"$ref": "#nowhere"}), "a: #nowhere points at nothing"),
        (obj(a={"type": "text"}), "a: JSON Schema has no type 'text'"),
        (obj(a=5), "a is not a JSON Schema"),
    ],
)
def test_a_schema_that_is_no_use_is_told(schema: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        column(schema)


ORDER = obj(
    "id",
    id={"type": "integer"},
    who={"type": ["string", "null"]},
    price={"type": "number"},
    tags={"type": "array", "items": {"type": "string"}},
    counts={"type": "object", "additionalProperties": {"type": "integer"}},
    more={},
)


def test_reading_is_lenient_about_what_a_column_can_bear() -> None:
    full = {
        "id": 1.0,
        "who": None,
        "price": 3,
        "tags": ["a", None],
        "counts": {"x": 1},
        "more": {"é": [1]},
        "extra": 1,
    }
    assert read(ORDER, full) == {
        "id": 1,
        "who": None,
        "price": 3.0,
        "tags": ["a", None],
        "counts": {"x": 1},
        "more": '{"é":[1]}',
    }
    assert read(ORDER, {}) == dict.fromkeys(ORDER["properties"])
    assert isinstance(json_type(parse(schema_of(ORDER))), StructType)


def test_programs_get_json_as_it_is() -> None:
    frame = header(1) + b'{"extra": 1.5, "id": "x"}'
    assert JsonReader(schema_of(ORDER)).read(frame, schema_of(ORDER)) == {"extra": 1.5, "id": "x"}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"id": "7"}, "id must be an integer of 64 bits, not str '7'"),
        ({"id": 1 << 63}, "id must be an integer of 64 bits"),
        ({"id": 1.5}, "id must be an integer"),
        ({"id": True}, "id must be an integer"),
        ({"who": 5}, "who must be a string"),
        ({"who": "\ud800"}, "who must be a string of Unicode"),
        ({"price": "x"}, "price must be a number"),
        ({"price": 10**400}, "price must be a number"),
        ({"counts": {"\ud800": "y"}}, r"counts\{\?\} must be an integer"),
        ({"more": ["\ud800"]}, "more must be a string of Unicode"),
        ({"tags": ["a", 1]}, r"tags\[1\] must be a string"),
        ({"tags": {}}, "tags must be an array"),
        ({"counts": {"x": "y"}}, r"counts\{x\} must be an integer"),
        ([], "the value must be an object"),
    ],
)
def test_what_cannot_be_of_its_columns_type_is_refused_by_name(value: Any, reason: str) -> None:
    with pytest.raises(BadValue, match=reason):
        read(ORDER, value)


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_not_json_is_told(payload: bytes) -> None:
    with pytest.raises(BadValue, match="not JSON"):
        JsonReader(schema_of(ORDER)).read(header(1) + payload, schema_of(ORDER))


def test_no_digit_is_lost() -> None:
    payload = b'{"id": 9007199254740993.0, "more": [0.12345678901234567890, {"x": 1.10}]}'
    out = JsonReader(schema_of(ORDER), columns=True).read(header(1) + payload, schema_of(ORDER))
    assert (out["id"], out["more"]) == (2**53 + 1, '[0.12345678901234567890,{"x":1.10}]')
    row = {"id": 1, "price": Decimal("0.12345678901234567890"), "more": out["more"]}
    assert JsonWriter(schema_of(ORDER), columns=True).write(row)[5:] == (
        b'{"id":1,"price":0.12345678901234567890,"more":[0.12345678901234567890,{"x":1.10}]}'
    )


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'{"price": 1e400}', "price must be a number within its column's range"),
        (b'{"price": 1e99999999999999999999}', "not JSON"),
        (b'{"id": 1e999999999999}', "id must be an integer"),
        (b'{"more": ' + b"[" * 990 + b"]" * 990 + b"}", "nested too deep"),
    ],
)
def test_numbers_and_depths_that_nobody_can_hold(payload: bytes, reason: str) -> None:
    with pytest.raises(BadValue, match=reason):
        JsonReader(schema_of(ORDER), columns=True).read(header(1) + payload, schema_of(ORDER))


def test_rows_are_written_as_json() -> None:
    row = {
        "id": 1,
        "who": None,
        "price": Decimal("2.5"),
        "tags": ["é"],
        "counts": [("x", 1)],
        "more": '{"a":[1]}',
    }
    assert written(ORDER, row) == {
        "id": 1,
        "who": None,
        "price": 2.5,
        "tags": ["é"],
        "counts": {"x": 1},
        "more": {"a": [1]},
    }
    assert written(ORDER, {"id": Decimal(7), "price": None}) == {"id": 7}, (
        "a null that is not allowed is left out"
    )
    assert written(ORDER, {"id": 1, "more": "text"}, columns=False) == {"id": 1, "more": "text"}
    texts = obj(a={"type": "string"}, b={"type": "string"}, c={"type": "string"})
    moment = datetime(2024, 1, 2, 3, tzinfo=UTC)
    assert written(texts, {"a": moment, "b": date(2024, 1, 2), "c": b"\x00"}) == {
        "a": "2024-01-02T03:00:00+00:00",
        "b": "2024-01-02",
        "c": "AA==",
    }


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({}, "id is missing, and the schema requires it"),
        ({"id": None}, "id is missing"),
        ({"id": 1, "other": 2}, "has no field other"),
        ({"id": "x"}, "id must be an integer"),
        ({"id": 1, "tags": [None]}, r"tags\[0\] must be of type string, not null"),
        ({"id": 1, "more": "{"}, "more must be JSON text"),
        ({"id": 1, "price": float("nan")}, "does not fit"),
        ({"id": 1, "price": Decimal("1e400")}, "price must be a number within"),
        ({"id": Decimal("1e400")}, "id must be an integer"),
        ({"id": Decimal("NaN")}, "id must be an integer"),
        ({"id": 1, "more": "[1e99999999999999999999]"}, "more must be JSON text"),
        ({"id": 1, "counts": 5}, "counts must be a map"),
        (5, "the value must be an object"),
    ],
)
def test_rows_that_do_not_fit_are_refused(value: Any, reason: str) -> None:
    with pytest.raises(BadValue, match=reason):
        written(ORDER, value)
