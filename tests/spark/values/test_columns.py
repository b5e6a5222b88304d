import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import col, struct

from ottla.spark.values import ValueWriter, avro_schema, from_json_value, from_registry, to_registry
from ottla.spark.values.wire_format import header
from tests.spark.values.registry_server import RegistryServer

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "choice", "type": ["null", "int", "string"], "default": None},
    ],
}  # fmt: skip
ORDER: dict[str, Any] = {
    "id": 1,
    "who": None,
    "price": Decimal("3.50"),
    "at": datetime(2024, 2, 29, 12, tzinfo=UTC),
    "day": date(2024, 2, 29),
    "key": "00000000-0000-0000-0000-000000000005",
    "state": "PAID",
    "lines": [{"sku": "a"}],
    "counts": {"x": 1},
    "choice": "y",
}


@pytest.fixture(autouse=True)
def _in_utc(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    # Another zone than that of Avro, and than this machine's.
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    yield
    spark.conf.set("spark.sql.session.timeZone", str(before))


def frame_of(spark: SparkSession, *values: bytes | None) -> Any:
    return spark.createDataFrame([(value,) for value in values], "value binary").coalesce(1)


def test_good_rows_are_decoded_bad_ones_told_and_all_encoded_again(
    spark: SparkSession, registry: RegistryServer
) -> None:
    schema_id = registry.add("orders-value", SCHEMA)
    good = ValueWriter(registry.url, "orders-value").write(ORDER)
    rows = frame_of(spark, good, None, b"xy", header(1), good[:-1], good + b"z")
    decoded = rows.select(
        from_registry(col("value"), registry.url, subject="orders-value", error_column="why").alias("d")
    )
    out = decoded.select(
        "d.value.*",
        "d.why",
        col("d.value.at").cast("long").alias("epoch"),
        to_registry("d.value", registry.url, "orders-value").alias("again"),
    ).collect()
    moment = ORDER["at"]
    assert out[0].epoch == moment.timestamp(), "an instant, whatever the session's zone"
    assert [out[0][name] for name in ("id", "who", "price", "day", "key", "state", "counts", "why")] == [
        *(1, None, Decimal("3.50"), date(2024, 2, 29), ORDER["key"], "PAID", {"x": 1}, None)
    ]
    assert out[0].lines == [Row(sku="a")] and out[0].choice == Row(member0=None, member1="y")
    assert [row.again for row in out] == [good, None, None, None, None, None]
    assert [row.id for row in out[1:]] == [None] * 5
    assert out[1].why is None, "a tombstone is no mistake"
    reasons = [
        "truncated: 2 bytes",
        "unknown schema id 1",
        f"value of schema {schema_id}",
        "1 extra bytes",
    ]
    for row, reason in zip(out[2:], reasons, strict=True):
        assert reason in row.why


def test_a_bad_row_ends_the_query_or_is_null_as_told(spark: SparkSession, registry: RegistryServer) -> None:
    registry.add("orders-value", SCHEMA)
    rows = frame_of(spark, b"{}xyz")
    quiet = rows.select(
        from_registry("value", registry.url, subject="orders-value", mode="permissive").alias("d")
    )
    assert quiet.collect() == [Row(d=None)]
    with pytest.raises(PythonException, match="the first byte is 123, not the magic byte 0"):
        rows.select(from_registry("value", registry.url, subject="orders-value")).collect()


def test_versions_are_told_apart_and_asked_for_once_a_worker(
    spark: SparkSession, registry: RegistryServer
) -> None:
    old_id = registry.add(
        "n-value", {"type": "record", "name": "N", "fields": [{"name": "n", "type": "int"}]}
    )
    old = ValueWriter(registry.url, "n-value").write({"n": 1})
    new_fields = [{"name": "n", "type": "long"}, {"name": "m", "type": "string", "default": "-"}]
    registry.add("n-value", {"type": "record", "name": "N", "fields": new_fields})
    new = ValueWriter(registry.url, "n-value").write({"n": 2, "m": "x"})
    rows = frame_of(spark, *[old, new] * 200)
    registry.asked.clear()
    out = rows.select(from_registry("value", registry.url, subject="n-value").alias("v")).groupBy("v").count()
    assert sorted((row.v.n, row.v.m, row["count"]) for row in out.collect()) == [(1, "-", 200), (2, "x", 200)]
    assert registry.asked == ["GET /subjects/n-value/versions/latest", f"GET /schemas/ids/{old_id}"]


def test_protobuf_and_json(spark: SparkSession, registry: RegistryServer) -> None:
    proto = """syntax = "proto3"; import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";
        message P { map<string, Q> qs = 1; oneof o { string a = 2; uint64 b = 3; } google.protobuf.Timestamp at = 4;
        google.protobuf.Duration took = 5; enum E { X = 0; Y = 1; } repeated E es = 6; message Q { bytes raw = 1; } }"""
    value = {
        "qs": {"k": {"raw": b"\0"}},
        "b": Decimal(2**64 - 1),
        "at": ORDER["at"],
        "took": timedelta(1),
        "es": ["Y"],
    }
    frames = [ValueWriter(registry.url, "p", schema=proto, schema_type="PROTOBUF").write(value)]
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "more": {}}}
    frames.append(
        ValueWriter(registry.url, "j", schema=json.dumps(schema), schema_type="JSON").write(
            {"n": 1, "more": [1]}
        )
    )
    rows = spark.createDataFrame([tuple(frames)], "p binary, j binary")
    both = rows.select(
        from_registry("p", registry.url, subject="p").alias("dp"),
        from_registry("j", registry.url, subject="j").alias("dj"),
    )
    (row,) = both.select(
        "*",
        to_registry("dp", registry.url, "p").alias("p"),
        to_registry("dj", registry.url, "j").alias("j"),
        col("dp.at").cast("long").alias("epoch"),
    ).collect()
    assert row.dp.qs == {"k": Row(raw=b"\0")} and (row.dp.a, row.dp.b, row.dp.es) == (
        None,
        Decimal(2**64 - 1),
        ["Y"],
    )
    assert (row.dp.took, row.epoch) == (timedelta(1), value["at"].timestamp())
    assert row.dj == Row(n=1, more="[1]")
    assert [row.p, row.j] == frames


