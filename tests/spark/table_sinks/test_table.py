"""Database tables as sinks of a real Spark. Other guarantees are in `table_behaviour.py`."""

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import ottla
from ottla.spark import table_sinks
from ottla.spark.dead_letters import DeadLetters
from tests.sdk.reading import contents

SCHEMA = "id bigint, name string, topic string, partition int, offset bigint"


def source(spark: SparkSession, folder: Path, *batches: list[tuple[Any, ...]]) -> DataFrame:
    """A stream of files, one a batch."""
    names = [part.split()[0] for part in SCHEMA.split(", ")]
    folder.mkdir(exist_ok=True)
    for rows in batches:
        lines = [json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows]
        number = len(list(folder.iterdir()))
        path = folder / f"{number:03}.json"
        path.write_text("".join(lines))
        # Spark takes files in the order of their age.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))


def run(rows: DataFrame, sink: Any, checkpoint: Path) -> Any:
    writing = rows.writeStream.foreachBatch(sink).trigger(availableNow=True)
    query = writing.option("checkpointLocation", str(checkpoint)).start()
    assert query.awaitTermination(60)
    return query


def ask(database: Path, statement: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(database)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def test_a_query_keeps_a_table_and_its_progress(spark: SparkSession, tmp_path: Path) -> None:
    database = tmp_path / "people.db"
    sink = table_sinks.upsert(f"sqlite:///{database}", table="people", key="id", sink_id="people")
    first = [(1, "a", "t", 0, 0), (2, "b", "t", 0, 1), (1, "newer", "t", 0, 2)]
    rows = source(spark, tmp_path / "source", first, [(2, None, "t", 0, 3), (3, "c", "t", 1, 7)])
    query = run(rows, sink, tmp_path / "checkpoint")
    assert ask(database, "SELECT * FROM people ORDER BY id") == [(1, "newer"), (3, "c")]
    [(batch_id, query_id, offsets)] = ask(
        database, "SELECT batch_id, query_id, source_offsets FROM ottla_progress"
    )
    assert (batch_id, query_id, json.loads(offsets)) == (1, query.id, {"t": {"0": 4, "1": 8}})

    # A new checkpoint counts from 0 again: batch 0 and 1 would be taken for done, and what is in them now would be lost.
    source(spark, tmp_path / "source", [(4, "d", "t", 0, 9)])
    with pytest.raises(StreamingQueryException, match=rf"'people' belongs to query {query.id}.*batch 1"):
        run(
            rows,
            table_sinks.upsert(f"sqlite:///{database}", table="people", key="id", sink_id="people"),
            tmp_path / "new",
        )
    assert ask(database, "SELECT count(*) FROM people") == [(2,)]


def test_rows_that_are_refused_become_dead_letters(
    spark: SparkSession, tmp_path: Path, ottla_address: str, topic_name: str
) -> None:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 1)
    database = tmp_path / "people.db"
    connection = sqlite3.connect(database)
    connection.execute("CREATE TABLE people (id BIGINT PRIMARY KEY, name TEXT CHECK (length(name) < 9))")
    connection.close()
    sink = table_sinks.upsert(
        f"sqlite:///{database}", table="people", key="id", sink_id="people", dead_letters=DeadLetters(ottla_address, topic_name)
    )  # fmt: skip
    rows = [(1, "a", "t", 0, 0), (2, "much too long", "t", 0, 1), (None, "b", "t", 0, 2), (3, "c", "t", 0, 3)]
    sink(spark.createDataFrame(rows, SCHEMA), 0)
    assert ask(database, "SELECT * FROM people ORDER BY id") == [(1, "a"), (3, "c")]
    letters = contents(ottla_address, topic_name)[0]
    assert [json.loads(letter.value) for letter in letters] == [
        {"id": None, "name": "b"},
        {"id": 2, "name": "much too long"},
    ]
    headers = [dict(letter.headers) for letter in letters]
    assert headers[0]["error.reason"] == b"key column id is null" and b"CHECK" in headers[1]["error.reason"]
    assert [[each[f"error.{name}"] for name in ("topic", "partition", "offset")] for each in headers] == [
        [b"t", b"0", b"2"],
        [b"t", b"0", b"1"],
    ]
