"""Records waiting to be sent: one queue of batches a partition, and the handle that `send` gives back.

It decides and does no I/O: callers hand it the time and ask which batches may leave. Any thread may append while the
sender drains, under one lock; its condition also wakes whoever waits for an acknowledgement or for room, so that
neither a batch nor a record needs a lock or an event of its own.

Rules: a partition has at most one batch on its way, so that a retry never overtakes a later batch; a batch that was
taken is never added to again; a batch that must be sent again goes back to the front of its queue.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from ottla.client.errors import BufferFull, ClientClosed, DeliveryTimedOut, KafkaError
from ottla.client.metadata import TopicPartition
from ottla.records.batch import HEADER_BYTES
from ottla.records.record import Record

#: Lengths, deltas and attributes of a record, at most, beside its key, value and headers.
RECORD_OVERHEAD_BYTES = 36


class RecordMetadata(NamedTuple):
    """Where a record landed. `offset` is -1 when nobody told (acks=0, or a duplicate of a forgotten batch)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Batch:
    """Records of one partition that travel together. The sender alone touches what is below `attempts`."""

    __slots__ = (
        "accumulator",
        "append_time_ms",
        "attempts",
        "base_offset",
        "callbacks",
        "created_ms",
        "done",
        "encoded",
        "error",
        "last_error",
        "not_before_ms",
        "producer",
        "records",
        "sequence",
        "size_bytes",
        "tp",
    )

    def __init__(self, accumulator: Accumulator, tp: TopicPartition, created_ms: float) -> None:
        self.accumulator = accumulator
        self.tp = tp
        self.records: list[Record] = []
        self.size_bytes = HEADER_BYTES
        self.created_ms = created_ms
        self.done = False
        self.base_offset = -1
        self.append_time_ms = -1
        self.error: KafkaError | None = None
        self.callbacks: list[Callable[[], object]] = []
        self.attempts = 0
        self.not_before_ms = 0.0
        self.encoded: bytes | None = None
        self.last_error: KafkaError | None = None
        self.producer: tuple[int, int] | None = None
        self.sequence = -1


class SendFuture:
    """The outcome of one `send`: a handle on its batch, cheap enough to make for every record."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    def done(self) -> bool:
        return self._batch.done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait (seconds) for the acknowledgement; raise what went wrong. Not for use on the event loop: await instead."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._metadata()

    def exception(self, timeout: float | None = None) -> KafkaError | None:
        batch = self._batch
        if not batch.done:
            condition = batch.accumulator.condition
            with batch.accumulator.lock:
                if not condition.wait_for(lambda: batch.done, timeout):
                    raise TimeoutError(f"the record for {batch.tp} is not acknowledged after {timeout:g} s")
        return batch.error

    def add_done_callback(self, callback: Callable[[SendFuture], object]) -> None:
        """Call back when done, on the client's own thread (or at once, here, when it is done already)."""
        self._batch.accumulator.when_done(self._batch, lambda: callback(self))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        batch = self._batch
        if not batch.done:
            loop = asyncio.get_running_loop()
            waiting: asyncio.Future[None] = loop.create_future()
            self.add_done_callback(lambda _: loop.call_soon_threadsafe(_settle, waiting))
            yield from waiting
        if batch.error is not None:
            raise batch.error
        return self._metadata()

    def _metadata(self) -> RecordMetadata:
        batch = self._batch
        offset = batch.base_offset + self._index if batch.base_offset >= 0 else -1
        stamp = batch.append_time_ms if batch.append_time_ms >= 0 else batch.records[self._index].timestamp_ms
        return RecordMetadata(batch.tp.topic, batch.tp.partition, offset, stamp)


