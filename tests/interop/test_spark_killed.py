"""Exactly once into MariaDB and PostgreSQL with the driver killed at four points of the commit; and a sink over Spark Connect.

SQLite and tables of files are killed in the default tests, `tests/spark/table_sinks/test_kills.py`.
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
from tests.running_broker import ottla_address, topic_name
from tests.spark.table_sinks.killed_driver import STATEMENTS
from tests.spark.table_sinks.kills import BATCHES, EXPECTED, end_in_peace, kill_at_each, write_source

__all__ = ["ottla_address", "topic_name"]

CONNECT = """
import sys
from pyspark.sql import SparkSession
from ottla.spark import table_sinks

brokers, topic, url, checkpoint, *given = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
options = {"kafka.bootstrap.servers": brokers, "subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 40}
records = spark.readStream.format("ottla").options(**options).load()
rows = records.selectExpr("from_json(string(value), 'id bigint, name string') AS row", "topic", "partition", "offset")
rows = rows.select("row.*", "topic", "partition", "offset")
sink = table_sinks.append(url, table="people", sink_id="people", checkpoint=given[0] if given else None)
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
def test_input_is_output_whenever_the_driver_is_killed(
    spark: SparkSession, ottla_address: str, topic_name: str, tmp_path: Path
) -> None:
    source = write_source(ottla_address, topic_name)
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
        kill_at_each(tmp_path, source, chain)
        end_in_peace(spark, source, places)
        for server in servers.values():
            assert [row for (row,) in server.ask("SELECT id FROM people ORDER BY id")] == EXPECTED
            [(batch_id, offsets)] = server.ask("SELECT batch_id, source_offsets FROM ottla_progress")
            assert (batch_id, json.loads(offsets)) == (BATCHES - 1, {topic_name: {"0": len(EXPECTED)}})
            assert server.staging("ottla_stage") == []


def over_connect(source: dict[str, str], url: str, checkpoint: Path, *given: str) -> str:
    home = find_java()
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, **({"JAVA_HOME": home} if home else {})}
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, source["brokers"], source["topic"], url, str(checkpoint), *given],
        check=False, capture_output=True, text=True, timeout=250, env=environment,
    )  # fmt: skip
    return done.stdout + done.stderr


@pytest.mark.timeout(600)
def test_a_sink_over_spark_connect(ottla_address: str, topic_name: str, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    source = write_source(ottla_address, topic_name)
    (tmp_path / "postgresql").mkdir()
    with postgresql_server(tmp_path / "postgresql") as port:
        server = InPostgreSQL(port)
        said = over_connect(source, server.url, checkpoint)
        assert "set checkpoint= to the query's checkpointLocation" in said, said
        said = over_connect(source, server.url, checkpoint, str(checkpoint))
        assert "error: None" in said, said
        assert [row for (row,) in server.ask("SELECT id FROM people ORDER BY id")] == EXPECTED
        [(batch_id, query_id)] = server.ask("SELECT batch_id, query_id FROM ottla_progress")
        assert (
            batch_id == (len(EXPECTED) - 1) // 40
            and json.loads((checkpoint / "metadata").read_text())["id"] == query_id
        )
