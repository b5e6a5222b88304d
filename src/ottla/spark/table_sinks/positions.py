"""The source's offsets after a batch, which are stored with it: from the rows themselves, from Spark's own log, or from the caller.

Rows that carry topic, partition and offset tell them, as {topic: {partition: next offset}}: tasks find theirs, the driver joins them. Else the
checkpoint's offset log has an entry a source. That log, and the query's id, are the only things read from a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ottla.spark.table_sinks.errors import SinkError
from ottla.spark.table_sinks.folders import local_path

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Offsets = dict[str, dict[str, int]]


def join(parts: Iterable[Offsets]) -> Offsets:
    """The greatest of each partition."""
    joined: Offsets = {}
    for part in parts:
        for topic, partitions in part.items():
            mine = joined.setdefault(topic, {})
            for partition, offset in partitions.items():
                mine[partition] = max(offset, mine.get(partition, 0))
    return joined


def of_rows(batch: pa.RecordBatch) -> Offsets:
    """Behind the last row of each partition."""
    import pyarrow as pa

    table = pa.table({name: batch.column(name) for name in ("topic", "partition", "offset")})
    last = table.group_by(["topic", "partition"]).aggregate([("offset", "max")])
    found: Offsets = {}
    columns = (last.column(name).to_pylist() for name in ("topic", "partition", "offset_max"))
    for topic, partition, offset in zip(*columns, strict=True):
        if None not in (topic, partition, offset):
            found.setdefault(topic, {})[str(partition)] = offset + 1
    return found


def of_frame(frame: DataFrame) -> Offsets:
    """As `of_rows`, by a query of its own."""
    from pyspark.sql import functions as f

    last = frame.groupBy("topic", "partition").agg(f.max("offset").alias("last")).collect()
    return join(
        {row["topic"]: {str(row["partition"]): row["last"] + 1}} for row in last if None not in tuple(row)
    )


def of_checkpoint(spark: SparkSession, checkpoint: str, batch_id: int) -> Any:
    """What Spark's log says of this batch: one entry a source, None for one without data."""
    lines = _read(spark, f"{checkpoint}/offsets/{batch_id}").splitlines()
    if len(lines) < 2 or not lines[0].startswith("v"):
        raise SinkError(
            f"{checkpoint}/offsets/{batch_id} is not an entry of Spark's offset log: is checkpoint= right?"
        )
    try:
        return {"sources": [None if line == "-" else json.loads(line) for line in lines[2:]]}
    except ValueError:
        # A source may write its offsets as it likes.
        return {"sources": lines[2:]}


def query_id_of(frame: DataFrame, checkpoint: str | None) -> str | None:
    """Which query calls. None outside of a streaming query. Spark Connect does not say: there it is read from the checkpoint."""
    if checkpoint is not None:
        text = _read(frame.sparkSession, f"{checkpoint}/metadata")
        try:
            return str(json.loads(text)["id"])
        except (ValueError, KeyError, TypeError):
            raise SinkError(
                f"{checkpoint}/metadata is not that of a streaming query: is checkpoint= right?"
            ) from None
    if _is_remote(frame):
        raise SinkError(
            "over Spark Connect a sink cannot see which query it serves: give it checkpoint=, the same path as checkpointLocation"
        )
    found = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    return None if found is None else str(found)


def _is_remote(frame: DataFrame) -> bool:
    return type(frame).__module__.startswith("pyspark.sql.connect")


def _read(spark: SparkSession, path: str) -> str:
    local = local_path(path)
    if local is not None:
        try:
            return local.read_text()
        except OSError as error:
            raise SinkError(f"checkpoint=: {error}") from None
    # Whatever Spark reads, on whatever file system.
    return "\n".join(row[0] for row in spark.read.text(path).collect())
