"""A Spark driver that reads, writes and streams on command: one JSON document per line in, one out.

`bench.spark` runs it twice: in an environment with Spark's connector, and in ours. `FORMAT` selects the
connector, and is the only difference. This file therefore imports only pyspark. Times are measured here,
around the action alone.
"""

import json
import os
import sys
import time
import traceback
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

FORMAT = os.environ["BENCH_FORMAT"]
PATIENCE_S = 120
RUNNING: dict[str, Any] = {}


def session() -> SparkSession:
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": os.environ["SPARK_WAREHOUSE"],
    }
    if os.environ.get("SPARK_CONNECTOR_JARS"):
        settings["spark.jars"] = os.environ["SPARK_CONNECTOR_JARS"]
    builder = SparkSession.builder.appName("bench").master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found


def read(spark: SparkSession, options: dict[str, str]) -> float:
    """Read a whole topic into a sink that discards it."""
    frame = spark.read.format(FORMAT).options(**options).load()
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def check(spark: SparkSession, options: dict[str, str]) -> list[int]:
    """The number of rows, the bytes of their values, and the sum of their offsets."""
    frame = spark.read.format(FORMAT).options(**options).load()
    sums = f.count("*"), f.sum(f.length("value")), f.sum("offset")
    found = frame.agg(*sums).first()
    assert found is not None
    return [int(value) for value in found]


def write(spark: SparkSession, options: dict[str, str], rows: int, value_bytes: int) -> float:
    """Write this many generated rows with keys."""
    number = f.col("id").cast("string")
    frame = spark.range(0, rows, 1, 4).select(
        f.lpad(number, 8, "0").alias("key"), f.lpad(number, value_bytes, "abcdefgh").alias("value")
    )
    began = time.perf_counter()
    frame.write.format(FORMAT).options(**options).mode("append").save()
    return time.perf_counter() - began


def start(
    spark: SparkSession,
    query: str,
    source: dict[str, str],
    sink: dict[str, str],
    checkpoint: str,
    available_now: bool,
) -> None:
    frame = spark.readStream.format(FORMAT).options(**source).load().select("key", "value")
    trigger: dict[str, Any] = {"availableNow": True} if available_now else {"processingTime": "0 seconds"}
    RUNNING[query] = (
        frame.writeStream.format(sink.pop("format", FORMAT))
        .options(**sink)
        .option("checkpointLocation", checkpoint)
        .trigger(**trigger)
        .start()
    )


def copy(spark: SparkSession, source: dict[str, str], sink: dict[str, str], checkpoint: str) -> float:
    """Stream from topic to topic until all rows are copied.

    Returns the time from start to end of the query.
    """
    began = time.perf_counter()
    start(spark, "copy", source, sink, checkpoint, available_now=True)
    running = RUNNING.pop("copy")
    if not running.awaitTermination(PATIENCE_S):
        running.stop()
        raise TimeoutError(f"the query did not end within {PATIENCE_S} s")
    return time.perf_counter() - began


def progress(spark: SparkSession, query: str) -> list[dict[str, float]]:
    """The durations of batches with rows, in ms, by part."""
    running = RUNNING[query]
    if running.exception() is not None:
        raise running.exception()
    found = [json.loads(each.json) for each in running.recentProgress]
    return [each["durationMs"] for each in found if each["numInputRows"]]


def stop(spark: SparkSession, query: str) -> None:
    RUNNING.pop(query).stop()


def main() -> None:
    spark = session()
    print(json.dumps({"seen": spark.version}), flush=True)
    known: dict[str, Any] = {
        each.__name__: each for each in (read, check, write, start, copy, progress, stop)
    }
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"seen": known[asked.pop("do")](spark, **asked)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
