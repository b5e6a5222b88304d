"""Pipeline files as people write them, run once on all that is there: every kind of value and sink, on a real broker, Spark and schema registry."""

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import ottla
from ottla.spark.pipeline.loader import load
from ottla.spark.pipeline.plan_check import analyse
from ottla.spark.pipeline.queries import StepFailed
from ottla.spark.pipeline.runner import Run
from ottla.spark.table_sinks import read_table
from ottla.spark.values import Location, ValueReader, ValueWriter
from tests.running_broker import RunningBroker
from tests.running_spark import spark
from tests.spark.pipeline.examples import take_all
from tests.spark.values.registry_server import RegistryServer, serving

__all__ = ["spark"]

AUTH = "me:secret"
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": ["null", "string"], "default": None}],
}
PROTO = 'syntax = "proto3"; package shop; message Other { string x = 1; } message Order { int64 id = 1; string who = 2; }'
JSON = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
HEAD = """\
name: {name}
brokers: {brokers}
checkpoint: ./kept/{name}
registry: {registry}
registry_auth: ${{AUTH}}
"""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    broker = RunningBroker(tmp_path_factory.mktemp("files"))
    yield broker.address
    assert broker.stop() == 0


@pytest.fixture(scope="module")
def registry() -> Iterator[RegistryServer]:
    with serving(RegistryServer(auth=AUTH)) as server:
        yield server


class Files:
    """Writes, runs and checks pipeline files; topics and rows for them."""

    def __init__(self, spark: SparkSession, brokers: str, registry: RegistryServer, folder: Path) -> None:
        self.spark = spark
        self.brokers = brokers
        self.registry = registry
        self.folder = folder
        self.at = Location.of(registry.url, auth=AUTH)

    def topics(self, *names: str) -> None:
        with ottla.Admin(self.brokers) as admin:
            for name in names:
                admin.create_topic(name, 1)

    def send(self, topic: str, *records: tuple[str | None, bytes | None]) -> None:
        with ottla.Producer(self.brokers) as producer:
            for key, value in records:
                producer.send(topic, value, key=None if key is None else key.encode())

    def rows(self, topic: str, *rows: Any) -> None:
        self.send(topic, *((None, json.dumps(row).encode()) for row in rows))

    def plan(self, name: str, text: str) -> Any:
        path = self.folder / f"{name}.yaml"
        path.write_text(HEAD.format(name=name, brokers=self.brokers, registry=self.registry.url) + text)
        return load(path, {"AUTH": AUTH}).plan

    def run(self, name: str, text: str) -> dict[str, str]:
        """Gives the causes of what failed."""
        running = Run(self.spark.newSession(), self.plan(name, text))
        take_all(running)
        return running.failed

    def problems(self, name: str, text: str) -> dict[str, str]:
        """As `validate --deep` finds them."""
        found = analyse(self.spark.newSession(), self.plan(name, text))[1]
        return {each.place: each.message for each in found}

    def read(self, topic: str, count: int) -> list[Any]:
        found: list[Any] = []
        deadline_s = time.monotonic() + 30
        with ottla.Consumer(
            self.brokers, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            consumer.assign([(topic, 0)])
            while len(found) < count and time.monotonic() < deadline_s:
                found += [record for batch in consumer.poll(100).values() for record in batch]
        assert len(found) == count
        return found

    def parquet(self, name: str, *columns: str) -> list[Any]:
        rows = read_table(self.spark, str(self.folder / name)).select(*columns).collect()
        return sorted(tuple(row) for row in rows)

    def table(self, database: str, query: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.folder / database)) as connection:
            return sorted(connection.execute(query).fetchall())


@pytest.fixture
def files(spark: SparkSession, brokers: str, registry: RegistryServer, tmp_path: Path) -> Files:
    return Files(spark, brokers, registry, tmp_path)


def test_avro_is_read_with_dead_letters_and_written(files: Files) -> None:
    files.topics("a-in", "a-out", "a-new", "a-dead")
    files.registry.add("a-in-value", ORDER)
    files.registry.add("a-out-value", ORDER)
    written = ValueWriter(files.at, "a-in-value").write
    files.send("a-in", ("k", written({"id": 1, "who": "ann"})), ("k", b"no avro"), ("k", written({"id": 2})))
    text = """\
sources: {orders: {topic: a-in, value: avro, dead_letters: a-dead}}
steps: {more: "SELECT id + 10 AS id, who FROM orders"}
sinks:
  out: {from: more, topic: a-out, key: id, value: avro}
  new: {from: more, topic: a-new, value: avro, schema: 'ORDER'}
""".replace("ORDER", json.dumps(ORDER))
    assert files.problems("avro", text) == {}
    # To look at a file registers nothing.
    assert "a-new-value" not in files.registry.subjects
    assert files.run("avro", text) == {}
    reader = ValueReader(files.at, subject="a-out-value")
    out = files.read("a-out", 2)
    assert [(each.key, reader.read(each.value)) for each in out] == [
        (b"11", {"id": 11, "who": "ann"}),
        (b"12", {"id": 12, "who": None}),
    ]
    assert ValueReader(files.at, subject="a-new-value").read(files.read("a-new", 2)[0].value)["id"] == 11
    (dead,) = files.read("a-dead", 1)
    headers = dict(dead.headers)
    assert dead.value == b"no avro" and headers["error.offset"] == b"1"
    assert b"not written with a schema registry" in headers["error.reason"]


