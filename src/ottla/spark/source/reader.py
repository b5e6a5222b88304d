"""Reads one task's offset range of one partition into Arrow batches. Runs in Spark's Python workers.

The position may advance without records (compaction, transaction markers, aborted transactions). Records
after the end of the range are dropped. Consumers are reused by later tasks; between tasks they have no
assignment and fetch nothing.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition

from ottla.client.errors import LogTruncated, OffsetOutOfRange, TopicNotFound
from ottla.client.metadata import TopicPartition
from ottla.spark import clients
from ottla.spark.source.options import SourceOptions
from ottla.spark.source.read_plan import Log, Loss, Range, lost, ranges_of
from ottla.spark.worker import freeze_loaded_modules

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.client.consumer.sync import Consumer

_log = logging.getLogger("ottla.spark")

#: Spark is fastest with batches of 10,000 to 50,000 rows. Large records make smaller batches, to limit
#: memory.
ROWS_FIRST: Final = 10_000
ROWS_MAX: Final = 50_000
BATCH_BYTES: Final = 8 * 1024 * 1024
#: Fetch size per partition. For a short range the client's default suffices.
FETCH_BYTES: Final = 8 * 1024 * 1024
SHORT_RANGE: Final = 5_000
#: The records exist, so a fetch need not wait for more. A waiting fetch would delay the next task.
FETCH_WAIT_MS: Final = 5
#: Interval for checking whether the position advanced without records.
_LOOK_MS: Final = 20
#: Without progress for this long, a task checks whether the topic still exists.
_DOUBT_S: Final = 1.0


class NoProgress(RuntimeError):
    """Expected records did not arrive."""


@dataclass
class Slice(InputPartition):
    """The offset range of one task; `end` is exclusive."""

    topic: str
    partition: int
    start: int
    end: int


def slices(ranges: list[Range]) -> list[Slice]:
    return [Slice(*range_.tp, range_.start, range_.end) for range_ in ranges]


def read_slice(options: SourceOptions, schema: pa.Schema, part: Slice) -> Iterator[pa.RecordBatch]:
    """Read the records of the slice, in batches."""
    defaults = {"fetch_max_wait_ms": FETCH_WAIT_MS}
    if part.end - part.start > SHORT_RANGE:
        defaults["max_partition_fetch_bytes"] = FETCH_BYTES
    given = {name.replace(".", "_") for name in options.kafka}
    settings: dict[str, Any] = {name: value for name, value in defaults.items() if name not in given}
    with clients.consumer(options.kafka, auto_offset_reset="none", **settings) as consumer:
        yield from _SliceReader(options, schema, part, consumer).batches()
    freeze_loaded_modules()


class _SliceReader:
    def __init__(self, options: SourceOptions, schema: pa.Schema, part: Slice, consumer: Consumer) -> None:
        from ottla.spark.source.arrow import BatchMaker

        self._options = options
        self._tp = TopicPartition(part.topic, part.partition)
        self._position = part.start
        self._end = part.end
        self._consumer = consumer
        self._maker = BatchMaker(schema, *self._tp)
        self._rows_max = ROWS_FIRST
        self._moved_at = self._looked_at = time.monotonic()

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._position >= self._end:
            return
        try:
            self._consumer.assign([self._tp])
            self._consumer.seek(self._tp, self._position)
            while self._position < self._end:
                batch = self._next()
                if self._position >= self._end:
                    # Before the last batch is yielded, so that nothing more is fetched.
                    self._consumer.assign([])
                if batch is not None and batch.num_rows:
                    yield batch
                    # Do not count Spark's processing time against the broker.
                    self._moved_at = time.monotonic()
        except TopicNotFound:
            self._consumer.assign([])
            self._report_losses([Loss(self._tp, self._position, self._end, "the partition was deleted")])

    def _next(self) -> pa.RecordBatch | None:
        try:
            polled = self._consumer.poll_columns(_LOOK_MS, self._rows_max)
        except (OffsetOutOfRange, LogTruncated):
            self._go_behind_gap()
            return None
        columns = polled.get(self._tp)
        batch = None
        if columns is not None:
            batch = self._maker.batch(columns)
            self._rows_max = max(min(BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1), ROWS_MAX), 1)
            if columns.offsets[-1] >= self._end:
                batch = batch.slice(0, bisect_left(columns.offsets, self._end))
                self._position = self._end
                return batch
        self._see_position()
        return batch

    def _see_position(self) -> None:
        position = self._consumer.position(self._tp)
        now = time.monotonic()
        if position > self._position:
            self._position, self._moved_at = position, now
            return
        if now - max(self._moved_at, self._looked_at) > _DOUBT_S:
            # The consumer waits for a missing topic, because it may be new. Here a missing topic was deleted.
            self._looked_at = now
            self._consumer.partitions_for(self._tp.topic)
        if (now - self._moved_at) * 1000 > self._options.poll_timeout_ms:
            raise NoProgress(
                f"topic {self._tp.topic} partition {self._tp.partition}: no records at offset "
                f"{self._position} for "
                f"{now - self._moved_at:.1f} s, but the range to read ends at {self._end}: check the "
                "brokers, "
                "or raise kafkaConsumer.pollTimeoutMs"
            )

    def _go_behind_gap(self) -> None:
        """The position is not in the log: continue after the gap, if the options allow it."""
        tp = self._tp
        begin = self._consumer.beginning_offsets([tp])[tp]
        log = Log(begin, max(self._consumer.end_offsets([tp])[tp], begin))
        ranges, losses = ranges_of({tp: self._position}, {tp: self._end}, {tp: log})
        self._report_losses(losses)
        if not ranges:
            self._position = self._end
            return
        self._end = ranges[0].end
        self._consumer.seek(tp, ranges[0].start)
        self._see_position()

    def _report_losses(self, losses: list[Loss]) -> None:
        if losses and self._options.fail_on_data_loss:
            raise lost(losses)
        for loss in losses:
            _log.warning("failOnDataLoss is false, skipping lost records: %s", loss)
