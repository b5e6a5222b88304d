"""Batches of records for a partition, and the future that `send` returns.

A batch is filled under the accumulator's lock, and sent and finished by the sender. It keeps one outcome for
all its records: a `SendFuture` is a batch and an index, cheap enough to create for every record. A batch that
is too large for the broker is split into parts (`cut`). The whole is done when its parts are, and returns a
record's outcome from its part.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ottla.client.errors import DeliveryTimedOut, KafkaError
from ottla.client.metadata import TopicPartition
from ottla.records.batch import HEADER_BYTES
from ottla.records.gathered import Gathered
from ottla.records.record import Headers as RecordHeaders
from ottla.records.record import Record

if TYPE_CHECKING:
    from ottla.client.producer.accumulator import Accumulator

#: Upper bound of a record's lengths, deltas and attributes, without key, value and headers.
RECORD_OVERHEAD_BYTES = 36

logger = logging.getLogger(__name__)


class RecordMetadata(NamedTuple):
    """Topic, partition, offset and timestamp of a record.

    `offset` is -1 if the broker did not return one: with acks=0, after a failure, or for a duplicate of an
    old batch.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


#: Same as the constructor in half the time; called once per record.
_metadata: Final = tuple.__new__

Headers: TypeAlias = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]
#: Called with the metadata and the error; the error is None after an acknowledgement.
OnDelivery: TypeAlias = Callable[[RecordMetadata, KafkaError | None], object]
ProducerId: TypeAlias = tuple[int, int]


class ProducerBatch:
    """Records of one partition that are sent together. `order` is the batch's position in its partition."""

    __slots__ = (
        "accumulator",
        "append_time_ms",
        "attempts",
        "base_offset",
        "callbacks",
        "closed",
        "created_ms",
        "done",
        "encoded",
        "error",
        "last_error",
        "not_before_ms",
        "order",
        "parent",
        "parts",
        "producer",
        "record_errors",
        "records",
        "sequence",
        "size_bytes",
        "stamps",
        "start",
        "taken_ms",
        "tp",
    )

    def __init__(self, accumulator: Accumulator, tp: TopicPartition, created_ms: float, order: int) -> None:
        self.accumulator = accumulator
        self.tp = tp
        self.records = Gathered()
        self.size_bytes = HEADER_BYTES
        self.created_ms = created_ms
        self.order = (order, 0)
        # Checked before each append: a batch that was drained once gets no more records.
        self.closed = False
        self.callbacks: list[tuple[int, OnDelivery]] = []
        # The outcome.
        self.done = False
        # Set when the whole batch is acknowledged with offsets: the timestamp of each record. There are no
        # errors then.
        self.stamps: Sequence[int] | None = None
        self.base_offset = -1
        self.append_time_ms = -1
        self.error: KafkaError | None = None
        self.record_errors: dict[int, KafkaError] = {}
        # Used by the sender.
        self.attempts = 0
        self.taken_ms = 0.0
        self.not_before_ms = 0.0
        self.encoded: bytes | None = None
        self.last_error: KafkaError | None = None
        self.producer: ProducerId | None = None
        self.sequence = -1
        # For a part of a split batch: the whole, and the index of the part's first record in it.
        self.parts: list[ProducerBatch] | None = None
        self.parent: ProducerBatch | None = None
        self.start = 0

    def cut(self) -> list[ProducerBatch]:
        """Split the batch into halves that keep its position, sequence numbers and age."""
        assert len(self.records) > 1
        middle = len(self.records) // 2
        root, parts = self.parent or self, []
        for start, stop in ((0, middle), (middle, len(self.records))):
            part = ProducerBatch(self.accumulator, self.tp, self.created_ms, 0)
            part.records = self.records.part(start, stop)
            part.size_bytes += sum(size_of(record) for record in part.records)
            part.start = self.start + start
            part.order = (self.order[0], part.start)
            part.closed = True
            part.parent = root
            part.attempts, part.last_error = self.attempts, self.last_error
            part.producer = self.producer
            part.sequence = self.sequence if self.sequence < 0 else (self.sequence + start) & 0x7FFFFFFF
            parts.append(part)
        # Records that were compressed take more memory now.
        self.accumulator.buffered_bytes += sum(part.size_bytes - HEADER_BYTES for part in parts) - (
            self.size_bytes - HEADER_BYTES
        )
        if root.parts is None:
            root.parts = parts
        else:
            at = root.parts.index(self)
            root.parts[at : at + 1] = parts
        self.records.forget()
        return parts

    def error_of(self, index: int) -> KafkaError | None:
        if self.parts is not None:
            part = self._part(index)
            return part.error_of(index - part.start)
        return self.record_errors.get(index, self.error) if self.record_errors else self.error

    def metadata_of(self, index: int) -> RecordMetadata:
        if self.parts is not None:
            part = self._part(index)
            return part.metadata_of(index - part.start)
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        stamp = self.append_time_ms if self.append_time_ms >= 0 else self.records.timestamp_of(index)
        return RecordMetadata(*self.tp, offset, stamp)

    def _part(self, index: int) -> ProducerBatch:
        assert self.parts is not None
        return self.parts[bisect_right(self.parts, index, key=lambda part: part.start) - 1]

    def run_callbacks(self, callbacks: Iterable[tuple[int, OnDelivery]]) -> None:
        """Call back, outside the lock. A callback that raises is logged and does not stop the others."""
        for index, callback in callbacks:
            try:
                callback(self.metadata_of(index), self.error_of(index))
            except BaseException as error:
                logger.exception("a callback of a record for %s raised", self.tp)
                # sys.exit() ends the program from the main thread only. In another thread it would only stop
                # the callbacks.
                if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
                    raise


