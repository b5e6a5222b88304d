"""What the notes say of tables behind a stream (G2)."""

# ruff: noqa: N802 (a test bears the id of its claim)

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import ottla
from ottla.spark import sinks
from ottla.spark.session import spark_session
from tests.crash.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = spark_session("seeds", master="local[2]", config={"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()


def test_G2_results_and_offsets_are_stored_together_or_not_at_all(
    broker: BrokerProcess, spark: SparkSession, tmp_path: Path
) -> None:
    with ottla.Admin(broker.address) as admin:
        admin.create_topic("customers", 2)
    with ottla.Producer(broker.address) as producer:
        for key, value in (
            (b"1", b"Aino"),
            (b"2", b"Elias"),
            (b"1", b"Aino Maria"),
            (b"2", None),
            (b"3", b"Otso"),
        ):
            producer.send("customers", value, key=key).result()
    ends = {}
    with ottla.Consumer(broker.address) as consumer:
        for place, end in consumer.end_offsets(consumer.partitions_for("customers")).items():
            ends[str(place.partition)] = end

    database = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    database.execute("CREATE TABLE customers (id TEXT PRIMARY KEY, name TEXT)")
    rows = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", broker.address)
        .option("subscribe", "customers")
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("string(key) AS id", "string(value) AS name", "topic", "partition", "offset")
    )

    def run() -> None:
        sink = sinks.upsert(f"sqlite:///{tmp_path}/shop.db", table="customers", key="id", sink_id="customers")
        writing = rows.writeStream.foreachBatch(sink).trigger(availableNow=True)
        writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    # The rows are merged, and then the offsets cannot be stored: so the rows are not there either.
    run_into = "CREATE TRIGGER full BEFORE UPDATE ON ottla_progress BEGIN SELECT raise(FAIL, 'the disk is full'); END"
    database.execute(
        "CREATE TABLE ottla_progress (sink_id TEXT PRIMARY KEY, batch_id BIGINT, query_id TEXT, source_offsets TEXT)"
    )
    database.execute(run_into)
    with pytest.raises(StreamingQueryException, match="the disk is full"):
        run()
    assert database.execute("SELECT count(*) FROM customers").fetchall() == [(0,)]

    database.execute("DROP TRIGGER full")
    for _ in range(2):
        run()
    assert database.execute("SELECT * FROM customers ORDER BY id").fetchall() == [
        ("1", "Aino Maria"),
        ("3", "Otso"),
    ]
    [(offsets,)] = database.execute("SELECT source_offsets FROM ottla_progress").fetchall()
    assert json.loads(offsets) == {"customers": {partition: end for partition, end in ends.items() if end}}
    database.close()
