"""A driver that stops at a chosen step of a commit and waits to be killed; a program of its own, started by `kills.py`.

    python -m tests.spark.table_sinks.killed_driver '{"source": …, "go": …, "sinks": {name: {"url" or "path": …, "checkpoint": …, "point": …, "reached": …}}}'

Each sink is a streaming query that appends what is in the source, a topic, so many rows a batch. Steps are seen where they happen: SQLite tells of statements before
it runs them, Python's audit hooks of files; the other databases' statements all go through one function.
"""

import json
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from ottla.spark import table_sinks
from ottla.spark.session import spark_session
from ottla.spark.table_sinks.database import Database, database_of

SCHEMA = "id bigint, name string"
ROWS_A_BATCH = 10
#: The four points of a database's commit: all is staged, rows are merged, all is about to count, and it counts.
STATEMENTS = ("staged", "merged", "committing", "committed")
#: The four of a table of files: rows are written, all is about to count, it counts, and it counts for good.
FILES = ("written", "renaming", "renamed", "synced")


class Point:
    """Where a sink is held: at the second batch of this driver that comes there."""

    def __init__(self, point: str, reached: Path) -> None:
        self.point = point
        self.reached = reached
        self.times = 0
        self.is_behind = False

    def _come(self, point: str) -> None:
        if point != self.point:
            return
        self.times += 1
        if self.times == 2:
            self.reached.write_text(point)
            threading.Event().wait()

    def statement(self, text: str, begin: str) -> None:
        if text == begin:
            self.is_behind = False
            self._come("staged")
        elif text.startswith("UPDATE") and "ottla_progress" in text[:30]:
            self._come("merged")
        elif text == "COMMIT":
            self._come("committing")
            self.is_behind = True
        elif text.startswith("DROP TABLE") and self.is_behind:
            self.is_behind = False
            self._come("committed")

    def file(self, root: str, event: str, *arguments: Any) -> None:
        path = str(arguments[0])
        if not path.startswith(root):
            return
        if event == "open" and path.endswith("_ottla.json") and arguments[1] == "w":
            self.is_behind = False
            self._come("written")
        elif event == "os.rename" and "ottla_batch=" in str(arguments[1]):
            self._come("renaming")
            self.is_behind = True
        elif event == "open" and path == root and self.is_behind:
            self._come("renamed")
        elif event == "shutil.rmtree" and self.is_behind:
            self.is_behind = False
            self._come("synced")


def watch_sqlite(point: Point, begin: str) -> None:
    connect = sqlite3.connect

    def watched(*arguments: Any, **settings: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **settings)
        connection.set_trace_callback(lambda text: point.statement(text, begin))
        return connection

    sqlite3.connect = watched


def watch_database(point: Point, database: Database) -> None:
    kind: Any = type(database)
    run = kind.run

    def watched(self: Database, connection: Any, statement: str, values: Any = ()) -> Any:
        point.statement(statement, database.begin)
        return run(self, connection, statement, values)

    kind.run = watched


def watch_files(point: Point, root: str) -> None:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.rename", "shutil.rmtree"):
            point.file(root, event, *arguments)

    sys.addaudithook(hook)


def sink_of(name: str, settings: dict[str, str]) -> Callable[..., None]:
    common = {"sink_id": name, "checkpoint": settings["checkpoint"]}
    if "path" in settings:
        return table_sinks.parquet_table(settings["path"], **common)  # type: ignore[arg-type]
    return table_sinks.append(settings["url"], table="people", **common)  # type: ignore[arg-type]


def start(spark: SparkSession, source: dict[str, str], name: str, settings: dict[str, str]) -> Any:
    """A query of all rows that are there."""
    records = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", source["brokers"])
        .option("subscribe", source["topic"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", ROWS_A_BATCH)
        .load()
    )
    row = f.from_json(f.col("value").cast("string"), SCHEMA).alias("row")
    rows = records.select(row, "topic", "partition", "offset").select("row.*", "topic", "partition", "offset")
    writing = rows.writeStream.foreachBatch(sink_of(name, settings)).trigger(availableNow=True)
    return writing.option("checkpointLocation", settings["checkpoint"]).start()


def main() -> None:
    told = json.loads(sys.argv[1])
    for settings in told["sinks"].values():
        point = Point(settings["point"], Path(settings["reached"]))
        if "path" in settings:
            watch_files(point, settings["path"])
        elif settings["url"].startswith("sqlite"):
            watch_sqlite(point, database_of(settings["url"]).begin)
        else:
            watch_database(point, database_of(settings["url"]))
    spark = spark_session("killed", master="local[2]", config={"spark.sql.shuffle.partitions": "2"})
    parent = os.getppid()
    while not Path(told["go"]).exists() and os.getppid() == parent:
        time.sleep(0.02)
    for name, settings in told["sinks"].items():
        start(spark, told["source"], name, settings)
    # Whoever should kill it may have been killed first.
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    main()
