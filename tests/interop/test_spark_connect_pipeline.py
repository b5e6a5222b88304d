"""A pipeline's file over Spark Connect, unchanged: a Python step, a function that runs in workers with what it imports, exactly-once topics, one of them in update mode, and a table of a database."""

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ottla
from tests.running_broker import RunningBroker

FILE = """\
from beside import doubled
from package.inner import same
from pyspark.sql.functions import udf

from ottla.spark.pipeline import Pipeline, setting

pipeline = Pipeline("remote", brokers=setting("BROKERS"), checkpoint="./kept")
pipeline.source("rows", topic="rows", value="json", schema="id BIGINT")


def twice(number):
    return doubled(same(number))


@pipeline.step
def changed(rows):
    return rows.select("id", udf(twice, "bigint")("id").alias("twice"))


pipeline.sink("out", from_="changed", topic="out", key="id", value="json")
pipeline.sql("counts", "SELECT id % 2 AS id, count(*) AS n FROM changed GROUP BY 1")
pipeline.sink("counts", from_="counts", topic="counts", key="id", value="json", mode="update")
pipeline.sink("table", from_="changed", table={"url": setting("DATABASE"), "name": "rows", "key": ["id"]})
"""


@pytest.mark.timeout(400)
def test_a_pipeline_runs_over_spark_connect(tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path / "data")
    try:
        with ottla.Admin(broker.address) as admin:
            for name in ("rows", "out", "counts"):
                admin.create_topic(name, 1)
        with ottla.Producer(broker.address) as producer:
            for number in range(500):
                producer.send("rows", json.dumps({"id": number}).encode())
        (tmp_path / "remote.py").write_text(FILE)
        (tmp_path / "beside.py").write_text("def doubled(number):\n    return 2 * number\n")
        (tmp_path / "package").mkdir()
        (tmp_path / "package" / "inner.py").write_text("def same(number):\n    return number\n")
        database = tmp_path / "rows.db"
        given = ["--set", f"BROKERS={broker.address}", "--set", f"DATABASE=sqlite:///{database}"]
        command = [sys.executable, "-m", "ottla.cli", "pipeline", "run", str(tmp_path / "remote.py"), *given]
        done = subprocess.run(
            [*command, "--once", "--json", "--remote", "local[2]"],
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found: dict[int, int] = {}
        with ottla.Consumer(
            broker.address, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            consumer.assign([("out", 0)])
            deadline_s = time.monotonic() + 30
            while len(found) < 500 and time.monotonic() < deadline_s:
                rows = [json.loads(record.value) for batch in consumer.poll(100).values() for record in batch]
                found |= {row["id"]: row["twice"] for row in rows}
            consumer.assign([("counts", 0)])
            counts: list[tuple[int, int]] = []
            while len(counts) < 2 and time.monotonic() < deadline_s:
                rows = [json.loads(record.value) for batch in consumer.poll(100).values() for record in batch]
                counts += [(row["id"], row["n"]) for row in rows]
    finally:
        broker.stop()
    assert found == {number: 2 * number for number in range(500)}
    assert sorted(counts) == [(0, 250), (1, 250)]
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert dict(connection.execute("SELECT id, twice FROM rows").fetchall()) == found