def _settle(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


class Drained(NamedTuple):
    """What a drain found: batches to send by leader, partitions without one, and when to look again."""

    ready: dict[int, list[Batch]]
    leaderless: list[Batch]
    wait_ms: float | None


class Accumulator:
    def __init__(
        self, *, batch_bytes: int, linger_ms: float, buffer_bytes: int, delivery_timeout_ms: float
    ) -> None:
        # Taken itself, never through its condition: Condition.__enter__ is Python, and a signal that raises in it
        # would leave the lock taken for ever.
        self.lock = threading.Lock()
        self.condition = threading.Condition(self.lock)
        self.buffered_bytes = 0
        self._batch_bytes = batch_bytes
        self._linger_ms = linger_ms
        self._buffer_bytes = buffer_bytes
        self._delivery_timeout_ms = delivery_timeout_ms
        self._queues: dict[TopicPartition, deque[Batch]] = {}
        self._on_way: dict[TopicPartition, Batch] = {}
        self._flushing = 0
        self._closed = False

    # Any thread

    def append(
        self, tp: TopicPartition, record: Record, size_bytes: int, now_ms: float
    ) -> tuple[SendFuture, bool] | None:
        """Add a record; also whether the sender should look now. None when there is no room."""
        with self.lock:
            if self._closed:
                raise ClientClosed("this producer is closed", advice="Make a new one")
            if self.buffered_bytes + size_bytes > self._buffer_bytes and self.buffered_bytes:
                return None
            self.buffered_bytes += size_bytes
            queue = self._queues.get(tp)
            if queue is None:
                queue = self._queues[tp] = deque()
            batch = queue[-1] if queue else None
            # A batch that was sent before is encoded and closed.
            if (
                batch is None
                or batch.encoded is not None
                or batch.size_bytes + size_bytes > self._batch_bytes
            ):
                batch = Batch(self, tp, now_ms)
                queue.append(batch)
            batch.size_bytes += size_bytes
            records = batch.records
            records.append(record)
            index = len(records) - 1
            return SendFuture(batch, index), index == 0 or batch.size_bytes >= self._batch_bytes

    def has_open_batch(self, tp: TopicPartition) -> bool:
        """Whether the next record for the partition would join a batch that has room."""
        with self.lock:
            queue = self._queues.get(tp)
            if not queue:
                return False
            batch = queue[-1]
            return batch.encoded is None and batch.size_bytes < self._batch_bytes

    def wait_for_room(self, size_bytes: int, timeout_s: float) -> None:
        with self.lock:
            if not self.condition.wait_for(
                lambda: (
                    self._closed
                    or self.buffered_bytes + size_bytes <= self._buffer_bytes
                    or not self.buffered_bytes
                ),
                timeout_s,
            ):
                raise buffer_full(timeout_s)

    def when_done(self, batch: Batch, callback: Callable[[], object]) -> None:
        with self.lock:
            if not batch.done:
                batch.callbacks.append(callback)
                return
        callback()

    def outstanding(self) -> list[Batch]:
        """Every batch that is not acknowledged yet."""
        with self.lock:
            return [batch for queue in self._queues.values() for batch in queue] + list(self._on_way.values())

    def begin_flush(self) -> None:
        with self.lock:
            self._flushing += 1

    def end_flush(self) -> None:
        with self.lock:
            self._flushing -= 1

    def close(self) -> None:
        """Refuse new records; what is queued leaves without lingering."""
        with self.lock:
            self._closed = True
            self._flushing += 1
            self.condition.notify_all()

    # The sender

    def drain(self, now_ms: float, leaders: Callable[[TopicPartition], int | None]) -> Drained:
        """Take the batches that may leave now, one a partition. They count as on their way until `finish` or `retry`."""
        ready: dict[int, list[Batch]] = {}
        leaderless: list[Batch] = []
        wait_ms: float | None = None
        with self.lock:
            for tp, queue in list(self._queues.items()):
                if tp in self._on_way:
                    continue
                if not queue:
                    del self._queues[tp]
                    continue
                batch = queue[0]
                due_ms = self._due_ms(batch, len(queue) > 1) - now_ms
                if due_ms > 0:
                    wait_ms = due_ms if wait_ms is None else min(wait_ms, due_ms)
                    continue
                leader = leaders(tp)
                if leader is None:
                    leaderless.append(batch)
                    continue
                queue.popleft()
                self._on_way[tp] = batch
                ready.setdefault(leader, []).append(batch)
        return Drained(ready, leaderless, wait_ms)

    def _due_ms(self, batch: Batch, followed: bool) -> float:
        if batch.attempts:
            return batch.not_before_ms
        if followed or self._flushing or batch.size_bytes >= self._batch_bytes:
            return batch.not_before_ms
        return max(batch.not_before_ms, batch.created_ms + self._linger_ms)

    def expired(self, now_ms: float) -> list[Batch]:
        """Take the queued batches that are past their delivery time; the caller fails them with `finish`."""
        found: list[Batch] = []
        with self.lock:
            for queue in self._queues.values():
                while queue and queue[0].created_ms + self._delivery_timeout_ms <= now_ms:
                    found.append(queue.popleft())
        return found

    def next_expiry_ms(self) -> float | None:
        with self.lock:
            oldest = min((queue[0].created_ms for queue in self._queues.values() if queue), default=None)
        return None if oldest is None else oldest + self._delivery_timeout_ms

    def retry(self, batch: Batch, error: KafkaError, now_ms: float, backoff_ms: float) -> None:
        """Put a batch back to the front of its partition; it leaves again after the back-off."""
        with self.lock:
            self._on_way.pop(batch.tp, None)
            batch.attempts += 1
            batch.last_error = error
            batch.not_before_ms = now_ms + backoff_ms
            self._queues.setdefault(batch.tp, deque()).appendleft(batch)

    def fail_queued(self, batch: Batch, error: KafkaError) -> None:
        """Fail a batch that is still in its queue."""
        with self.lock:
            queue = self._queues.get(batch.tp)
            if queue is None or batch not in queue:
                return
            queue.remove(batch)
        self.finish(batch, error)

    def finish(
        self, batch: Batch, error: KafkaError | None, base_offset: int = -1, append_time_ms: int = -1
    ) -> None:
        """The batch is acknowledged, or has failed for good."""
        with self.lock:
            if self._on_way.get(batch.tp) is batch:
                del self._on_way[batch.tp]
            self.buffered_bytes -= batch.size_bytes - HEADER_BYTES
            batch.error = error
            batch.base_offset = base_offset
            batch.append_time_ms = append_time_ms
            batch.encoded = None
            batch.done = True
            callbacks, batch.callbacks = batch.callbacks, []
            self.condition.notify_all()
        for callback in callbacks:
            callback()

    @property
    def empty(self) -> bool:
        with self.lock:
            return not self._on_way and not any(self._queues.values())


def timed_out(batch: Batch, delivery_timeout_ms: float) -> DeliveryTimedOut:
    error = DeliveryTimedOut(
        f"{len(batch.records)} record(s) for {batch.tp} were not acknowledged within "
        f"{delivery_timeout_ms / 1000:g} s, after {batch.attempts} attempt(s)"
        + (f"; the last said: {batch.last_error}" if batch.last_error else ""),
        topic=batch.tp.topic,
        partition=batch.tp.partition,
        advice="Whether the broker has them is unknown" if batch.attempts else "They never left this client",
    )
    error.__cause__ = batch.last_error
    return error


def buffer_full(timeout_s: float) -> BufferFull:
    return BufferFull(
        f"buffer_memory stayed full for {timeout_s:g} s",
        advice="Produce more slowly, raise buffer_memory, or find out why the brokers acknowledge so slowly",
    )


def record_of(
    value: bytes | None,
    key: bytes | None,
    headers: Mapping[str, bytes | None] | Any,
    timestamp_ms: int,
) -> tuple[Record, int]:
    """A record and the most bytes that it takes in a batch."""
    size_bytes = RECORD_OVERHEAD_BYTES
    if value is not None:
        size_bytes += len(value)
    if key is not None:
        size_bytes += len(key)
    if not headers:
        return Record(0, timestamp_ms, key, value), size_bytes
    pairs = tuple(
        headers.items() if isinstance(headers, Mapping) else ((name, content) for name, content in headers)
    )
    for name, content in pairs:
        size_bytes += 4 * len(name) + (len(content) if content is not None else 0) + 10
    return Record(0, timestamp_ms, key, value, pairs), size_bytes
