"""Checks before a query starts, and the rows of a sink. Only one test runs a Spark job; none needs a broker."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ottla.spark.pipeline import Pipeline
from ottla.spark.pipeline import queries as queries_of
from ottla.spark.pipeline.model import Sink, Source
from ottla.spark.pipeline.plan_check import analyse
from ottla.spark.pipeline.queries import (
    StepFailed,
    _parquet_sink,
    _table_sink,
    build_tables,
    row_columns,
    start_queries,
)
from ottla.spark.pipeline.value_columns import decoded, readable
from tests.spark.values.registry_server import RegistryServer, serving

RECORDS = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
AUTH = "me:secret"
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
JSON = {"type": "object", "properties": {"id": {"type": "integer"}}}


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    return spark.newSession()


def ticks(tmp_path: Path) -> Pipeline:
    pipeline = Pipeline("ticks", checkpoint=str(tmp_path / "kept"), brokers="127.0.0.1:9")
    pipeline.source("ticks", format="rate")
    return pipeline


def test_all_sinks_are_looked_at_before_the_first_one_starts(session: SparkSession, tmp_path: Path) -> None:
    pipeline = ticks(tmp_path)
    pipeline.sql("counts", "SELECT value % 2 AS id, count(*) AS n FROM ticks GROUP BY 1")
    pipeline.sink("good", from_="ticks", format="noop")
    database = {"url": f"sqlite:///{tmp_path}/t.db", "name": "t", "key": "idd"}
    pipeline.sink("table", from_="counts", table=database)
    pipeline.sink("files", from_="counts", parquet="out", key="id", order_by="at")
    pipeline.sink("topic", from_="counts", topic="t", key="nn", value="json", mode="update")
    pipeline.sink("option", from_="ticks", topic="t", value="json", options={"sinkid": "x", "nope": 1})
    pipeline.sink("mode", from_="counts", topic="t", key="id", value="json")
    plan = pipeline.plan(str(tmp_path / "ticks.py"))
    found = {each.place: each.message for each in analyse(session, plan)[1]}
    assert "key: the rows have no column 'idd'; they have id, n" in found.pop("sinks.table")
    assert "the rows have no column 'at'; they have id, n" in found.pop("sinks.files")
    assert "there is no column nn: did you mean n?" in found.pop("sinks.topic")
    assert "has no option 'nope'" in found.pop("sinks.option")
    assert found.pop("sinks.mode").startswith("Invalid streaming output mode: append.")
    assert found == {}
    with pytest.raises(StepFailed, match=r"sinks\.table"):
        start_queries(session, plan, build_tables(session, plan), once=True)
    assert not session.streams.active and not (tmp_path / "kept").exists()


def test_a_schema_is_held_against_value_and_columns_and_registered_by_nobody_who_looks(
    session: SparkSession, tmp_path: Path
) -> None:
    with serving(RegistryServer(auth=AUTH)) as registry:
        registry.add("json-value", JSON, "JSON")
        registry.add("order-value", ORDER)
        pipeline = ticks(tmp_path)
        given = {"from_": "ids", "topic": "t", "value": "avro", "registry": registry.url}
        pipeline.sql("ids", "SELECT value AS id FROM ticks")
        pipeline.sql("texts", "SELECT 'x' AS id FROM ticks")
        pipeline.sink("good", **given, subject="order-value", registry_auth=AUTH)
        pipeline.sink("new", **given, schema=json.dumps(ORDER), registry_auth=AUTH)
        pipeline.sink("kind", **given, subject="json-value", registry_auth=AUTH)
        pipeline.sink("gone", **given, subject="nowhere", registry_auth=AUTH)
        pipeline.sink("auth", **given, subject="order-value")
        pipeline.sink("columns", **{**given, "from_": "texts"}, subject="order-value", registry_auth=AUTH)
        problems = analyse(session, pipeline.plan(str(tmp_path / "t.py")))[1]
        found = {each.place: each.message for each in problems}
        # A registry that does not have the subject has answered.
        assert [each.place for each in problems if each.is_outage] == ["sinks.auth"]
        assert "subject 'json-value' is of type JSON, not AVRO: change schema_type" in found.pop("sinks.kind")
        assert "Subject 'nowhere' not found" in found.pop("sinks.gone")
        assert "status 401" in found.pop("sinks.auth")
        said = "the rows do not fit the schema of order-value: column id is string, but the schema's field is bigint"
        assert found.pop("sinks.columns") == said
        assert found == {} and set(registry.subjects) == {"json-value", "order-value"}


def test_a_source_is_read_by_the_schema_of_the_file(session: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("p", checkpoint=str(tmp_path), brokers="b:1", registry="http://127.0.0.1:9")
    pipeline.source("orders", topic="orders, others", value="avro", schema=json.dumps(ORDER))
    pipeline.sink("out", from_="orders", format="noop")
    source = pipeline.plan("p.py").sources["orders"]
    assert readable(decoded(session.createDataFrame([], RECORDS), source), source).columns[0] == "id"


def records(session: SparkSession, *rows: tuple[str, str | None]) -> Any:
    made = [(k.encode(), v and v.encode(), "t", 0, place, None) for place, (k, v) in enumerate(rows)]
    return session.createDataFrame(made, RECORDS).coalesce(1)


def test_a_row_of_nulls_is_a_row_and_a_tombstone_only_if_asked(session: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("p", checkpoint=str(tmp_path / "kept"), brokers="b:1")
    pipeline.source("people", topic="people", value="json", schema="name STRING, age INT")
    database = {"url": "sqlite:///t.db", "name": "t", "key": "_key"}
    pipeline.sink("kept", from_="people", table=database)
    pipeline.sink("gone", from_="people", table=database, tombstones="true")
    pipeline.sink("files", from_="people", parquet="out", key="_key")
    plan = pipeline.plan(str(tmp_path / "p.py"))
    source = plan.sources["people"]
    given = records(session, ("a", '{"name": "ann"}'), ("a", None))
    rows = row_columns(readable(decoded(given, source), source), ["_key"])
    assert rows.columns == ["name", "age", "_key", "topic", "partition", "offset"]
    # What a tombstone comes to: nothing but its key, and where it was.
    assert [tuple(row) for row in rows.collect()] == [
        ("ann", None, "a", "t", 0, 0),
        (None, None, "a", "t", 0, 1),
    ]
    made: dict[str, Any] = {}
    for name in ("kept", "gone"):
        table = plan.sinks[name].table
        assert table is not None
        made[name] = _table_sink(plan, plan.sinks[name], table, rows)
    assert not made["kept"].tombstones and made["gone"].tombstones
    assert [each.name for each in made["gone"].check(rows.schema).tombstone_columns] == ["name", "age"]
    files: Any = _parquet_sink(plan, plan.sinks["files"], plan.sinks["files"].parquet or "", rows)
    assert not files.tombstones


def test_dead_letters_have_a_producers_settings_and_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline("p", brokers="b:1", checkpoint="/c")
    settings = {"fetch.max.bytes": 1000, "security.protocol": "SSL", "group.id": "told"}
    pipeline.source(
        "rows", topic="t", value="string", dead_letters="dead", group="told", kafka=settings, options={"groupId": "told"}
    )  # fmt: skip
    pipeline.sink("out", from_="rows", format="noop")
    plan = pipeline.plan("p.py")
    read: list[Source] = []
    started: dict[str, Sink] = {}

    def start(_plan: object, sink: Sink, *_: object) -> str:
        started[sink.name] = sink
        return sink.name

    def reading(_spark: object, source: Source) -> str:
        read.append(source)
        return "frame"

    monkeypatch.setattr(queries_of, "prepare", lambda *_: None)
    monkeypatch.setattr(queries_of, "_start", start)
    monkeypatch.setattr(queries_of, "topic_frame", reading)
    monkeypatch.setattr(queries_of, "decoded", lambda frame, _: frame)
    monkeypatch.setattr(queries_of, "unreadable", lambda frame: frame)
    nothing: Any = None
    queries = queries_of.start_queries(nothing, plan, {"rows": nothing}, once=False)
    assert list(queries) == ["out", "rows.dead-letters"]
    assert dict(started["rows.dead-letters"].kafka) == {"security.protocol": "SSL"}
    assert queries_of.source_options(read[0]) == {
        "kafka.bootstrap.servers": "b:1",
        "kafka.fetch.max.bytes": "1000",
        "kafka.security.protocol": "SSL",
        "subscribe": "t",
        "startingOffsets": "earliest",
    }


def test_settings_for_all_go_to_those_who_have_them() -> None:
    both = {"fetch.max.bytes": 1, "compression.type": "zstd", "security.protocol": "SSL", "no.setting": "x"}
    pipeline = Pipeline("p", brokers="b:1", checkpoint="/c", kafka=both)
    pipeline.source("rows", topic="t", kafka={"linger.ms": 3})
    pipeline.sink("out", from_="rows", topic="o", kafka={"acks": "1"})
    plan = pipeline.plan("p.py")
    # What no client has is still there to be refused, and so is what is written for the wrong one itself.
    assert set(plan.sources["rows"].kafka) == {
        "fetch.max.bytes", "security.protocol", "no.setting", "linger.ms"
    }  # fmt: skip
    assert set(plan.sinks["out"].kafka) == {"compression.type", "security.protocol", "no.setting", "acks"}