def test_rows_of_a_frame_are_written_with_a_schema_of_their_own(
    spark: SparkSession, registry: RegistryServer
) -> None:
    rows = spark.sql(
        "select 1L id, named_struct('x', array(1.5bd)) inner, timestamp'2024-01-01' at, cast(null as string) s"
    )
    text = avro_schema(rows.schema, "shop.Row")
    value = to_registry(struct("s", "at", "id", "inner"), registry.url, "rows-value", schema=text)
    (back,) = rows.select("*", from_registry(value, registry.url, subject="rows-value").alias("v")).collect()
    assert (back.v.id, back.v.inner, back.v.at, back.v.s) == (1, back.inner, back.at, None), (
        "by name, not by place"
    )
    bad = to_registry(
        struct("s", "at", "id", "inner", col("id").alias("other")),
        registry.url,
        "rows-value",
        error_column="why",
    )
    (told,) = rows.select(bad.alias("b")).select("b.*").collect()
    assert told.value is None and "has no field other" in told.why


def test_json_without_a_registry(spark: SparkSession) -> None:
    ddl = "id int, at timestamp, price decimal(9,2), tags array<string>, inner struct<ok: boolean>"
    good = '{"id": 1, "at": "2024-01-01T00:00:00Z", "price": 1.10, "tags": ["a"], "inner": {"ok": true}, "extra": 0}'
    texts = [good, None, "{", '{"id": "x"}', '{"inner": {"ok": 1}}']
    rows = spark.createDataFrame([(text,) for text in texts], "value string").coalesce(1)
    read = rows.select(from_json_value("value", ddl, error_column="why").alias("d"))
    out = read.select("d.value.*", "d.why", col("d.value.at").cast("long").alias("epoch")).collect()
    assert (out[0].id, out[0].price, out[0].tags, out[0].inner) == (1, Decimal("1.10"), ["a"], Row(ok=True))
    assert out[0].epoch == 1704067200 and out[0].why is None and out[1].why is None
    assert [row.id for row in out[1:]] == [None] * 4
    for row, reason in zip(
        out[2:], ["not JSON", "id must be an integer of 32 bits", "inner.ok must be a boolean"], strict=True
    ):
        assert reason in row.why


def test_what_is_wrong_with_the_arguments_is_told_before_any_data_moves(registry: RegistryServer) -> None:
    registry.add(
        "tree-value", {"type": "record", "name": "T", "fields": [{"name": "t", "type": ["null", "T"]}]}
    )
    with pytest.raises(ValueError, match="t: T is recursive"):
        from_registry("value", registry.url, subject="tree-value")
    with pytest.raises(OSError, match="has no version latest of subject 'nope'"):
        to_registry("value", registry.url, "nope")
    for mode, error_column, reason in (
        ("DROP", None, "mode must be"),
        ("FAILFAST", "e", "would always be null"),
        (None, "value", "use another name"),
    ):
        with pytest.raises(ValueError, match=reason):
            from_registry("value", registry.url, schema='"int"', mode=mode, error_column=error_column)
