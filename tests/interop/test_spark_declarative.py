"""Spark's own Declarative Pipelines read topics: `spark-pipelines run` on tables that come from format("ottla"), in a stream and at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ottla
from tests.running_broker import RunningBroker

SPEC = """\
name: declared
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""
TABLES = """\
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

spark = SparkSession.active()
OPTIONS = {{"kafka.bootstrap.servers": "{brokers}", "subscribe": "orders", "startingOffsets": "earliest"}}


@dp.table
def orders() -> DataFrame:
    return spark.readStream.format("ottla").options(**OPTIONS).load()


@dp.materialized_view
def texts() -> DataFrame:
    return spark.read.table("orders").select(col("value").cast("string").alias("text"), "offset")


@dp.materialized_view
def at_once() -> DataFrame:
    return spark.read.format("ottla").options(**OPTIONS).load().selectExpr("count(*) AS count")
"""
READ = """\
import json, sys
from ottla.spark.session import spark_session

spark = spark_session("read", master="local[1]")
print(json.dumps([
    sorted(row.text for row in spark.read.parquet(sys.argv[1] + "/texts").collect()),
    spark.read.parquet(sys.argv[1] + "/at_once").first()["count"],
]))
"""


@pytest.mark.timeout(400)
def test_declared_tables_are_made_of_topics(tmp_path: Path) -> None:
    broker = RunningBroker(tmp_path / "data")
    try:
        with ottla.Admin(broker.address) as admin:
            admin.create_topic("orders", 1)
        with ottla.Producer(broker.address) as producer:
            for number in range(100):
                producer.send("orders", f"order {number:02}".encode())
        (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
        (tmp_path / "transformations").mkdir()
        (tmp_path / "transformations" / "tables.py").write_text(TABLES.format(brokers=broker.address))
        program = Path(sys.executable).with_name("spark-pipelines")
        done = subprocess.run(
            [program, "run", "--spec", "spark-pipeline.yml"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    finally:
        broker.stop()
    read = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path / "spark-warehouse")],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert read.returncode == 0, read.stderr[-3000:]
    texts, count = json.loads(read.stdout.splitlines()[-1])
    assert texts == [f"order {number:02}" for number in range(100)] and count == 100


def environment() -> dict[str, str]:
    import os

    from ottla.spark.java import find_java

    home = find_java()
    own = {"JAVA_HOME": home} if home else {}
    return {**os.environ, **own, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
