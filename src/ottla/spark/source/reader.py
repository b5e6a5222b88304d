"""One task's reading: a range of offsets of one partition, from the broker into Arrow batches. It runs in Spark's Python workers.

A position may move without records (compaction, markers, aborted transactions), and that counts as progress. What is read beyond the
end of the range is cut off. Consumers are kept from one task to the next; between tasks they hold no partition, so they fetch nothing.
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
from ottla.spark.worker import spare_loaded

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.client.consumer.sync import Consumer

_log = logging.getLogger("ottla.spark")

#: Spark takes batches of 10,000 to 50,000 rows fastest; large records make smaller ones, or memory would be the limit.
ROWS_FIRST: Final = 10_000
ROWS_MAX: Final = 50_000
BATCH_BYTES: Final = 8 * 1024 * 1024
#: What one fetch brings of a partition. A short range needs no more than the client's own default.
FETCH_BYTES: Final = 8 * 1024 * 1024
SHORT_RANGE: Final = 5_000
#: What is read is there, so a broker has no reason to hold a fetch; one that it holds would delay the next task's.
FETCH_WAIT_MS: Final = 5
#: How long to wait before looking whether the position moved without records.
_LOOK_MS: Final = 20
#: After this long without anything a task looks whether the topic is still there.
_DOUBT_S: Final = 1.0


class NoProgress(RuntimeError):
    """Records that must be there did not come."""


@dataclass
class Slice(InputPartition):
    """What one task reads: the offsets from `start` to before `end`."""

    topic: str
    partition: int
    start: int
    end: int


def slices(ranges: list[Range]) -> list[Slice]:
    return [Slice(*range_.tp, range_.start, range_.end) for range_ in ranges]


def read_slice(options: SourceOptions, schema: pa.Schema, part: Slice) -> Iterator[pa.RecordBatch]:
    """The records of the slice, in batches."""
    defaults = {"fetch_max_wait_ms": FETCH_WAIT_MS}
    if part.end - part.start > SHORT_RANGE:
        defaults["max_partition_fetch_bytes"] = FETCH_BYTES
    given = {name.replace(".", "_") for name in options.kafka}
    settings: dict[str, Any] = {name: value for name, value in defaults.items() if name not in given}
    with clients.consumer(options.kafka, auto_offset_reset="none", **settings) as consumer:
        yield from _SliceReader(options, schema, part, consumer).batches()
    spare_loaded()


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
                    # Before the last batch is handed out: nothing is fetched that nobody wants.
                    self._consumer.assign([])
                if batch is not None and batch.num_rows:
                    yield batch
                    # The time that Spark took is not the broker's.
                    self._moved_at = time.monotonic()
        except TopicNotFound:
            self._consumer.assign([])
            self._lose([Loss(self._tp, self._position, self._end, "the partition was deleted")])

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
            # A topic that was deleted is waited for by the consumer, since it may be on its way: here it is gone.
            self._looked_at = now
            self._consumer.partitions_for(self._tp.topic)
        if (now - self._moved_at) * 1000 > self._options.poll_timeout_ms:
            raise NoProgress(
                f"topic {self._tp.topic} partition {self._tp.partition}: nothing came at offset {self._position} for "
                f"{now - self._moved_at:.1f} s, though the range to read ends at {self._end}. Look at the brokers, "
                "or raise kafkaConsumer.pollTimeoutMs"
            )

    def _go_behind_gap(self) -> None:
        """The position is not in the log: behind the gap, if the options allow it."""
        tp = self._tp
        begin = self._consumer.beginning_offsets([tp])[tp]
        log = Log(begin, max(self._consumer.end_offsets([tp])[tp], begin))
        ranges, losses = ranges_of({tp: self._position}, {tp: self._end}, {tp: log})
        self._lose(losses)
        if not ranges:
            self._position = self._end
            return
        self._end = ranges[0].end
        self._consumer.seek(tp, ranges[0].start)
        self._see_position()

    def _lose(self, losses: list[Loss]) -> None:
        if losses and self._options.fail_on_data_loss:
            raise lost(losses)
        for loss in losses:
            _log.warning("failOnDataLoss is false, going on without what is lost: %s", loss)
