"""Values that confluent-kafka's own serializers write are read here, and the other way round: Avro, JSON Schema and Protobuf."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory

from ottla.spark.values import ValueReader, ValueWriter
from ottla.spark.values.protobuf_schema import files_of
from ottla.spark.values.registry import Schema as OurSchema
from tests.spark.values.registry_server import RegistryServer, serving

CONTEXT = SerializationContext("orders", MessageField.VALUE)
SUBJECT = "orders-value"

AVRO = """{"type": "record", "name": "Order", "namespace": "shop", "fields": [
  {"name": "id", "type": "long"},
  {"name": "who", "type": ["null", "string"], "default": null},
  {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
  {"name": "day", "type": {"type": "int", "logicalType": "date"}},
  {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
  {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
  {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
  {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}}},
  {"name": "counts", "type": {"type": "map", "values": "int"}},
  {"name": "choice", "type": ["int", "string"]}
]}"""
AVRO_VALUE = {
    "id": 2**60,
    "who": "ann",
    "price": Decimal("-3.50"),
    "day": date(1969, 1, 1),
    "at": datetime(2024, 2, 29, 12, 30, 15, 123000, UTC),
    "key": UUID(int=5),
    "state": "PAID",
    "lines": [{"sku": "a"}, {"sku": "ü"}],
    "counts": {"x": -1},
    "choice": "y",
}
JSON = """{"$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object", "required": ["id"],
  "properties": {"id": {"type": "integer"}, "who": {"type": ["string", "null"]}, "tags": {"type": "array", "items": {"type": "string"}}}}"""
JSON_VALUE = {"id": 7, "who": None, "tags": ["é"]}
PROTO = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message First { int64 id = 1; }
message Order {
  message Deep { message Deeper { string text = 1; } Deeper deeper = 1; }
  int64 id = 1;
  repeated Deep deeps = 2;
  map<string, int32> counts = 3;
  google.protobuf.Timestamp at = 4;
  oneof pay { string card = 5; int32 cash = 6; }
}
"""
PROTO_VALUE = {
    "id": 7,
    "deeps": [{"deeper": {"text": "x"}}, {"deeper": None}],
    "counts": {"a": 1},
    "at": datetime(2024, 2, 29, 12, tzinfo=UTC),
    "card": None,
    "cash": 5,
}


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with serving(RegistryServer(gives_compiled=True)) as server:
        yield server


@pytest.fixture
def client(registry: RegistryServer) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as client:
        yield client


def test_avro(registry: RegistryServer, client: SchemaRegistryClient) -> None:
    theirs = AvroSerializer(client, AVRO)(AVRO_VALUE, CONTEXT)
    assert ValueReader(registry.url, subject=SUBJECT).read(theirs) == AVRO_VALUE
    ours = ValueWriter(registry.url, SUBJECT).write(AVRO_VALUE)
    assert ours == theirs, "byte for byte"
    assert AvroDeserializer(client)(ours, CONTEXT) == AVRO_VALUE


def test_avro_with_a_reference(registry: RegistryServer, client: SchemaRegistryClient) -> None:
    line = '{"type": "record", "name": "Line", "namespace": "shop", "fields": [{"name": "sku", "type": "string"}]}'
    order = '{"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "line", "type": "Line"}]}'
    registry.add("line", line)
    registry.add(SUBJECT, order, references=[("shop.Line", "line", 1)])
    latest = client.get_latest_version(SUBJECT).schema
    assert isinstance(latest, Schema)
    value = {"line": {"sku": "x"}}
    settings = {"auto.register.schemas": False, "use.latest.version": True}
    theirs = AvroSerializer(client, latest, conf=settings)(value, CONTEXT)
    assert ValueReader(registry.url, subject=SUBJECT).read(theirs) == value
    assert AvroDeserializer(client)(ValueWriter(registry.url, SUBJECT).write(value), CONTEXT) == value


def test_json_schema(registry: RegistryServer, client: SchemaRegistryClient) -> None:
    theirs = JSONSerializer(JSON, client)(JSON_VALUE, CONTEXT)
    assert ValueReader(registry.url, subject=SUBJECT).read(theirs) == JSON_VALUE
    ours = ValueWriter(registry.url, SUBJECT).write(JSON_VALUE)
    assert JSONDeserializer(JSON, schema_registry_client=client)(ours, CONTEXT) == JSON_VALUE


@pytest.mark.parametrize(
    ("name", "value"),
    [("shop.First", {"id": 3}), ("shop.Order", PROTO_VALUE), ("shop.Order.Deep.Deeper", {"text": "y"})],
)
def test_protobuf(
    registry: RegistryServer, client: SchemaRegistryClient, name: str, value: dict[str, Any]
) -> None:
    descriptor = files_of(OurSchema(1, "PROTOBUF", PROTO)).message(name)
    message_class = message_factory.GetMessageClass(descriptor)
    registry.add(SUBJECT, PROTO, "PROTOBUF")
    ours = ValueWriter(registry.url, SUBJECT, message=name).write(value)
    read = ProtobufDeserializer(message_class, {"use.deprecated.format": False}, client)(ours, CONTEXT)
    assert read is not None and read.DESCRIPTOR.full_name == name

    # Where nothing is registered they register the compiled file, in base64, not its source.
    with serving(RegistryServer()) as fresh, SchemaRegistryClient({"url": fresh.url}) as other:
        theirs = ProtobufSerializer(message_class, other, {"use.deprecated.format": False})(read, CONTEXT)
        assert theirs is not None and theirs[5:] == ours[5:], "but for the id, byte for byte"
        assert ";" not in fresh.schemas[fresh.subjects[SUBJECT][0]]["schema"]
        assert ValueReader(fresh.url, subject=SUBJECT, message=name).read(theirs) == value
