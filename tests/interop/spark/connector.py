"""Spark with its own Kafka connector, told line by line what to do: one JSON document a line, and one back with what was seen.

It runs in an environment where nothing of ours is (`bench/spark_official.py`), so it knows nothing but pyspark, and judges nothing.
"""

import json
import os
import sys
import time
import traceback

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
PATIENCE_S = 120


def session():
    builder = SparkSession.builder.appName("connector").master("local[2]")
    settings = {
        "spark.jars": os.environ["SPARK_CONNECTOR_JARS"],
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": os.environ["SPARK_WAREHOUSE"],
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found


def told(frame):
    """The rows as lists: texts for bytes, milliseconds for times."""
    columns = [
        f.col("key").cast("string"),
        f.col("value").cast("string"),
        "topic",
        "partition",
        "offset",
        f.unix_millis("timestamp").alias("timestamp"),
        "timestampType",
    ]
    if "headers" in frame.columns:
        columns.append(
            f.expr("transform(headers, h -> struct(h.key as key, string(h.value) as value))").alias("headers")
        )
    return frame.select(*columns)


def rows(frame):
    def plain(row):
        values = list(row)
        if len(values) > len(COLUMNS) and values[-1] is not None:
            values[-1] = [list(header) for header in values[-1]]
        return values

    return [plain(row) for row in frame.collect()]


def read(spark, options):
    """A batch: all that the options name."""
    frame = spark.read.format("kafka").options(**options).load()
    return {"rows": rows(told(frame)), "partitions": frame.rdd.getNumPartitions()}


def count(spark, options):
    return spark.read.format("kafka").options(**options).load().count()


def stream(spark, options, checkpoint, output, trigger):
    """A query from the topic to files, to its end; `output` holds all that it and earlier ones have written."""
    frame = told(spark.readStream.format("kafka").options(**options).load())
    query = (
        frame.writeStream.format("json")
        .option("path", output)
        .option("checkpointLocation", checkpoint)
        .trigger(**trigger)
        .start()
    )
    if "availableNow" in trigger:
        if not query.awaitTermination(PATIENCE_S):
            query.stop()
            raise TimeoutError("the query did not end")
    progress = [json.loads(each.json) for each in query.recentProgress]
    return {"rows": stored(spark, output, frame), "batches": [each["numInputRows"] for each in progress]}


def stored(spark, output, like):
    found = spark.read.schema(like.schema).json(output)
    return rows(found.orderBy("partition", "offset"))


RUNNING = {}


def begin(spark, options, checkpoint, query, trigger):
    """A query that goes on, into a table in memory."""
    frame = told(spark.readStream.format("kafka").options(**options).load())
    RUNNING[query] = (
        frame.writeStream.format("memory")
        .queryName(query)
        .option("checkpointLocation", checkpoint)
        .trigger(**trigger)
        .start()
    )


def await_rows(spark, query, number):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        if RUNNING[query].exception() is not None:
            raise RUNNING[query].exception()
        found = rows(spark.table(query).orderBy("partition", "offset"))
        if len(found) >= number:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(found)} rows of {number}")
        time.sleep(0.05)


def await_failure(spark, query):
    try:
        RUNNING.pop(query).awaitTermination(PATIENCE_S)
    except Exception as error:
        return str(error)
    raise TimeoutError("the query goes on")


def stop(spark, query):
    RUNNING.pop(query).stop()


def numbered(first, end, partitions):
    """Rows as they are written: numbers as texts, every seventh without a key, a header with the number."""
    return [
        f.when(f.col("id") % 7 == 3, f.lit(None))
        .otherwise(f.concat(f.lit("key-"), f.col("id")))
        .alias("key"),
        f.concat(f.lit("value-"), f.col("id")).alias("value"),
        (f.col("id") % partitions).cast("int").alias("partition"),
        f.array(
            f.struct(f.lit("number").alias("key"), f.col("id").cast("string").cast("binary").alias("value"))
        ).alias("headers"),
    ]


def write(spark, options, first, end, partitions):
    frame = spark.range(first, end, 1, 2).select(*numbered(first, end, partitions))
    frame.write.format("kafka").options(**options).save()


def copy(spark, source, sink, checkpoint):
    """From topic to topic, in micro-batches of what is there."""
    frame = (
        spark.readStream.format("kafka")
        .options(**source)
        .load()
        .select("key", "value", "partition", "headers")
    )
    query = (
        frame.writeStream.format("kafka")
        .options(**sink)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(PATIENCE_S):
        query.stop()
        raise TimeoutError("the query did not end")


def real_time(spark, source, sink, checkpoint, query):
    """From topic to topic in the real-time mode, until it is stopped."""
    frame = spark.readStream.format("kafka").options(**source).load().select("key", "value", "headers")
    RUNNING[query] = (
        frame.writeStream.format("kafka")
        .options(**sink)
        .option("checkpointLocation", checkpoint)
        .outputMode("update")
        .trigger(realTime="5 seconds")
        .start()
    )


def progress(spark, query):
    running = RUNNING[query]
    if running.exception() is not None:
        raise running.exception()
    return [json.loads(each.json) for each in running.recentProgress]


def main():
    spark = session()
    print(json.dumps({"seen": spark.version}), flush=True)
    known = {
        each.__name__: each
        for each in (
            read,
            count,
            stream,
            begin,
            await_rows,
            await_failure,
            stop,
            write,
            copy,
            real_time,
            progress,
        )
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
