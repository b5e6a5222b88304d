"""Exactly once into MariaDB and PostgreSQL with the driver killed at four points of the commit; and a sink over Spark Connect.

SQLite and tables of files are killed in the default tests, `tests/spark/sinks/test_kills.py`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ottla.spark.java import find_java
from ottla.spark.session import spark_session
from tests.interop.databases import mariadb_server, postgresql_server
from tests.interop.test_spark_databases import InMariaDB, InPostgreSQL
from tests.spark.sinks.killed_driver import STATEMENTS
from tests.spark.sinks.kills import EXPECTED, FILES, end_in_peace, kill_at_each, write_source

CONNECT = """
import sys
from pyspark.sql import SparkSession
from ottla.spark import sinks

source, url, checkpoint, *given = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
rows = spark.readStream.schema("id bigint, name string").option("maxFilesPerTrigger", 4).json(source)
sink = sinks.append(url, table="people", sink_id="people", checkpoint=given[0] if given else None)
query = rows.writeStream.foreachBatch(sink).trigger(availableNow=True).option("checkpointLocation", checkpoint).start()
assert query.awaitTermination(100)
print("error:", query.exception())
spark.stop()
"""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = spark_session("interop", master="local[2]", config={"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()


@pytest.mark.timeout(600)
def test_input_is_output_whenever_the_driver_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_source(source)
    for name in ("mariadb", "postgresql"):
        (tmp_path / name).mkdir()
    with mariadb_server(tmp_path / "mariadb") as first, postgresql_server(tmp_path / "postgresql") as second:
        servers = {"mariadb": InMariaDB(first), "postgresql": InPostgreSQL(second)}
        places = {
            name: {"url": server.url, "checkpoint": str(tmp_path / f"checkpoint-{name}")}
            for name, server in servers.items()
        }
        chain = [
            {name: {**settings, "point": point} for name, settings in places.items()} for point in STATEMENTS
        ]
        kill_at_each(source, chain)
        end_in_peace(spark, source, places)
        for server in servers.values():
            assert [row for (row,) in server.ask("SELECT id FROM people ORDER BY id")] == EXPECTED
            [(batch_id, offsets)] = server.ask("SELECT batch_id, source_offsets FROM ottla_progress")
            assert (batch_id, json.loads(offsets)) == (FILES - 1, {"sources": [{"logOffset": FILES - 1}]})
            assert server.staging("ottla_stage") == []


def over_connect(source: Path, url: str, checkpoint: Path, *given: str) -> str:
    home = find_java()
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, **({"JAVA_HOME": home} if home else {})}
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, str(source), url, str(checkpoint), *given],
        check=False, capture_output=True, text=True, timeout=250, env=environment,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.timeout(600)
def test_a_sink_over_spark_connect(tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    write_source(source)
    (tmp_path / "postgresql").mkdir()
    with postgresql_server(tmp_path / "postgresql") as port:
        server = InPostgreSQL(port)
        said = over_connect(source, server.url, checkpoint)
        assert "give it checkpoint=, the same path as checkpointLocation" in said, said
        said = over_connect(source, server.url, checkpoint, str(checkpoint))
        assert "error: None" in said, said
        assert [row for (row,) in server.ask("SELECT id FROM people ORDER BY id")] == EXPECTED
        [(batch_id, query_id)] = server.ask("SELECT batch_id, query_id FROM ottla_progress")
        assert batch_id == 2 and json.loads((checkpoint / "metadata").read_text())["id"] == query_id