def test_avro_is_read_by_a_schema_of_the_file(files: Files) -> None:
    files.topics("s-in", "s-out")
    files.registry.add("s-in-value", ORDER)
    files.send("s-in", (None, ValueWriter(files.at, "s-in-value").write({"id": 1, "who": "ann"})))
    narrow = json.dumps({**ORDER, "fields": ORDER["fields"][:1]})
    text = f"""\
sources: {{orders: {{topic: s-in, value: avro, schema: '{narrow}'}}}}
sinks: {{out: {{from: orders, topic: s-out, value: json}}}}
"""
    assert files.run("narrow", text) == {}
    assert [each.value for each in files.read("s-out", 1)] == [b'{"id":1}']


def test_protobuf_is_read_and_written(files: Files) -> None:
    files.topics("p-in", "p-out")
    for subject in ("p-in-value", "p-out-value"):
        files.registry.add(subject, PROTO, "PROTOBUF")
    written = ValueWriter(files.at, "p-in-value", message="shop.Order").write
    files.send("p-in", (None, written({"id": 1, "who": "ann"})))
    text = """\
sources: {orders: {topic: p-in, value: protobuf, message: shop.Order}}
sinks: {out: {from: orders, topic: p-out, key: id, value: protobuf, message: shop.Order}}
"""
    assert files.run("proto", text) == {}
    (out,) = files.read("p-out", 1)
    assert out.key == b"1"
    reader = ValueReader(files.at, subject="p-out-value", message="shop.Order")
    assert reader.read(out.value) == {"id": 1, "who": "ann"}


def test_schemas_that_do_not_fit_are_told_before_a_row_moves(files: Files) -> None:
    files.topics("f-in", "f-first", "f-second")
    files.rows("f-in", {"id": "x", "more": 1})
    files.registry.add("json-value", JSON, "JSON")
    files.registry.add("order-value", ORDER)
    text = """\
sources: {rows: {topic: f-in, value: json, schema: "id STRING, more BIGINT"}}
sinks:
  first: {from: rows, topic: f-first, value: json}
  kind: {from: rows, topic: f-second, value: avro, subject: json-value}
  columns: {from: rows, topic: f-second, value: avro, subject: order-value}
  gone: {from: rows, topic: f-second, value: avro, subject: nowhere}
  key: {from: rows, topic: f-second, key: idd, value: json}
  table: {from: rows, table: {url: "sqlite:///f.db", name: t, key: idd}}
  files: {from: rows, parquet: out, key: idd}
  mode: {from: rows, topic: f-second, value: json, mode: complete}
"""
    found = files.problems("fit", text)
    assert set(found) == {
        f"sinks.{name}" for name in ("kind", "columns", "gone", "key", "table", "files", "mode")
    }
    assert "subject 'json-value' is of type JSON, and AVRO is wanted" in found["sinks.kind"]
    assert "column id is string, but the schema's field is bigint" in found["sinks.columns"]
    assert "no field for column more: it has id, who" in found["sinks.columns"]
    assert "Subject 'nowhere' not found" in found["sinks.gone"]
    assert "there is no column idd: did you mean id?" in found["sinks.key"]
    assert "no column 'idd'" in found["sinks.table"] and "no column 'idd'" in found["sinks.files"]
    assert "omplete" in found["sinks.mode"]
    with pytest.raises(StepFailed, match=r"sinks\.kind"):
        files.run("fit", text)
    with ottla.Admin(files.brokers) as admin:
        place = ottla.TopicPartition("f-first", 0)
        assert admin.list_offsets({place: -1})[place].offset == 0


