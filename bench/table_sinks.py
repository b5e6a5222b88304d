"""Rows per second into database tables: `python -m bench.table_sinks [ROWS] [sqlite|mariadb|postgresql …]`.

Rows have a key, a string, a float and a time; each key occurs twice in a batch. A batch is timed as in a
query: staged by four tasks, merged and committed by the driver. Servers are started here, as for `make
interop`.
"""

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ottla.spark import table_sinks
from ottla.spark.session import spark_session
from tests.interop.databases import mariadb_server, postgresql_server


@contextlib.contextmanager
def database(kind: str) -> Iterator[str]:
    """The URL of an empty database."""
    with tempfile.TemporaryDirectory() as folder:
        if kind == "mariadb":
            with mariadb_server(Path(folder)) as port:
                yield f"mariadb://root@127.0.0.1:{port}/totals"
        elif kind == "postgresql":
            with postgresql_server(Path(folder)) as port:
                yield f"postgresql://totals@127.0.0.1:{port}/totals"
        else:
            yield f"sqlite:///{folder}/bench.db"


def rows(spark: SparkSession, count: int) -> DataFrame:
    number = f.col("id")
    return spark.range(0, count, 1, 4).select(
        (number % (count // 2)).alias("id"),
        f.concat(f.lit("the name of number "), number.cast("string")).alias("name"),
        f.rand().alias("share"),
        f.current_timestamp().alias("at"),
        number.alias("version"),
    )


def main(count: int, kinds: list[str]) -> None:
    spark = spark_session("bench", master="local[2]")
    frame = rows(spark, count)
    for kind in kinds:
        with database(kind) as url:
            append = table_sinks.append(url, table="appended", sink_id="append")
            upsert = table_sinks.upsert(url, table="current", key="id", order_by="version", sink_id="upsert")
            for batch in range(3):
                for name, sink in (("append", append), ("upsert", upsert)):
                    begun = time.perf_counter()
                    sink(frame, batch)
                    took = time.perf_counter() - begun
                    print(f"{kind:12} {name} batch {batch}: {count / took:10,.0f} rows/s")
    spark.stop()


if __name__ == "__main__":
    words = sys.argv[1:]
    amount = int(words.pop(0)) if words and words[0].isdigit() else 200_000
    main(amount, words or ["sqlite", "mariadb", "postgresql"])
