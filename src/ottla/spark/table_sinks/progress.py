"""The progress of a table sink, and the decision about a batch: run it, skip it or refuse it. Pure.

Progress is stored in the same database and transaction as the rows: the last batch id, the query id (from the
checkpoint) and the source's offsets after the batch. With it, a repeated batch is recognized, an outdated
driver is refused, and a new checkpoint does not skip its first batches as already done.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ottla.spark.table_sinks.errors import BatchRefused, SinkError


@dataclass(frozen=True, slots=True)
class Progress:
    batch_id: int
    query_id: str | None
    #: {topic: {partition: next offset}}, or one entry per source from Spark's offset log. None if unknown.
    offsets: Any = None


class Verdict(enum.Enum):
    RUN = "run"
    #: Already in the table.
    DONE = "done"


def judge(
    done: Progress | None, *, sink_id: str, batch_id: int, query_id: str | None, reset: bool = False
) -> Verdict:
    """Decide what to do with a batch. Raises `BatchRefused`."""
    if done is None:
        if batch_id == 0 or query_id is None or reset:
            return Verdict.RUN
        # Empty batches are recorded too. So this checkpoint was used with another table or sink_id.
        raise BatchRefused(
            f"batch {batch_id} of query {query_id} is refused: nothing has been written here under sink_id "
            f"{sink_id!r}, but the "
            "checkpoint has earlier batches. It was used with another table or sink_id: use that one, or "
            "start with a new "
            "checkpoint; or, to write only the rows from here on, start once with reset=True"
        )
    if query_id != done.query_id and None not in (query_id, done.query_id):
        # Only a query's first batch may take over. A returning earlier owner is not at its first batch.
        if reset and batch_id == 0:
            return Verdict.RUN
        raise BatchRefused(
            f"batch {batch_id} of query {query_id} is refused: sink_id {sink_id!r} belongs to query "
            f"{done.query_id}, which has "
            f"written batch {done.batch_id}. A new checkpoint is a new query, whose batches start at 0. Use "
            "the old checkpoint; "
            "or give this query its own sink_id; or, to keep the rows of the table and continue with this "
            "query, start once "
            "with reset=True"
        )
    if batch_id == done.batch_id:
        return Verdict.DONE
    if batch_id == done.batch_id + 1:
        return Verdict.RUN
    if batch_id < done.batch_id:
        # Batch 0 of the query that wrote later batches comes from an outdated driver, not from a new
        # checkpoint.
        may_start_over = batch_id == 0 and None in (query_id, done.query_id)
        if reset and may_start_over:
            return Verdict.RUN
        raise BatchRefused(
            f"batch {batch_id} of sink_id {sink_id!r} is refused: batch {done.batch_id} is already in the "
            "table. If another "
            "driver runs this query, stop this one. If the checkpoint was restored or is new, use the "
            "right one, or give "
            "this query its own sink_id" + (", or start it once with reset=True" if may_start_over else "")
        )
    if reset:
        return Verdict.RUN
    raise BatchRefused(
        f"batch {batch_id} of sink_id {sink_id!r} is refused: the table has batch {done.batch_id}, and the "
        "batches between "
        "are missing. If the database was restored from a backup, restore the checkpoint of the same time "
        "too; to continue "
        "without the missing batches, start once with reset=True"
    )


def check_repeated(done: Progress, offsets: Any, *, sink_id: str, batch_id: int) -> None:
    """A skipped batch must have the stored offsets: one that reaches further would lose rows."""
    further = _further(done.offsets, offsets)
    if further is not None:
        raise BatchRefused(
            f"batch {batch_id} of sink_id {sink_id!r} is in the table, but ended earlier there: {further}. "
            "Another checkpoint "
            "wrote it: use that one, or give this query its own sink_id and table"
        )


def _further(before: Any, now: Any) -> str | None:
    """Compare offsets by topic and partition. Other offsets cannot be compared."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return None
    for topic, partitions in now.items():
        had = before.get(topic, {})
        if not all(isinstance(each, Mapping) for each in (partitions, had)):
            continue
        for partition, offset in partitions.items():
            was = had.get(str(partition), 0)
            if offset > was:
                return f"{topic}-{partition} ended at {was}, now at {offset}"
    return None


def check_sink_id(sink_id: str) -> None:
    if not 0 < len(sink_id.encode()) <= 255:
        raise SinkError(f"sink_id {sink_id[:40]!r} has {len(sink_id.encode())} bytes: use 1 to 255 bytes")
