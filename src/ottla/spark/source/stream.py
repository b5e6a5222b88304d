"""Streaming reads: `spark.readStream.format("ottla")`.

Spark keeps one reader in a Python process next to the driver and calls its methods one at a time. Only `read`
runs in the workers, on a pickled copy. Offsets come from the checkpoint. Offsets committed to a group are
only for monitoring. A micro-batch that is repeated after a failure has the same start and end, so it reads
the same records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ottla.client.errors import KafkaError
from ottla.client.offsets import EARLIEST, LATEST
from ottla.spark.source.batch import arrow_schema
from ottla.spark.source.offsets import AtEnd, JsonOffsets, Offsets, from_json, offsets_of, times_of, to_json
from ottla.spark.source.options import source_options
from ottla.spark.source.read_plan import Log, Loss, advanced, is_held_back, limited, lost, ranges_of, split
from ottla.spark.source.reader import Slice, read_slice, slices
from ottla.spark.source.schema import check_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.client.metadata import TopicPartition
    from ottla.spark.source.topic_admin import TopicAdmin

_log = logging.getLogger("ottla.spark")


class OttlaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches and reads their slices."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = source_options(given, "stream")
        check_schema(schema, include_headers=self._options.include_headers)
        self._schema = schema
        self._made_admin: TopicAdmin | None = None
        #: The log end offsets of the last request.
        self._latest: Offsets | None = None
        #: With Trigger.AvailableNow: the end of the query.
        self._target: Offsets | None = None
        #: Whether the checkpoint's offsets were compared with the logs.
        self._is_checked = False
        self._triggered_at: float | None = None
        #: The offsets last committed to the group.
        self._committed: Offsets | None = None

    @property
    def _topic_admin(self) -> TopicAdmin:
        if self._made_admin is None:
            from ottla.spark.source.topic_admin import TopicAdmin

            self._made_admin = TopicAdmin(self._options)
        return self._made_admin

    # Offsets

    def initialOffset(self) -> JsonOffsets:  # noqa: N802  # Spark's name, as are those below
        options, topic_admin = self._options, self._topic_admin
        partitions = topic_admin.partitions()
        place = options.starting or AtEnd(LATEST)
        latest = topic_admin.latest(partitions)
        logs = topic_admin.logs(partitions, latest)
        answers = topic_admin.offsets(times_of(place, partitions, options.starting_option))
        starts = offsets_of(place, partitions, answers, latest, options.starting_option)
        # Records written after the log end offsets were requested are no loss: a start may be newer.
        logs = {tp: Log(log.begin, max(log.end, answers.get(tp, 0))) for tp, log in logs.items()}
        self._report_losses(
            ranges_of(starts, {tp: max(starts[tp], log.end) for tp, log in logs.items()}, logs)[1]
        )
        self._is_checked = True
        found = {tp: min(max(start, logs[tp].begin), logs[tp].end) for tp, start in starts.items()}
        if self._target is not None:
            # Spark requests the end of such a query first. Records written since then must not end it too
            # early.
            self._target |= {tp: max(self._target.get(tp, latest[tp]), start) for tp, start in found.items()}
        return to_json(found)

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:  # noqa: N802
        starts = from_json(start)
        # Spark calls `commit` when the next micro-batch begins. The request for the next one comes earlier.
        self._commit_to_group(starts)
        ends = self._ends(starts)
        known = {tp: offset for tp, offset in starts.items() if tp in ends}
        if not self._is_checked:
            self._report_losses(ranges_of(known, ends, self._topic_admin.logs(ends, ends))[1])
            self._is_checked = True
        new = [tp for tp in ends if tp not in known]
        if new:
            known |= self._topic_admin.offsets(dict.fromkeys(new, EARLIEST))
        now = time.monotonic()
        size = advanced(known, ends)
        waited_ms = (now - self._triggered_at) * 1000 if self._triggered_at is not None else float("inf")
        if self._is_short(limit, size, waited_ms):
            return start
        if size:
            self._triggered_at = now
        return to_json(limited(known, ends, limit.max_rows) if isinstance(limit, ReadMaxRows) else ends)

    def _is_short(self, limit: ReadLimit, size: int, waited_ms: float) -> bool:
        """Whether the micro-batch waits for more records.

        If the end of the query is known, waiting would hang it.
        """
        if isinstance(limit, ReadAllAvailable) or self._target is not None:
            return False
        least = limit.min_rows if isinstance(limit, ReadMinRows) else self._options.trigger_offsets_min
        wait_ms_max = self._options.trigger_delay_ms_max
        return is_held_back(size, least=least, waited_ms=waited_ms, wait_ms_max=wait_ms_max)

    def _ends(self, starts: Offsets) -> Offsets:
        """The log end offsets; with AvailableNow, those at the start of the query."""
        ends = dict(self._target) if self._target is not None else self._log_ends()
        for _attempt in range(self._options.retries):
            if not _is_behind(ends, starts):
                break
            # A newly elected leader may not know its high watermark yet.
            time.sleep(self._options.retry_interval_ms / 1000)
            ends = self._log_ends()
            if self._target is not None:
                self._target = dict(ends)
        gone = [
            Loss(tp, starts[tp], None, "the partition was deleted") for tp in sorted(set(starts) - set(ends))
        ]
        cut_off = {tp: end for tp, end in ends.items() if end < starts.get(tp, 0)}
        logs = {tp: Log(0, end) for tp, end in cut_off.items()}
        self._report_losses(gone + ranges_of({tp: starts[tp] for tp in cut_off}, cut_off, logs)[1])
        return ends

    def _log_ends(self) -> Offsets:
        self._latest = self._topic_admin.latest(self._topic_admin.partitions_left())
        return dict(self._latest)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.trigger_offsets_max is not None:
            return ReadMaxRows(options.trigger_offsets_max)
        if options.trigger_offsets_min is not None:
            return ReadMinRows(options.trigger_offsets_min)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> JsonOffsets | None:  # noqa: N802
        return None if self._latest is None else to_json(self._latest)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._log_ends()

    # Reading

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> list[Slice]:
        ends = from_json(end)
        starts = {tp: offset for tp, offset in from_json(start).items() if tp in ends}
        # Not seen by `latestOffset`: batches of an earlier run, and new partitions.
        doubted = {tp for tp in ends if not self._is_checked or tp not in starts}
        logs = {tp: Log(0, max(end, starts[tp])) for tp, end in ends.items() if tp not in doubted}
        if doubted:
            logs |= self._doubted_logs(doubted, ends)
        self._is_checked = True
        ranges, losses = ranges_of(starts, ends, logs)
        self._report_losses([loss for loss in losses if loss.tp in doubted])
        options = self._options
        return slices(split(ranges, least=options.partitions_min, records_max=options.task_records_max))

    def _doubted_logs(self, doubted: set[TopicPartition], ends: Offsets) -> dict[TopicPartition, Log]:
        there = doubted.intersection(self._topic_admin.partitions_left())
        latest = self._topic_admin.latest(there)
        for _attempt in range(self._options.retries):
            if not _is_behind(latest, ends):
                break
            # As in `_ends`.
            time.sleep(self._options.retry_interval_ms / 1000)
            latest = self._topic_admin.latest(there)
        return self._topic_admin.logs(there, latest)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Slice):
            yield from read_slice(self._options, arrow_schema(self._schema), partition)

    def _report_losses(self, losses: list[Loss]) -> None:
        if losses and self._options.fail_on_data_loss:
            raise lost(losses)
        for loss in losses:
            _log.warning("failOnDataLoss is false, skipping lost records: %s", loss)

    # After a micro-batch

    def commit(self, end: JsonOffsets) -> None:
        self._commit_to_group(from_json(end))

    def _commit_to_group(self, done: Offsets) -> None:
        """Commit the query's offsets to the group. An error does not end the query."""
        group = self._options.group_id
        if group is None or done == self._committed:
            return
        self._committed = done
        try:
            self._topic_admin.commit(group, done)
        except KafkaError as error:
            _log.warning(
                "offsets were not committed to group %s (the query continues): %s",
                group,
                error,
            )


def _is_behind(ends: Offsets, starts: Offsets) -> bool:
    return any(end < starts.get(tp, 0) for tp, end in ends.items())
