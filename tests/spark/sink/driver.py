"""A driver of its own that copies until nothing is left: `python -m tests.spark.sink.driver ADDRESS FOLDER TOPIC CHECKPOINT [OPTION=VALUE …]`.

Each file of the folder is a micro-batch, each of its lines a record. `fail=FILE`: the tasks fail as long as that file is not there; they make it.
"""

import sys
from pathlib import Path

from pyspark.sql import functions as f

from ottla.spark.session import spark_session


def main(address: str, folder: str, topic: str, checkpoint: str, *given: str) -> None:
    options = dict(each.split("=", 1) for each in given)
    mark = options.pop("fail", None)
    # Four attempts a task, as on a cluster.
    spark = spark_session("driver", master="local[2,4]", config={"spark.sql.shuffle.partitions": "2"})

    def fail_once(value: str) -> str:
        if mark is not None and not Path(mark).exists() and int(value) % 1000 == 500:
            Path(mark).touch()
            raise RuntimeError("this task fails once")
        return value

    rows = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(folder)
    if mark is not None:
        rows = rows.select(f.udf(fail_once)("value").alias("value"))
    writer = rows.select(f.col("value").alias("key"), "value").repartition(2).writeStream.format("ottla")
    writer = writer.option("kafka.bootstrap.servers", address).option("topic", topic).options(**options)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
