"""docs/pipelines.md: its pipeline runs in YAML and Python, and its tables are those of the code."""

import dataclasses
import json
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import ottla
from ottla.cli.main import main
from ottla.spark.pipeline import fields
from ottla.spark.pipeline.loader import load
from ottla.spark.pipeline.runner import Run
from tests.docs_examples import PIPELINES, blocks, indented, programs
from tests.running_broker import RunningBroker


def test_the_tables_of_fields_are_those_of_the_page() -> None:
    page = PIPELINES.read_text()
    for table in (fields.PIPELINE, fields.LIMITS, fields.SOURCE, fields.STEP, fields.SINK, fields.TABLE):
        rows = "\n".join(f"| `{field.name}` | {field.meaning} |" for field in table)
        assert f"\n| field | meaning |\n|---|---|\n{rows}\n" in page


def written(tmp_path: Path) -> tuple[Path, Path]:
    (yaml,) = blocks(PIPELINES, "yaml")
    (python,) = programs(PIPELINES)
    paths = tmp_path / "large-orders.yaml", tmp_path / "large_orders.py"
    for path, text in zip(paths, (yaml, python), strict=True):
        path.write_text(text)
    return paths


def test_both_files_are_the_same_pipeline(tmp_path: Path) -> None:
    first, second = (load(path).plan for path in written(tmp_path))
    assert first.sources == second.sources and first.sinks == second.sinks
    assert first.steps["large"].inputs == second.steps["large"].inputs == ("orders",)
    assert dataclasses.replace(first, file="", steps={}) == dataclasses.replace(second, file="", steps={})


def test_its_commands_are_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    lines = [shlex.split(line)[1:] for line in indented(PIPELINES) if line.startswith("ottla ")]
    assert [line[1] for line in lines] == ["validate", "explain", "run", "status", "run", "run"]
    for line in lines:
        with pytest.raises(SystemExit) as ended:
            # Nothing is started: only whether the command and its options exist.
            main([*line, *(["--help"] if line[1] == "run" else [])])
        assert ended.value.code == (4 if line[1] == "status" else 0)


def test_its_pipeline_runs(spark: SparkSession, tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path / "data")
    try:
        with ottla.Admin(broker.address) as admin:
            for name in ("orders", "customers", "large-orders"):
                admin.create_topic(name, 1)
        with ottla.Producer(broker.address) as producer:
            for name in ("Ann", "Anna"):
                producer.send("customers", json.dumps({"name": name, "country": "NL"}).encode(), key=b"a")
            for number, amount in enumerate((50.0, 150.0, 250.0)):
                order = {"id": number, "customer": "a", "amount": amount, "at": "2026-01-31T12:00:00Z"}
                producer.send("orders", json.dumps(order).encode())
        plan = load(written(tmp_path)[1], {"BROKERS": broker.address}).plan
        running = Run(spark.newSession(), plan)
        running.start(once=True)
        deadline_s = time.monotonic() + 100
        while running.running and time.monotonic() < deadline_s:
            running.look()
            time.sleep(0.05)
        running.stop(0)
        assert not running.failed, running.failed
        found: list[Any] = []
        with ottla.Consumer(broker.address, auto_offset_reset="earliest") as consumer:
            consumer.assign([("large-orders", 0)])
            while len(found) < 2 and time.monotonic() < deadline_s:
                found += [record for batch in consumer.poll(100).values() for record in batch]
    finally:
        broker.stop()
    # Each order may be another task's.
    assert sorted((record.key, json.loads(record.value)["name"]) for record in found) == [
        (b"1", "Anna"),
        (b"2", "Anna"),
    ]
