"""Exactly once with the driver killed at four points of the commit: into SQLite, and into a table of files."""

import json
import sqlite3
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ottla.spark import sinks
from tests.spark.sinks.killed_driver import FILES as FILE_POINTS
from tests.spark.sinks.killed_driver import STATEMENTS
from tests.spark.sinks.kills import EXPECTED, FILES, end_in_peace, kill_at_each, write_source


@pytest.mark.timeout(300)
def test_input_is_output_whenever_the_driver_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    source, database, files = tmp_path / "source", tmp_path / "people.db", tmp_path / "people"
    write_source(source)
    places = {
        "database": {"url": f"sqlite:///{database}", "checkpoint": str(tmp_path / "checkpoint-database")},
        "files": {"path": str(files), "checkpoint": str(tmp_path / "checkpoint-files")},
    }
    chain = [
        {name: {**places[name], "point": point} for name, point in zip(places, points, strict=True)}
        for points in zip(STATEMENTS, FILE_POINTS, strict=True)
    ]
    kill_at_each(source, chain)
    end_in_peace(spark, source, places)

    with sqlite3.connect(database) as connection:
        assert [row for (row,) in connection.execute("SELECT id FROM people ORDER BY id")] == EXPECTED
        [(batch_id, offsets)] = connection.execute("SELECT batch_id, source_offsets FROM ottla_progress")
        tables = {
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
    connection.close()
    assert (batch_id, json.loads(offsets)) == (FILES - 1, {"sources": [{"logOffset": FILES - 1}]})
    assert tables == {"people", "ottla_progress"}

    assert sorted(row["id"] for row in spark.read.parquet(str(files)).collect()) == EXPECTED
    assert sorted(row["id"] for row in sinks.read_table(spark, str(files)).collect()) == EXPECTED
    assert not list(files.glob("_arriving*"))
