"""Spark's classes as Java has them in memory, kept in a file: a driver that finds it takes half the CPU to start, and tests start many.

`python -m tests.spark_classes` makes the file, once for an environment; `tools/run_tests.py` does, beside the first groups. A Java that it is not made for,
or that can make none, does without.
"""

import os
import sys
from pathlib import Path
from typing import Any

ARCHIVE = Path(sys.prefix, "spark-classes.jsa")
#: A Java that does not optimize for a life that it will not have takes half of the CPU, too.
SHORT_LIFE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def java_options() -> str:
    # A Java that cannot use it would say so where programs print what they are asked for.
    return f"{SHORT_LIFE} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else SHORT_LIFE


def main() -> None:
    from ottla.spark.session import spark_session

    new = ARCHIVE.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{SHORT_LIFE} -XX:ArchiveClassesAtExit={new}"
    spark = spark_session("classes", master="local[2]", config={"spark.sql.shuffle.partitions": "2"})
    # What most drivers need: Python's workers, an aggregate, a stream with its checkpoint.
    spark.range(100).groupBy("id").count().collect()
    rows = spark.readStream.format("rate").load().groupBy("value").count()
    rows.writeStream.format("noop").outputMode("update").trigger(availableNow=True).start().awaitTermination()
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(120)
    new.replace(ARCHIVE)


if __name__ == "__main__":
    main()