class SendFuture:
    """The outcome of one `send`: call `result()` in a thread, or await it on an event loop.

    Example:
        >>> sent = producer.send("orders", b"value")
        >>> sent.result(timeout=10).offset
        3
    """

    # No `__init__`: it would double the time to create one. The code that creates one sets both fields.

    __slots__ = ("batch", "index")

    batch: ProducerBatch
    #: The record's index in its batch.
    index: int

    def done(self) -> bool:
        """Return whether the record is acknowledged or has failed.

        Returns:
            True after the acknowledgement or the failure.
        """
        return self.batch.done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the acknowledgement. On an event loop, await the future instead.

        Args:
            timeout: Seconds. Default: no limit; the record fails after `delivery_timeout_ms` at the latest.

        Returns:
            Topic, partition, offset and timestamp of the record.

        Raises:
            DeliveryTimedOut: The record is not acknowledged within `delivery_timeout_ms`.
            KafkaError: The broker refuses the record.
            TimeoutError: The outcome is unknown after `timeout`.
        """
        batch = self.batch
        stamps = batch.stamps
        if stamps is not None:
            # The usual case: the whole batch is acknowledged.
            index = self.index
            return _metadata(RecordMetadata, (*batch.tp, batch.base_offset + index, stamps[index]))
        error = self.exception(timeout)
        if error is not None:
            raise error.with_traceback(None)
        return batch.metadata_of(self.index)

    def exception(self, timeout: float | None = None) -> KafkaError | None:
        """Wait for the outcome and return the error.

        Args:
            timeout: Seconds. Default: no limit.

        Returns:
            The error, or None if the record is acknowledged.

        Raises:
            TimeoutError: The outcome is unknown after `timeout`.
        """
        batch = self.batch
        if not batch.done:
            batch.accumulator.check_may_wait(timeout)
            condition = batch.accumulator.condition
            with batch.accumulator.lock:
                if not condition.wait_for(lambda: batch.done, timeout):
                    raise TimeoutError(f"the record for {batch.tp} is not acknowledged after {timeout:g} s")
        return batch.error_of(self.index)

    def add_done_callback(self, callback: Callable[[SendFuture], object]) -> None:
        """Call a function after the acknowledgement or the failure.

        Args:
            callback: Called with this future on the producer's thread, or at once if the outcome is known.
        """
        self.batch.accumulator.when_done(self.batch, self.index, lambda _metadata, _error: callback(self))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        batch = self.batch
        if not batch.done:
            loop = asyncio.get_running_loop()
            waiting: asyncio.Future[None] = loop.create_future()
            self.add_done_callback(lambda _: loop.call_soon_threadsafe(settle, waiting))
            yield from waiting
        error = batch.error_of(self.index)
        if error is not None:
            raise error.with_traceback(None)
        return batch.metadata_of(self.index)


def future_of(batch: ProducerBatch, index: int) -> SendFuture:
    future = SendFuture()
    future.batch = batch
    future.index = index
    return future


def settle(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def timed_out(batch: ProducerBatch, delivery_timeout_ms: float) -> DeliveryTimedOut:
    error = DeliveryTimedOut(
        f"{len(batch.records)} record(s) for {batch.tp} were not acknowledged within "
        f"{delivery_timeout_ms / 1000:g} s, after {batch.attempts} attempt(s)"
        + (f"; last error: {batch.last_error}" if batch.last_error else ""),
        topic=batch.tp.topic,
        partition=batch.tp.partition,
        advice="The broker may have written them" if batch.attempts else "They were never sent",
    )
    error.__cause__ = batch.last_error
    return error


def size_of(record: Record) -> int:
    """The most bytes that a record can take in a batch."""
    size_bytes = RECORD_OVERHEAD_BYTES + size_of_headers(record.headers)
    if record.value is not None:
        size_bytes += len(record.value)
    if record.key is not None:
        size_bytes += len(record.key)
    return size_bytes


def size_of_headers(headers: RecordHeaders) -> int:
    return sum(4 * len(name) + (len(content) if content is not None else 0) + 10 for name, content in headers)


def record_of(
    value: bytes | None, key: bytes | None, headers: Headers, timestamp_ms: int
) -> tuple[Record, int]:
    """A record, and the most bytes that it can take in a batch."""
    record = Record(0, timestamp_ms, key, value, headers_of(headers))
    return record, size_of(record)


def headers_of(headers: Headers) -> RecordHeaders:
    """Check headers and return them as a record keeps them."""
    pairs = []
    for name, content in headers.items() if isinstance(headers, Mapping) else headers:
        if not isinstance(name, str):
            raise TypeError(f"the name of a header must be a str, not {type(name).__name__}")
        pairs.append((name, as_bytes(content, f"header {name!r}")))
    return tuple(pairs)


def as_bytes(content: Any, what: str) -> bytes | None:
    """Return bytes. A mutable buffer is copied; other types raise TypeError."""
    if content is None or type(content) is bytes:
        return content
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content)
    advice = "" if what.startswith("header") else f" or set {what}_serializer"
    raise TypeError(
        f"the {what} must be bytes or None, not {type(content).__name__}: encode it first{advice}"
    )
