"""The worker functions without Spark: Arrow arrays in and out."""

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyspark import cloudpickle

from ottla.spark.values import ValueWriter, columns
from ottla.spark.values.avro import AvroWriter
from ottla.spark.values.codecs import Plan, SchemaOptions, plan
from ottla.spark.values.columns import FAIL_ON_BAD_VALUE, BadValueOptions, decoding, each_value, encoding
from ottla.spark.values.errors import BadValue
from ottla.spark.values.registry import Location, Schema
from ottla.spark.values.wire_format import header
from tests.spark.values.avro_schemas import avro, schemas_and_values
from tests.spark.values.registry_server import RegistryServer


@settings(max_examples=150)
@given(schemas_and_values(depth=3))
def test_whatever_avro_holds_is_the_same_bytes_after_it_was_in_columns(drawn: tuple[Any, Any]) -> None:
    schema, value = drawn
    planned = Plan(Location.of("http://127.0.0.1:9"), avro(schema))
    frame = AvroWriter(planned.schema).write(value)
    (decoded,) = decoding(planned, FAIL_ON_BAD_VALUE)(iter([pa.array([frame, None, frame])]))
    (encoded,) = encoding(planned, FAIL_ON_BAD_VALUE)(iter([decoded]))
    assert encoded.to_pylist() == [frame, None, frame]


def test_what_a_worker_has_asked_for_it_knows_in_the_next_task(registry: RegistryServer) -> None:
    def schema(type_: str) -> dict[str, Any]:
        return {"type": "record", "name": "N", "fields": [{"name": "n", "type": type_}]}

    old = registry.add("n-value", schema("int"))
    frames = pa.array([ValueWriter(registry.url, "n-value").write({"n": 1})])
    registry.add("n-value", schema("long"))
    planned = plan(Location.of(registry.url), SchemaOptions(subject="n-value"))
    # As Spark sends them, anew with each task.
    sent = [cloudpickle.dumps(make(planned, FAIL_ON_BAD_VALUE)) for make in (decoding, encoding)]
    registry.asked.clear()
    for _task in range(2):
        decode, encode = map(cloudpickle.loads, sent)
        (rows,) = decode(iter([frames]))
        assert rows.to_pylist() == [{"n": 1}]
        assert next(encode(iter([rows]))).to_pylist()[0][5:] == b"\x02"
    assert registry.asked == [f"GET /schemas/ids/{old}"]
    assert columns._writers[planned] is columns.kept_writer(planned)


def test_maps_are_written_as_objects_wherever_they_stand() -> None:
    schema = {"type": "object", "properties": {"more": {}}}
    planned = Plan(Location.of("http://127.0.0.1:9"), Schema(1, "JSON", json.dumps(schema)))
    of = pa.struct([("more", pa.list_(pa.map_(pa.string(), pa.int64())))])
    rows = pa.array([{"more": [[("a", 1)], []]}], of)
    (out,) = encoding(planned, FAIL_ON_BAD_VALUE)(iter([rows]))
    assert out.to_pylist()[0][5:] == b'{"more":[{"a":1},{}]}'
    # Keys that are no texts in any format: pairs, instead of a task that ends.
    strange = pa.struct([("more", pa.map_(pa.struct([("k", pa.int64())]), pa.int64()))])
    (out,) = encoding(planned, FAIL_ON_BAD_VALUE)(iter([pa.array([{"more": [({"k": 1}, 2)]}], strange)]))
    assert out.to_pylist()[0][5:] == b'{"more":[[{"k":1},2]]}'


def test_whatever_a_row_holds_its_reason_can_be_told() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    planned = Plan(Location.of("http://127.0.0.1:9"), Schema(1, "JSON", json.dumps(schema)))
    texts = [b'{"\\ud800": "x"}', b'{"\\ud800": 1}', b'{"a": 1e99999999999999999999}', b'{"a": 1}']
    frames = pa.array([header(1) + text for text in texts])
    (out,) = decoding(planned, BadValueOptions(True, "why"))(iter([frames]))
    assert out.field("value").to_pylist() == [None, None, None, [("a", 1)]]
    assert [reason is None for reason in out.field("why").to_pylist()] == [False, False, False, True]


def test_reasons_stand_at_their_rows() -> None:
    def double(value: int) -> int:
        if value < 0:
            raise BadValue(f"{value} is bad")
        return value * 2

    assert each_value(double, [1, -1, None, -2], True) == (
        [2, None, None, None],
        {1: "-1 is bad", 3: "-2 is bad"},
    )
    with pytest.raises(BadValue):
        each_value(double, [1, -1], False)


def test_a_value_too_large_for_its_column_is_found_among_good_ones(registry: RegistryServer) -> None:
    """The writer's decimals may have more digits than the reader's schema has room for."""

    def schema(precision: int) -> dict[str, Any]:
        decimal = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 0}
        return {"type": "record", "name": "D", "fields": [{"name": "d", "type": decimal}]}

    registry.add("d-value", schema(9))
    writer = ValueWriter(registry.url, "d-value")
    registry.add("d-value", schema(3))
    frames = pa.array([writer.write({"d": Decimal(n)}) for n in (1, 123456, 2)])
    decode = decoding(
        plan(Location.of(registry.url), SchemaOptions(subject="d-value")), BadValueOptions(True, "why")
    )
    (out,) = decode(iter([frames]))
    assert out.field("value").to_pylist() == [{"d": Decimal(1)}, None, {"d": Decimal(2)}]
    assert [reason and reason[:24] for reason in out.field("why").to_pylist()] == [
        None,
        "does not fit its column:",
        None,
    ]
