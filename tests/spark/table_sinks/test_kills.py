"""Exactly-once with the driver killed at four points of the commit: a topic into SQLite, and into Parquet."""

import json
import sqlite3
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ottla.spark import table_sinks
from tests.spark.table_sinks.killed_driver import FILES as FILE_POINTS
from tests.spark.table_sinks.killed_driver import STATEMENTS
from tests.spark.table_sinks.kills import BATCHES, EXPECTED, end_in_peace, kill_at_each, write_source


@pytest.mark.timeout(300)
def test_input_is_output_whenever_the_driver_is_killed(
    spark: SparkSession, ottla_address: str, topic_name: str, tmp_path: Path
) -> None:
    database, files = tmp_path / "people.db", tmp_path / "people"
    source = write_source(ottla_address, topic_name)
    places = {
        "database": {"url": f"sqlite:///{database}", "checkpoint": str(tmp_path / "checkpoint-database")},
        "files": {"path": str(files), "checkpoint": str(tmp_path / "checkpoint-files")},
    }
    chain = [
        {name: {**places[name], "point": point} for name, point in zip(places, points, strict=True)}
        for points in zip(STATEMENTS, FILE_POINTS, strict=True)
    ]
    kill_at_each(tmp_path, source, chain)
    end_in_peace(spark, source, places)

    with sqlite3.connect(database) as connection:
        assert [row for (row,) in connection.execute("SELECT id FROM people ORDER BY id")] == EXPECTED
        [(batch_id, offsets)] = connection.execute("SELECT batch_id, source_offsets FROM ottla_progress")
        tables = {
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
    connection.close()
    assert (batch_id, json.loads(offsets)) == (BATCHES - 1, {topic_name: {"0": len(EXPECTED)}})
    assert tables == {"people", "ottla_progress"}

    assert sorted(row["id"] for row in spark.read.parquet(str(files)).collect()) == EXPECTED
    assert sorted(row["id"] for row in table_sinks.read_table(spark, str(files)).collect()) == EXPECTED
    assert not list(files.glob("_arriving*"))
