import json
import subprocess
import sys
from typing import Any

import pytest

from ottla.spark.values import BadValue, RegistryError, ValueReader, ValueWriter
from ottla.spark.values.wire_format import header
from tests.spark.values.registry_server import RegistryServer, serving

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
NEWER = {**ORDER, "fields": [*ORDER["fields"], {"name": "who", "type": "string", "default": "-"}]}
JSON = {"type": "object", "properties": {"id": {"type": "integer"}}}
PROTO = 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message Order { int64 id = 1; google.protobuf.Timestamp at = 2; }'


@pytest.mark.parametrize(
    ("kind", "schema", "value"),
    [("AVRO", ORDER, {"id": 7}), ("JSON", JSON, {"id": 7}), ("PROTOBUF", PROTO, {"id": 7, "at": None})],
)
def test_a_program_writes_and_reads(registry: RegistryServer, kind: str, schema: Any, value: Any) -> None:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    writer = ValueWriter(registry.url, "orders-value", schema=text, schema_type=kind)
    frame = writer.write(value)
    assert ValueReader(registry.url, subject="orders-value").read(frame) == value
    assert ValueReader(registry.url, schema=text, schema_type=kind).read(frame) == value
    assert ValueReader(registry.url, schema_id=registry.subjects["orders-value"][0]).read(frame) == value
    assert ValueReader(registry.url, subject="orders-value").read(None) is None


def test_versions_meet(registry: RegistryServer) -> None:
    registry.add("orders-value", ORDER)
    old = ValueWriter(registry.url, "orders-value").write({"id": 1})
    registry.add("orders-value", NEWER)
    new = ValueWriter(registry.url, "orders-value").write({"id": 2, "who": "ann"})
    reader = ValueReader(registry.url, subject="orders-value")
    assert [reader.read(old), reader.read(new)] == [{"id": 1, "who": "-"}, {"id": 2, "who": "ann"}]
    assert ValueReader(registry.url, subject="orders-value", version=1).read(new) == {"id": 2}


def test_no_schema_is_asked_for_twice_not_even_one_that_is_not_there(registry: RegistryServer) -> None:
    old_id = registry.add("orders-value", ORDER)
    old = ValueWriter(registry.url, "orders-value").write({"id": 1})
    registry.add("orders-value", NEWER)
    reader = ValueReader(registry.url, subject="orders-value")
    registry.asked.clear()
    for _ in range(50):
        reader.read(old)
        with pytest.raises(BadValue, match="unknown schema id 7"):
            reader.read(header(7))
    assert registry.asked == [f"GET /schemas/ids/{old_id}", "GET /schemas/ids/7"]


def test_a_schema_of_another_kind_is_refused(registry: RegistryServer) -> None:
    registry.add("orders-value", ORDER)
    other = registry.add("other", JSON, "JSON")
    with pytest.raises(BadValue, match=f"written with schema {other} of type JSON, but AVRO is expected"):
        ValueReader(registry.url, subject="orders-value").read(header(other) + b"{}")


def test_a_schema_that_is_no_use_is_that_values_fault(registry: RegistryServer) -> None:
    registry.add("orders-value", ORDER)
    strange = registry.add("strange", "{")
    with pytest.raises(BadValue, match=f"schema {strange} cannot be used: not an Avro schema"):
        ValueReader(registry.url, subject="orders-value").read(header(strange) + b"\x02")


def test_a_registry_that_fails_is_nobodys_bad_value(registry: RegistryServer) -> None:
    registry.add("orders-value", ORDER)
    other = registry.add("orders-value", NEWER)
    reader = ValueReader(registry.url, subject="orders-value", version=1)
    registry.failing = [400]
    with pytest.raises(RegistryError, match="status 400"):
        reader.read(header(other) + b"\x02\x02x")
    assert reader.read(header(other) + b"\x02\x02x") == {"id": 1}, "and the next attempt asks again"


def test_a_registry_that_gives_compiled_protobuf_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    line = 'syntax = "proto3"; package shop; message Line { string sku = 1; }'
    order = 'syntax = "proto3"; package shop; import "shop/line.proto"; import "google/protobuf/timestamp.proto"; message Order { Line line = 1; google.protobuf.Timestamp at = 2; }'
    with serving(RegistryServer(gives_compiled=True)) as registry:
        registry.add("line", line, "PROTOBUF")
        registry.add("orders-value", order, "PROTOBUF", [("shop/line.proto", "line", 1)])
        # The compiler stays with the server, which runs in this process: only what is asked for here may not use it.
        answers = {path: registry.answer("GET", path, None) for path in _protobuf_paths()}
        monkeypatch.setattr(registry, "answer", lambda _method, path, _body: answers[path])
        monkeypatch.setattr("ottla.spark.values.protobuf_schema._compile", None)
        value = {"line": {"sku": "x"}, "at": None}
        frame = ValueWriter(registry.url, "orders-value").write(value)
        assert ValueReader(registry.url, subject="orders-value").read(frame) == value


def _protobuf_paths() -> list[str]:
    return [
        "/subjects/orders-value/versions/latest",
        "/schemas/ids/102?subject=orders-value&format=serialized",
        "/subjects/line/versions/1",
        "/subjects/line/versions/1?format=serialized",
    ]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({}, "none is given"),
        ({"subject": "a", "schema_id": 1}, "subject and schema_id are given"),
        ({"schema_id": 1, "version": 2}, "version 2 needs subject"),
        ({"schema": "x", "schema_type": "XML"}, "schema_type must be one of"),
        ({"schema": '"int"', "message": "M"}, "message 'M' needs a Protobuf schema"),
    ],
)
def test_bad_arguments_are_told(registry: RegistryServer, schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ValueReader(registry.url, **schema)
    assert registry.asked == []


def test_programs_need_no_spark() -> None:
    code = "import sys, ottla.spark.values as v; v.ValueReader; print([m for m in ('pyspark', 'pyarrow', 'google.protobuf') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
