"""Fetched bytes on their way to the caller: positions, buffered batches, and records taken out of them.

It decides and does no I/O. The fetcher (event loop) asks what to fetch and puts batches in; the caller, perhaps in
another thread, takes records out, which is when batches are decoded. One lock guards it; its condition wakes callers
that wait for records. A seek makes a new generation of its partition, so that bytes asked for before are dropped.

Each partition has two places: `position`, the next record for the caller, and `fetch_offset`, the next to ask for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from ottla.client.errors import CorruptBatch, KafkaError
from ottla.client.metadata import TopicPartition
from ottla.records.batch import CONTROL_BIT, CRC_START, HEADER, TIMESTAMP_TYPE_BIT
from ottla.records.record import CorruptRecords, Headers, decode_batch, whole_batches


class ConsumerRecord(NamedTuple):
    """A record as the consumer hands it out. `timestamp` is in milliseconds since 1970, UTC."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_type: str


class Partition:
    """One assigned partition. `reset` is where to start when `position` is None: a ListOffsets timestamp."""

    __slots__ = (
        "batches",
        "buffered_bytes",
        "cursor",
        "error",
        "fetch_offset",
        "generation",
        "high_watermark",
        "log_start_offset",
        "not_before_ms",
        "paused",
        "position",
        "records",
        "reset",
        "tp",
    )

    def __init__(self, tp: TopicPartition, reset: int | None) -> None:
        self.tp = tp
        self.reset = reset
        self.position: int | None = None
        self.fetch_offset = -1
        self.generation = 0
        self.paused = False
        self.batches: deque[memoryview] = deque()
        self.buffered_bytes = 0
        self.records: list[ConsumerRecord] = []
        self.cursor = 0
        self.high_watermark = -1
        self.log_start_offset = -1
        self.not_before_ms = 0.0
        self.error: KafkaError | None = None

    def clear(self) -> None:
        self.generation += 1
        self.batches.clear()
        self.buffered_bytes = 0
        self.records = []
        self.cursor = 0
        self.error = None
        self.not_before_ms = 0.0


