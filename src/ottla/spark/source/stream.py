"""Topics as a stream: `spark.readStream.format("ottla")`.

Spark keeps one of these in a Python process beside the driver, where all but `read` is called, one call at a time; `read` runs in the
workers, on a pickled copy that was never asked anything. Offsets are the checkpoint's: what a group is told is for people to see, never
where a query goes on. A micro-batch that is repeated after a failure has the same start and end, so it reads the same.
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
from ottla.client.offsets import LATEST
from ottla.spark.source.batch import arrow_schema
from ottla.spark.source.offsets import AtEnd, JsonOffsets, Offsets, from_json, offsets_of, times_of, to_json
from ottla.spark.source.options import source_options
from ottla.spark.source.planning import Loss, advanced, is_held_back, limited, lost, ranges_of, split
from ottla.spark.source.reading import Slice, read_slice, slices
from ottla.spark.source.schema import check_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.spark.source.survey import Survey

_log = logging.getLogger("ottla.spark")


class OttlaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches and reads their slices."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = source_options(given, "stream")
        check_schema(schema, include_headers=self._options.include_headers)
        self._schema = schema
        self._asking: Survey | None = None
        #: The ends of the logs when they were last asked for.
        self._latest: Offsets | None = None
        #: With Trigger.AvailableNow: where the query ends.
        self._target: Offsets | None = None
        #: Whether the offsets of the checkpoint were held against what the logs still have.
        self._is_checked = False
        self._triggered_at: float | None = None

    @property
    def _survey(self) -> Survey:
        if self._asking is None:
            from ottla.spark.source.survey import Survey

            self._asking = Survey(self._options)
        return self._asking

    # Offsets

    def initialOffset(self) -> JsonOffsets:  # noqa: N802  # Spark's name, as are those below
        options, survey = self._options, self._survey
        partitions = survey.partitions()
        place = options.starting or AtEnd(LATEST)
        latest = survey.latest(partitions)
        answers = survey.offsets(times_of(place, partitions, options.starting_option))
        starts = offsets_of(place, partitions, answers, latest, options.starting_option)
        self._check(starts, {tp: max(start, latest[tp]) for tp, start in starts.items()}, latest)
        return to_json(starts)

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:  # noqa: N802
        starts = from_json(start)
        ends = self._ends(starts)
        if not self._is_checked:
            self._check(starts, ends, ends)
        now = time.monotonic()
        size = advanced(starts, ends)
        waited_ms = (now - self._triggered_at) * 1000 if self._triggered_at is not None else float("inf")
        if self._is_short(limit, size, waited_ms):
            return start
        if isinstance(limit, ReadMaxRows):
            ends = limited(starts, ends, limit.max_rows)
        self._triggered_at = now
        return to_json(ends)

    def _is_short(self, limit: ReadLimit, size: int, waited_ms: float) -> bool:
        """Whether the micro-batch waits for more. Where the end is known, waiting for more would be for ever."""
        if isinstance(limit, ReadAllAvailable) or self._target is not None:
            return False
        least = limit.min_rows if isinstance(limit, ReadMinRows) else self._options.trigger_offsets_min
        wait_ms_max = self._options.trigger_delay_ms_max
        return is_held_back(size, least=least, waited_ms=waited_ms, wait_ms_max=wait_ms_max)

    def _ends(self, starts: Offsets) -> Offsets:
        """Where the logs end now: with AvailableNow where they ended when the query began."""
        if self._target is not None:
            # What the checkpoint has and the target lacks was deleted; it is told of when the batch is planned.
            return {tp: max(end, starts.get(tp, 0)) for tp, end in self._target.items()}
        partitions = self._survey.partitions_left()
        gone = sorted(set(starts) - set(partitions))
        if gone:
            self._lose([Loss(tp, starts[tp], None, "the partition was deleted") for tp in gone])
        self._latest = self._survey.latest(partitions)
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
        self._latest = self._survey.latest(self._survey.partitions())
        self._target = self._latest

    # Reading

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> list[Slice]:
        starts, ends = from_json(start), from_json(end)
        latest = self._latest
        if not self._is_checked or latest is None or any(tp not in starts for tp in ends):
            # A batch of an earlier run, or with a new partition: what is gone is told before anything is read.
            latest = self._survey.latest(self._survey.partitions_left())
            ranges = self._check(starts, ends, latest)
        else:
            logs_end = {tp: (0, max(latest.get(tp, 0), ends[tp])) for tp in ends}
            ranges = _plain_ranges(starts, ends, logs_end)
        options = self._options
        return slices(split(ranges, least=options.partitions_min, records_max=options.task_records_max))
