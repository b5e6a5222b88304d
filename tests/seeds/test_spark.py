"""Claims F3 and G1 to G4: the data pipeline, on a real Spark. What kills and faults do to it is in tests/spark and tests/chaos."""

# ruff: noqa: N802 (a test bears the id of its claim)

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import ottla
from ottla.server.embedded import Broker
from ottla.spark import table_sinks
from tests.crash.broker_process import BrokerProcess
from tests.running_spark import spark
from tests.sdk.reading import contents

__all__ = ["spark"]

#: They begin first, in two processes with a Spark each.
pytestmark = pytest.mark.timeout(200)
together = pytest.mark.xdist_group("spark")
others = pytest.mark.xdist_group("spark, too")

WORDS = [word for number in range(60) for word in ("kafka", "spark", "ottla")[: 1 + number % 3]]


@pytest.fixture
def address(embed: Callable[..., Broker]) -> str:
    """A broker with a topic of words, each under itself as key, in three partitions."""
    broker = embed()
    with ottla.Admin(broker.address) as admin:
        for topic in ("words", "counted"):
            admin.create_topic(topic, 3)
    write(broker.address, WORDS)
    return broker.address


def write(address: str, words: list[str]) -> None:
    with ottla.Producer(address, key_serializer="str", value_serializer="str") as producer:
        for word in words:
            producer.send("words", word, key=word)


def options(address: str, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": address, **more}


def stream(spark: SparkSession, address: str, **more: str) -> DataFrame:
    given = options(address, subscribe="words", startingOffsets="earliest", **more)
    return spark.readStream.format("ottla").options(**given).load()


def run(query: Any, checkpoint: Path) -> None:
    """All that is there now, then the end: what a stream does again and again."""
    query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


@together
def test_G1_topics_are_sources_and_sinks_of_batches_and_streams(
    spark: SparkSession, address: str, tmp_path: Path
) -> None:
    batch = spark.read.format("ottla").options(**options(address, subscribe="words")).load()
    assert batch.count() == len(WORDS)
    upper = stream(spark, address).select("key", f.upper(f.col("value").cast("string")).alias("value"))
    for _ in range(2):
        # The second run finds what the first did in the checkpoint, and writes nothing.
        run(upper.writeStream.format("ottla").options(**options(address, topic="counted")), tmp_path / "up")
    batch.select("key", "value").write.format("ottla").options(**options(address, topic="counted")).mode(
        "append"
    ).save()
    found = contents(address, "counted", isolation_level="read_committed")
    values = Counter(record.value.decode() for records in found.values() for record in records)
    assert values == Counter(WORDS) + Counter(word.upper() for word in WORDS)
    # A word stays in its partition: the partitioner is the producers' own.
    home = {
        record.key: number for number, records in contents(address, "words").items() for record in records
    }
    assert all(home[record.key] == number for number, records in found.items() for record in records)


@others
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
        sink = table_sinks.upsert(
            f"sqlite:///{tmp_path}/shop.db", table="customers", key="id", sink_id="customers"
        )
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


@together
def test_G3_one_topic_serves_batches_and_streams(spark: SparkSession, address: str, tmp_path: Path) -> None:
    """Hadoop's way: all of it, again. Storm's way: what is new, while it comes."""
    streamed: list[Any] = []

    def follow() -> None:
        query = stream(spark, address).writeStream.foreachBatch(
            lambda rows, _: streamed.extend(rows.collect())
        )
        run(query, tmp_path / "follow")

    def everything() -> list[Any]:
        return list(
            spark.read.format("ottla").options(**options(address, subscribe="words")).load().collect()
        )

    follow()
    assert sorted(streamed) == sorted(everything())
    write(address, ["late"])
    follow()
    assert bytes(streamed[-1].value) == b"late"
    assert sorted(streamed) == sorted(everything())


#: Reads, counts and writes; nothing in it tells where Spark runs.
PROGRAM = """
import sys
from ottla.spark.session import spark_session
address = sys.argv[1]
spark = spark_session("words")
words = spark.read.format("ottla").option("kafka.bootstrap.servers", address).option("subscribe", "words").load()
counts = words.groupBy("value").count().selectExpr("value AS key", "CAST(count AS STRING) AS value")
counts.write.format("ottla").option("kafka.bootstrap.servers", address).option("topic", "counted").mode("append").save()
print(spark.sparkContext.master)
"""


@together
def test_G4_spark_runs_locally_by_default(address: str) -> None:
    """That the same program and the same pipeline file run on a cluster unchanged shows tests/interop/test_spark_cluster.py."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, address], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "local[*]"
    found = contents(address, "counted", isolation_level="read_committed")
    counts = {record.key.decode(): int(record.value) for records in found.values() for record in records}
    assert counts == Counter(WORDS)


@others
def test_F3_counting_is_exactly_once_though_micro_batches_run_again(
    spark: SparkSession, address: str, tmp_path: Path
) -> None:
    """The notes' Kafka Streams case: state, input and output move together. Spark forgets here that a micro-batch was done, as it
    does when it is killed after the commit, and runs it again."""
    checkpoint = tmp_path / "count"
    counts = stream(spark, address, maxOffsetsPerTrigger="40").groupBy("value").count()
    rows = counts.select(f.col("value").alias("key"), f.col("count").cast("string").alias("value"))

    def emit(changed: DataFrame, _batch_id: int) -> None:
        sink = options(address, topic="counted", sinkId="counting")
        changed.write.format("ottla").options(**sink).mode("append").save()

    def count() -> None:
        run(rows.writeStream.outputMode("update").foreachBatch(emit), checkpoint)

    count()
    before = contents(address, "counted", isolation_level="read_committed")
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    assert last >= 2, "there were several micro-batches"
    for path in (checkpoint / "commits" / f"{last}", checkpoint / "commits" / f".{last}.crc"):
        path.unlink()
    count()
    after = contents(address, "counted", isolation_level="read_committed")
    assert after == before
    latest = {record.key.decode(): int(record.value) for records in after.values() for record in records}
    assert latest == Counter(WORDS)
