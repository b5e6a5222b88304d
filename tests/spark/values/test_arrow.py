"""What workers run, without Spark: Arrow arrays in and out."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

from ottla.spark.values import ValueWriter
from ottla.spark.values.avro import AvroWriter
from ottla.spark.values.codecs import Plan, plan
from ottla.spark.values.columns import decoding, each_value, encoding
from ottla.spark.values.faults import BadValue
from ottla.spark.values.registry import Location
from tests.spark.values.avro_schemas import avro, schemas_and_values
from tests.spark.values.registry_server import RegistryServer


@settings(max_examples=150)
@given(schemas_and_values(depth=3))
def test_whatever_avro_holds_is_the_same_bytes_after_it_was_in_columns(drawn: tuple[Any, Any]) -> None:
    schema, value = drawn
    planned = Plan(Location.of("http://127.0.0.1:9"), avro(schema))
    frame = AvroWriter(planned.schema).write(value)
    (decoded,) = decoding(planned, False, None)(iter([pa.array([frame, None, frame])]))
    (encoded,) = encoding(planned, False, None)(iter([decoded]))
    assert encoded.to_pylist() == [frame, None, frame]


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
    decode = decoding(plan(Location.of(registry.url), subject="d-value"), True, "why")
    (out,) = decode(iter([frames]))
    assert out.field("value").to_pylist() == [{"d": Decimal(1)}, None, {"d": Decimal(2)}]
    assert [reason and reason[:24] for reason in out.field("why").to_pylist()] == [
        None,
        "does not fit its column:",
        None,
    ]