class FetchBuffer:
    """The assigned partitions and what was fetched for them."""

    def __init__(self, *, partition_bytes_max: int) -> None:
        # Taken itself, never through its condition: Condition.__enter__ is Python, and a signal that raises in it
        # would leave the lock taken for ever.
        self.lock = threading.Lock()
        self.condition = threading.Condition(self.lock)
        self.partitions: dict[TopicPartition, Partition] = {}
        self._partition_bytes_max = partition_bytes_max
        self._turn: deque[TopicPartition] = deque()

    # The caller, any thread

    def assign(self, wanted: Iterable[TopicPartition], reset: int | None) -> None:
        """Replace the assignment; partitions that stay keep their position and buffer."""
        with self.lock:
            before = self.partitions
            self.partitions = {tp: before.get(tp) or Partition(tp, reset) for tp in wanted}
            self._turn = deque(self.partitions)

    def place(self, tp: TopicPartition, *, offset: int | None = None, reset: int | None = None) -> None:
        """Go on at an offset, or where `reset` (a timestamp of ListOffsets) leads."""
        with self.lock:
            partition = self._assigned(tp)
            partition.clear()
            partition.position = offset
            partition.fetch_offset = -1 if offset is None else offset
            partition.reset = reset

    def pause(self, tps: Iterable[TopicPartition], paused: bool) -> None:
        with self.lock:
            for tp in tps:
                self._assigned(tp).paused = paused

    def position(self, tp: TopicPartition) -> int | None:
        with self.lock:
            return self._assigned(tp).position

    def _assigned(self, tp: TopicPartition) -> Partition:
        found = self.partitions.get(tp)
        if found is None:
            raise KafkaError(f"{tp} is not assigned to this consumer", advice="Call assign() with it first")
        return found

    def take(self, records_max: int) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Up to so many records, partition after partition, each once in turn first. Raises a partition's error once."""
        taken: dict[TopicPartition, list[ConsumerRecord]] = {}
        with self.lock:
            for _ in range(len(self._turn)):
                tp = self._turn[0]
                partition = self.partitions[tp]
                if partition.error is not None and not taken:
                    error, partition.error = partition.error, None
                    raise error
                if not partition.paused:
                    records = self._take_from(partition, records_max)
                    if records:
                        taken[tp] = records
                        records_max -= len(records)
                if records_max <= 0:
                    break
                self._turn.rotate(-1)
        return taken

    def _take_from(self, partition: Partition, records_max: int) -> list[ConsumerRecord]:
        found: list[ConsumerRecord] = []
        while len(found) < records_max:
            if partition.cursor >= len(partition.records):
                if not partition.batches:
                    break
                self._open_next(partition)
                continue
            end = partition.cursor + records_max - len(found)
            found += partition.records[partition.cursor : end]
            partition.cursor = min(end, len(partition.records))
        if found:
            partition.position = found[-1].offset + 1
        if partition.cursor >= len(partition.records) and not partition.batches and partition.error is None:
            # Control records and gaps of compaction at the end of what was fetched are behind the caller too.
            partition.position = partition.fetch_offset if partition.fetch_offset >= 0 else partition.position
        return found

    def _open_next(self, partition: Partition) -> None:
        batch = partition.batches.popleft()
        partition.buffered_bytes -= len(batch)
        topic, index = partition.tp
        start = partition.position or 0
        partition.records, partition.cursor = [], 0
        attributes = batch[CRC_START + 1]
        if attributes & CONTROL_BIT:
            return
        kind = "LogAppendTime" if attributes & TIMESTAMP_TYPE_BIT else "CreateTime"
        try:
            partition.records = [
                ConsumerRecord(topic, index, offset, timestamp, key, value, headers, kind)
                for offset, timestamp, key, value, headers in decode_batch(batch)
                if offset >= start
            ]
        except CorruptRecords as error:
            base = HEADER.unpack_from(batch)[0]
            partition.batches.clear()
            partition.buffered_bytes = 0
            partition.error = CorruptBatch(
                f"the batch at offset {base} of {partition.tp} is corrupt: {error}",
                topic=topic,
                partition=index,
                advice="Seek past it to go on, and look at the segment with `ottla log dump`",
            )
            partition.error.__cause__ = error

    @property
    def ready(self) -> bool:
        """Whether `take` has something to give or to raise."""
        return any(
            (not p.paused and (p.batches or p.cursor < len(p.records))) or p.error is not None
            for p in self.partitions.values()
        )

    # The fetcher

    def full(self, partition: Partition) -> bool:
        return partition.buffered_bytes >= self._partition_bytes_max

    def put(self, partition: Partition, generation: int, data: bytes | None) -> bool:
        """Keep the whole batches of a fetch; whether anything new came. Bytes of an older generation are dropped."""
        with self.lock:
            if (
                partition.generation != generation
                or self.partitions.get(partition.tp) is not partition
                or not data
            ):
                return False
            try:
                batches = list(whole_batches(data))
            except CorruptRecords as error:
                partition.error = CorruptBatch(
                    f"fetched bytes of {partition.tp} are corrupt: {error}",
                    topic=partition.tp.topic,
                    partition=partition.tp.partition,
                    advice=f"Seek past offset {partition.fetch_offset} to go on",
                )
                self.condition.notify_all()
                return True
            for batch in batches:
                base_offset, _, _, _, _, _, last_offset_delta, *_ = HEADER.unpack_from(batch)
                end = base_offset + last_offset_delta + 1
                if end <= partition.fetch_offset:
                    continue
                partition.batches.append(batch)
                partition.buffered_bytes += len(batch)
                partition.fetch_offset = end
            self.condition.notify_all()
            return bool(batches)

    def fail(self, partition: Partition, generation: int, error: KafkaError) -> None:
        with self.lock:
            if partition.generation == generation:
                partition.error = error
                self.condition.notify_all()
