"""A driver of its own that copies one topic into another until nothing is left: `python -m tests.spark.topic_sink.driver ADDRESS IN OUT CHECKPOINT [OPTION=VALUE …]`.

`rows=NUMBER` go in a micro-batch. `fail=FILE`: a task fails as long as that file is not there, and makes it.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from ottla.spark.session import spark_session


def copy(spark: SparkSession, address: str, source: str, target: str, checkpoint: str, *given: str) -> None:
    options = dict(each.split("=", 1) for each in given)
    mark = options.pop("fail", None)

    def fail_once(value: bytes) -> bytes:
        if mark is not None and not Path(mark).exists() and value.endswith(b"77"):
            Path(mark).touch()
            raise RuntimeError("this task fails once")
        return value

    reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", address)
    reader = reader.option("subscribe", source).option("startingOffsets", "earliest")
    rows = reader.option("maxOffsetsPerTrigger", options.pop("rows")).load().select("key", "value")
    if mark is not None:
        rows = rows.select("key", f.udf(fail_once, "binary")("value").alias("value"))
    writer = rows.writeStream.format("ottla").option("kafka.bootstrap.servers", address)
    writer = writer.option("topic", target).options(**options).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    # Four attempts a task, as on a cluster.
    copy(
        spark_session("driver", master="local[2,4]", config={"spark.sql.shuffle.partitions": "2"}),
        *sys.argv[1:],
    )
