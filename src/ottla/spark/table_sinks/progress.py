"""How far a sink has come, and what that says about a batch: run it, pass it over, refuse it. Pure.

A sink's progress is kept where its rows are and changes in the same transaction: the id of the last batch, the id of the query that it came
from (which is its checkpoint's), and the source's offsets after it. So a batch that Spark runs again is known, a driver that was taken
for dead is told so, and a checkpoint that was begun anew does not pass its first batches over as if they were done.
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
    #: As the source counts: {topic: {partition: next offset}}, or one entry a source from Spark's own log. None if they are not known.
    offsets: Any = None


class Verdict(enum.Enum):
    RUN = "run"
    #: It is in the table already.
    DONE = "done"


def judge(
    done: Progress | None, *, sink_id: str, batch_id: int, query_id: str | None, reset: bool = False
) -> Verdict:
    """What is to be done with a batch; raises `BatchRefused`."""
    if done is None:
        if batch_id == 0 or query_id is None or reset:
            return Verdict.RUN
        # Each batch leaves its number behind, one without rows too: this checkpoint has been used with something else.
        raise BatchRefused(
            f"batch {batch_id} of query {query_id} is refused: nothing has been written here under sink_id {sink_id!r}, and the checkpoint "
            "has batches behind it. It was used with another table or sink_id: go on with that, or begin with a new checkpoint; or, if "
            "this one is to have only what comes from now on, start it once with reset=True"
        )
    if query_id != done.query_id and None not in (query_id, done.query_id):
        # Only a query's first batch may take over: the one that had the name before, come back, is not at its first.
        if reset and batch_id == 0:
            return Verdict.RUN
        raise BatchRefused(
            f"batch {batch_id} of query {query_id} is refused: sink_id {sink_id!r} belongs to query {done.query_id}, which has "
            f"written batch {done.batch_id}. A new checkpoint starts a new query, whose batches count from 0 again. Go on with the old "
            "checkpoint; or give this query a sink_id of its own; or, if what is in the table is to stay and this query is to go on "
            "from there, start it once with reset=True"
        )
    if batch_id == done.batch_id:
        return Verdict.DONE
    if batch_id == done.batch_id + 1:
        return Verdict.RUN
    if batch_id < done.batch_id:
        # A first batch of the query that wrote the later ones is not a new checkpoint's: it is an old driver's.
        may_begin_rebuild = batch_id == 0 and None in (query_id, done.query_id)
        if reset and may_begin_rebuild:
            return Verdict.RUN
        raise BatchRefused(
            f"batch {batch_id} of sink_id {sink_id!r} is refused: batch {done.batch_id} is already in the table. Either another "
            "driver has gone on with this query, and this one must end; or the checkpoint was set back or is a new one: go on with "
            "the right one, or give this query a sink_id of its own"
            + (", or start it once with reset=True" if may_begin_rebuild else "")
        )
    if reset:
        return Verdict.RUN
    raise BatchRefused(
        f"batch {batch_id} of sink_id {sink_id!r} is refused: the table has batch {done.batch_id}, and those between are missing. "
        "Was the database restored from a copy? Restore the checkpoint of that time too, or start once with reset=True to go on "
        "without them"
    )


def check_repeated(done: Progress, offsets: Any, *, sink_id: str, batch_id: int) -> None:
    """A batch that is passed over must have been written with the same rows; one that now reaches further would lose some."""
    further = _further(done.offsets, offsets)
    if further is not None:
        raise BatchRefused(
            f"batch {batch_id} of sink_id {sink_id!r} is in the table, but ended earlier there: {further}. The checkpoint is not the "
            "one that wrote it: go on with that one, or give this query a sink_id and a table of its own"
        )


def _further(before: Any, now: Any) -> str | None:
    """Compares offsets by topic and partition; of any others it cannot be said which is further."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return None
    for topic, partitions in now.items():
        had = before.get(topic, {})
        if not all(isinstance(each, Mapping) for each in (partitions, had)):
            continue
        for partition, offset in partitions.items():
            was = had.get(str(partition), 0)
            if offset > was:
                return f"{topic}-{partition} went to {was}, now to {offset}"
    return None


def check_sink_id(sink_id: str) -> None:
    if not 0 < len(sink_id.encode()) <= 255:
        raise SinkError(
            "sink_id must be a text of 1 to 255 bytes: it names this query's progress in the database"
        )
