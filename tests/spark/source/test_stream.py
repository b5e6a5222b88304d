"""`spark.readStream.format("ottla")` end to end: micro-batches, restarts, progress, group, expired checkpoint."""

import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import ottla
from ottla.client.metadata import TopicPartition
from tests.spark.source.conftest import spark_options

TIMEOUT_S = 60
Batches = list[list[bytes]]


def started(
    spark: SparkSession,
    address: str,
    checkpoint: Path,
    batches: Batches,
    trigger: dict[str, Any] | None = None,
    **options: object,
) -> StreamingQuery:
    """Each micro-batch ends in `batches`, as the sorted list of its values."""

    def keep(frame: DataFrame, number: int) -> None:
        batches.append(sorted(row.value for row in frame.select("value").collect()))

    stream = spark.readStream.format("ottla").options(**spark_options(address, **options)).load()
    writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    return writer.trigger(**trigger or {"processingTime": "0 seconds"}).start()


def test_a_stream_ends_begins_again_and_reads_everything_once(
    spark: SparkSession,
    ottla_address: str,
    topic_name: str,
    admin: ottla.Admin,
    send: Callable[..., None],
    tmp_path: Path,
) -> None:
    admin.create_topic(topic_name, 2)
    send(topic_name, b"1", b"2", b"3")
    send(topic_name, b"4", partition=1)
    options = {"subscribe": topic_name, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 2}
    batches: Batches = []
    query = started(spark, ottla_address, tmp_path, batches, {"availableNow": True}, **options)
    assert query.awaitTermination(TIMEOUT_S)
    assert [len(batch) for batch in batches] == [2, 2]
    assert sorted(chain(*batches)) == [b"1", b"2", b"3", b"4"]

    send(topic_name, b"5")
    admin.create_partitions(topic_name, 3)
    send(topic_name, b"6", partition=2)
    batches.clear()
    query = started(spark, ottla_address, tmp_path, batches, groupId=f"{topic_name}-lag", **options)
    try:
        query.processAllAvailable()
        assert sorted(chain(*batches)) == [b"5", b"6"]
        ends = {topic_name: {"0": 4, "1": 1, "2": 1}}
        [source] = query.lastProgress["sources"]
        assert json.loads(source["endOffset"]) == ends
        assert json.loads(source["latestOffset"]) == ends
        assert sum(admin.group_lag([f"{topic_name}-lag"])[f"{topic_name}-lag"].values()) == 0
    finally:
        query.stop()

    # What was not read is gone when the query begins again.
    send(topic_name, b"8", b"9")
    admin.delete_records({TopicPartition(topic_name, 0): 6})
    query = started(spark, ottla_address, tmp_path, batches, {"availableNow": True}, **options)
    with pytest.raises(
        StreamingQueryException,
        match=rf"topic {topic_name} partition 0: offsets 4 to 5 are lost \(at most 2 records\): the log starts at 6",
    ):
        query.awaitTermination(TIMEOUT_S)
