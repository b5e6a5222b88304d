"""The source's offsets after a batch: from the rows, from Spark's offset log or from the caller.

Rows with topic, partition and offset yield {topic: {partition: next offset}}: tasks compute their part, the
driver joins them. Otherwise the checkpoint's offset log has one entry per source. From a checkpoint, only
this log and the query id are read.
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
    """The greatest offset of each partition."""
    joined: Offsets = {}
    for part in parts:
        for topic, partitions in part.items():
            mine = joined.setdefault(topic, {})
            for partition, offset in partitions.items():
                mine[partition] = max(offset, mine.get(partition, 0))
    return joined


def of_rows(batch: pa.RecordBatch) -> Offsets:
    """The offset after the last row of each partition."""
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
    """As `of_rows`, by a separate Spark query."""
    from pyspark.sql import functions as f

    last = frame.groupBy("topic", "partition").agg(f.max("offset").alias("last")).collect()
    return join(
        {row["topic"]: {str(row["partition"]): row["last"] + 1}} for row in last if None not in tuple(row)
    )


def of_checkpoint(spark: SparkSession, checkpoint: str, batch_id: int) -> Any:
    """The entry of this batch in Spark's offset log: one element per source, None without data."""
    lines = _read(spark, f"{checkpoint}/offsets/{batch_id}").splitlines()
    if len(lines) < 2 or not lines[0].startswith("v"):
        raise SinkError(
            f"{checkpoint}/offsets/{batch_id} is not an entry of Spark's offset log: correct checkpoint="
        )
    try:
        return {"sources": [None if line == "-" else json.loads(line) for line in lines[2:]]}
    except ValueError:
        # A source may use its own format.
        return {"sources": lines[2:]}


def query_id_of(frame: DataFrame, checkpoint: str | None) -> str | None:
    """The id of the calling query; None outside of a streaming query.

    Over Spark Connect it comes from the checkpoint.
    """
    if checkpoint is not None:
        text = _read(frame.sparkSession, f"{checkpoint}/metadata")
        try:
            return str(json.loads(text)["id"])
        except (ValueError, KeyError, TypeError):
            raise SinkError(
                f"{checkpoint}/metadata does not belong to a streaming query: correct checkpoint="
            ) from None
    if _is_remote(frame):
        raise SinkError(
            "the query id is not available over Spark Connect: set checkpoint= to the query's "
            "checkpointLocation"
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
    # Any file system that Spark can read.
    return "\n".join(row[0] for row in spark.read.text(path).collect())