def test_a_table_has_tombstones_if_asked_and_dead_letters(files: Files) -> None:
    files.topics("t-in", "t-dead")
    text = """\
sources: {customers: {topic: t-in, value: json, schema: "name STRING, age BIGINT"}}
steps: {current: "SELECT _key AS id, name, age, _topic, _partition, _offset FROM customers"}
sinks:
  deletes: {from: current, table: {url: "sqlite:///t.db", name: current, key: id}, tombstones: true, dead_letters: t-dead}
  keeps: {from: current, table: {url: "sqlite:///t.db", name: kept, key: id}}
  direct: {from: customers, table: {url: "sqlite:///t.db", name: direct, key: _key}, tombstones: true}
  files: {from: current, parquet: ./files, key: id, tombstones: true}
"""
    with contextlib.closing(sqlite3.connect(files.folder / "t.db")) as connection:
        connection.execute(
            "CREATE TABLE current (id TEXT PRIMARY KEY, name TEXT, age INTEGER CHECK (age < 200))"
        )
    files.send("t-in", ("a", b'{"name": "ann", "age": 1}'), ("b", b'{"name": "bob", "age": 2}'))
    assert files.run("tables", text) == {}
    files.send("t-in", ("a", None), ("b", b"{}"), ("c", b'{"name": "cid", "age": 900}'))
    assert files.run("tables", text) == {}
    assert files.table("t.db", "SELECT * FROM current") == []
    assert files.table("t.db", "SELECT _key, name, age FROM direct") == [("c", "cid", 900)]
    assert files.table("t.db", "SELECT * FROM kept") == [
        ("a", None, None),
        ("b", None, None),
        ("c", "cid", 900),
    ]
    (dead,) = files.read("t-dead", 1)
    assert json.loads(dead.value)["name"] == "cid" and dict(dead.headers)["error.offset"] == b"4"
    assert files.parquet("files", "id", "name") == [("c", "cid")]


def test_parquet_with_and_without_a_key(files: Files) -> None:
    files.topics("q-in")
    text = """\
sources: {rows: {topic: q-in, value: json, schema: "id BIGINT, at BIGINT"}}
steps:
  plain: SELECT id, at FROM rows
sinks:
  all: {from: plain, parquet: ./all}
  latest: {from: plain, parquet: ./latest, key: id, order_by: at}
  placed: {from: rows, parquet: ./placed, key: id}
"""
    files.rows("q-in", {"id": 1, "at": 5}, {"id": 1, "at": 3}, {"id": 2, "at": 1})
    assert files.run("parquet", text) == {}
    files.rows("q-in", {"id": 1, "at": 6})
    assert files.run("parquet", text) == {}

    assert files.parquet("all", "id", "at") == [(1, 3), (1, 5), (1, 6), (2, 1)]
    assert files.parquet("latest", "id", "at") == files.parquet("placed", "id", "at") == [(1, 6), (2, 1)]
    bad = text.partition("sinks:")[0] + "sinks: {wrong: {from: plain, parquet: ./wrong, key: id}}\n"
    assert "a key (id) has several rows in one batch" in files.run("wrong", bad)["wrong"]


def test_an_aggregate_updates_parquet_and_a_topic(files: Files) -> None:
    files.topics("u-in", "u-out")
    text = """\
sources: {rows: {topic: u-in, value: json, schema: "id BIGINT"}}
steps: {counts: "SELECT id, count(*) AS n FROM rows GROUP BY id"}
sinks:
  counted: {from: counts, parquet: ./counted, key: id}
  out: {from: counts, topic: u-out, key: id, value: json, mode: update}
"""
    files.rows("u-in", {"id": 1}, {"id": 1}, {"id": 2})
    assert files.run("counts", text) == {}
    files.rows("u-in", {"id": 1})
    assert files.run("counts", text) == {}
    assert files.parquet("counted", "id", "n") == [(1, 3), (2, 1)]
    told = [(each.key, json.loads(each.value)["n"]) for each in files.read("u-out", 3)]
    assert sorted(told[:2]) == [(b"1", 2), (b"2", 1)] and told[2] == (b"1", 3)


def test_a_checkpoint_goes_on_with_its_own_sink_alone(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    files.topics("c-in")
    text = """\
sources: {rows: {topic: c-in, value: json, schema: "id BIGINT"}}
sinks:
  table: {from: rows, table: {url: "sqlite:///c.db", name: t, key: id}, reset: RESET}
  files: {from: rows, parquet: ./files, reset: RESET}
"""
    kept = text.replace("RESET", "false")
    ids: Callable[[], list[Any]] = lambda: files.table("c.db", "SELECT id FROM t")  # noqa: E731
    for number in range(2):
        # Wherever it is called from.
        (files.folder / str(number)).mkdir()
        monkeypatch.chdir(files.folder / str(number))
        files.rows("c-in", {"id": number})
        assert files.run("own", kept) == {}
    assert ids() == [(0,), (1,)]
    files.rows("c-in", {"id": 2})
    moved = kept.replace("c.db", "d.db").replace("./files", "./other")
    failed = files.run("own", moved)
    assert failed and all(
        "nothing has been written here" in cause and "reset=True" in cause for cause in failed.values()
    )
    assert files.run("own", moved.replace("reset: false", "reset: true")) == {}
    assert files.table("d.db", "SELECT id FROM t") == [(2,)]
