"""The record accumulator: buffered records and in-flight batches, everything that counts towards
`buffer_memory`.

It does no I/O: callers pass the time and ask for the batches that may be sent. Any thread may append while
the sender drains, under one lock. The condition of that lock also wakes threads that wait for an
acknowledgement or for free memory, so batches and records need no lock of their own. `PartitionQueue` keeps
the order within a partition.

Rules:

- A batch that was drained once gets no more records.
- Every appended batch ends in `finish`, which frees its memory.
- Partitions take turns if one request cannot hold all of them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

from ottla.client.errors import BufferFull, ClientClosed, KafkaError
from ottla.client.metadata import TopicPartition
from ottla.client.producer.batches import (
    OnDelivery,
    ProducerBatch,
    ProducerId,
    SendFuture,
    future_of,
    timed_out,
)
from ottla.client.producer.metrics import Counts
from ottla.client.producer.partition_queue import PartitionQueue, Verdict
from ottla.client.producer.ready_made import ReadyMade
from ottla.model.errors import ErrorCode
from ottla.records.batch import HEADER_BYTES
from ottla.records.record import Headers, Record


class Limits(NamedTuple):
    """The settings of the accumulator.

    `bumps`: after a gap in a partition's sequence numbers the producer continues under the next epoch. False
    with a transactional id.
    """

    batch_bytes: int
    buffer_bytes: int
    request_bytes: int
    linger_ms: float = 0
    delivery_timeout_ms: float = 120_000
    in_flight_max: int = 5
    retries: int = (1 << 31) - 1
    bumps: bool = True


class Drained(NamedTuple):
    """The result of a drain: batches to send by leader, batches without a leader, partitions that are not yet
    part of the transaction, brokers that have batches but are busy, and the time until the next drain.
    """

    ready: dict[int, list[ProducerBatch]]
    leaderless: list[ProducerBatch]
    outside: list[TopicPartition]
    wanted: set[int]
    wait_ms: float | None


class Accumulator:
    def __init__(self, limits: Limits, counts: Counts | None = None) -> None:
        self.limits = limits
        self._batch_bytes, self._buffer_bytes = limits.batch_bytes, limits.buffer_bytes
        self.counts = Counts() if counts is None else counts
        self.buffered_bytes = 0
        #: A wait in this thread would never end.
        self.sender_thread: int | None = None
        #: A partition's producer id has no epochs left: a new producer id is needed.
        self.exhausted = False
        #: The last batch of each partition, possibly closed. Any thread may read it.
        self.open_batches: dict[tuple[str, int], ProducerBatch] = {}
        self._partitions: dict[TopicPartition, PartitionQueue] = {}
        #: The partitions that have batches; the one that was drained last is at the end.
        self._busy: dict[TopicPartition, PartitionQueue] = {}
        #: Called with each batch that fails for good, on the sender's thread.
        self.on_failed: Callable[[ProducerBatch, KafkaError], None] | None = None
        self.made = 0
        self._flushing = 0
        self._refusal: Callable[[], KafkaError] | None = None
        self._closed = False
        # Acquire the lock itself, never its condition: Condition.__enter__ is Python code, and a signal
        # handler that raises inside would leave the lock held. An RLock knows its owner, so `join` can
        # release it whether or not it was acquired.
        self.lock = threading.RLock()
        self._acquire, self._release = self.lock.acquire, self.lock.release
        self.condition = threading.Condition(self.lock)
        self._room: deque[tuple[int, Callable[[], object]]] = deque()

    # Any thread

    def join(
        self,
        batch: ProducerBatch,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        size_bytes: int,
        callback: OnDelivery | None,
    ) -> SendFuture | None:
        """Add a record to a batch of `open_batches`. Return None if it does not fit: then call `append`.

        Almost every record takes this path, so everything that is needed once per batch is elsewhere. A
        `with` statement would double the cost of the lock. If a signal handler raises before the lock is
        acquired, `release` finds that this thread does not own it.
        """
        try:
            self._acquire()
            batch_bytes = batch.size_bytes + size_bytes
            buffered_bytes = self.buffered_bytes + size_bytes
            if batch.closed or batch_bytes >= self._batch_bytes or buffered_bytes > self._buffer_bytes:
                return None
            self.buffered_bytes = buffered_bytes
            batch.size_bytes = batch_bytes
            records = batch.records
            if (
                timestamp_ms == records.stamp_ms
                and key is None
                and records.keys is None
                and value is not None
                and not headers
            ):
                # Only the value needs storing.
                values = records.values
                index = len(values)
                values.append(value)
            else:
                index = records.append(value, key, headers, timestamp_ms)
            if callback is not None:
                batch.callbacks.append((index, callback))
        finally:
            try:  # noqa: SIM105  # `suppress` would take as long as the rest
                self._release()
            except RuntimeError:
                pass
        # `future_of`, inlined.
        future = SendFuture()
        future.batch = batch
        future.index = index
        return future

    def append(
        self,
        tp: TopicPartition,
        record: Record,
        size_bytes: int,
        now_ms: float,
        callback: OnDelivery | None = None,
    ) -> tuple[SendFuture, bool] | None:
        """Add a record. Also return whether the sender should run now. None: no memory is free."""
        with self.lock:
            if self._refusal is not None:
                raise self._refusal()
            if self.buffered_bytes + size_bytes > self.limits.buffer_bytes and self.buffered_bytes:
                return None
            partition = self._busy.get(tp)
            if partition is None:
                partition = self._enter(tp)
            batch_bytes = self.limits.batch_bytes
            waiting = partition.waiting
            batch = waiting[-1] if waiting else None
            if batch is None or batch.closed or batch.size_bytes + size_bytes > batch_bytes:
                if batch is not None:
                    # Later records must not overtake the ones in the next batch.
                    batch.closed = True
                self.made += 1
                batch = self.open_batches[tp] = ProducerBatch(self, tp, now_ms, self.made)
                waiting.append(batch)
            # If a signal handler raises before this line, nothing has changed. After it, `finish` releases
            # both.
            self.buffered_bytes += size_bytes
            batch.size_bytes += size_bytes
            index = batch.records.append(record.value, record.key, record.headers, record.timestamp_ms)
            if callback is not None:
                batch.callbacks.append((index, callback))
            return future_of(batch, index), index == 0 or batch.size_bytes >= batch_bytes

    def append_ready(
        self, tp: TopicPartition, records: ReadyMade, size_bytes: int, now_ms: float
    ) -> SendFuture | None:
        """Add an encoded batch behind the partition's other batches. Return the future of its first record,
        or None if no memory is free.
        """
        with self.lock:
            if self._refusal is not None:
                raise self._refusal()
            if not self._fits(size_bytes):
                return None
            partition = self._busy.get(tp)
            if partition is None:
                partition = self._enter(tp)
            if partition.waiting:
                partition.waiting[-1].closed = True
            self.made += 1
            batch = ProducerBatch(self, tp, now_ms, self.made)
            batch.records, batch.closed = records, True
            batch.size_bytes += size_bytes
            self.buffered_bytes += size_bytes
            partition.waiting.append(batch)
            return future_of(batch, 0)

    def _enter(self, tp: TopicPartition) -> PartitionQueue:
        partition = self._partitions.get(tp)
        if partition is None:
            partition = self._partitions[tp] = PartitionQueue(tp)
        self._busy[tp] = partition
        return partition

    def check_may_wait(self, timeout_s: float | None) -> None:
        if timeout_s != 0 and threading.get_ident() == self.sender_thread:
            raise KafkaError(
                "result() cannot wait on the thread that sends the record",
                advice="On the event loop, await it; in a callback, use add_done_callback()",
            )

    def _fits(self, size_bytes: int) -> bool:
        return self.buffered_bytes + size_bytes <= self.limits.buffer_bytes or not self.buffered_bytes

    def wait_for_room(self, size_bytes: int, timeout_s: float) -> bool:
        """Block until a record of that size fits or is refused. Return False after the timeout."""
        with self.lock:
            return self.condition.wait_for(
                lambda: self._refusal is not None or self._fits(size_bytes), timeout_s
            )

    def when_room(self, size_bytes: int, callback: Callable[[], object]) -> None:
        """Call back once, when a record of that size fits or is refused. Callers are served in order."""
        with self.lock:
            if self._refusal is None and not self._fits(size_bytes):
                self._room.append((size_bytes, callback))
                return
        callback()

    def stop_waiting(self, callback: Callable[[], object]) -> None:
        """Cancel a `when_room`."""
        with self.lock:
            self._room = deque(each for each in self._room if each[1] is not callback)
            waiters = self._made_room()
        for each in waiters:
            each()

    def _made_room(self) -> list[Callable[[], object]]:
        waiters = []
        while self._room and (self._refusal is not None or self._fits(self._room[0][0])):
            waiters.append(self._room.popleft()[1])
        return waiters

    def when_done(self, batch: ProducerBatch, index: int, callback: OnDelivery) -> None:
        with self.lock:
            if not batch.done:
                batch.callbacks.append((index, callback))
                return
        batch.run_callbacks([(index, callback)])

    def outstanding(self) -> list[ProducerBatch]:
        """Every batch that is not finished."""
        with self.lock:
            return [
                batch
                for partition in self._busy.values()
                for batches in (partition.on_way, partition.waiting)
                for batch in batches
            ]

    def begin_flush(self) -> list[ProducerBatch]:
        """Send everything without lingering until `end_flush`. Return the batches to wait for."""
        with self.lock:
            self._flushing += 1
        return list(
            {id(whole): whole for whole in (each.parent or each for each in self.outstanding())}.values()
        )

    def end_flush(self) -> None:
        with self.lock:
            self._flushing -= 1

    def refuse(self, refusal: Callable[[], KafkaError] | None) -> None:
        """Make `append` raise this error from here on. None accepts records again."""
        with self.lock:
            if not self._closed:
                self._refusal = refusal
            # Close the open batches, so that the next record goes through `append` and raises.
            for batch in self.open_batches.values():
                batch.closed = True
            self.condition.notify_all()
            waiters = self._made_room()
        for callback in waiters:
            callback()

    def close(self) -> None:
        """Refuse new records. Buffered batches are sent without lingering."""
        self.refuse(lambda: ClientClosed("this producer is closed", advice="Create a new one"))
        with self.lock:
            self._closed = True
            self._flushing += 1

    @property
    def empty(self) -> bool:
        with self.lock:
            return not any(each.on_way or each.waiting for each in self._busy.values())

    # The sender

    def drain(
        self,
        now_ms: float,
        leaders: Callable[[TopicPartition], int | None],
        *,
        free: Callable[[int], bool] = lambda _node: True,
        admitted: Callable[[TopicPartition], bool] = lambda _tp: True,
        producer: ProducerId | None = None,
    ) -> Drained:
        """Take the batches that may be sent, one per partition: in flight until `finish` or `fail`."""
        limits = self.limits
        sizes: dict[int, int] = {}
        found = Drained({}, [], [], set(), None)
        wait_ms: float | None = None

        def due_ms_of(partition: PartitionQueue) -> float | None:
            return partition.due_ms(
                linger_ms=limits.linger_ms,
                batch_bytes=limits.batch_bytes,
                hurry=self._flushing > 0,
                in_flight_max=limits.in_flight_max,
                producer=producer,
            )

        with self.lock:
            for tp, partition in list(self._busy.items()):
                if not partition.waiting:
                    if not partition.on_way:
                        del self._busy[tp]
                        self.open_batches.pop(tp, None)
                    continue
                due_ms = due_ms_of(partition)
                if due_ms is None:
                    continue
                if due_ms > now_ms:
                    wait_ms = due_ms - now_ms if wait_ms is None else min(wait_ms, due_ms - now_ms)
                    continue
                batch = partition.waiting[0]
                leader = leaders(tp)
                if leader is None:
                    found.leaderless.append(batch)
                elif partition.on_way and partition.node != leader:
                    continue
                elif not free(leader):
                    found.wanted.add(leader)
                elif not admitted(tp):
                    found.outside.append(tp)
                elif leader in sizes and sizes[leader] + batch.size_bytes > limits.request_bytes:
                    # It goes with the next request, after the partitions that were served now.
                    wait_ms = 0
                else:
                    sizes[leader] = sizes.get(leader, 0) + batch.size_bytes
                    found.ready.setdefault(leader, []).append(partition.take(leader, producer, now_ms))
                    self._busy[tp] = self._busy.pop(tp)
                    # The next batch follows in a request of its own, as long as the broker accepts one.
                    next_ms = due_ms_of(partition) if partition.waiting else None
                    if next_ms is not None:
                        next_wait_ms = max(next_ms - now_ms, 0)
                        wait_ms = next_wait_ms if wait_ms is None else min(wait_ms, next_wait_ms)
        return found._replace(wait_ms=wait_ms)

    def expired(self, now_ms: float) -> list[ProducerBatch]:
        """Fail the batches that are older than `delivery_timeout_ms`.

        In-flight batches expire too, because a broker can hang for longer. A late write of such a batch
        cannot come between batches of the next epoch. In-flight batches of a transaction end with their
        request, because the transaction must end after them.
        """
        found: list[ProducerBatch] = []
        with self.lock:
            for partition in self._busy.values():
                if self.limits.bumps and partition.on_way and self._is_late(partition.on_way[0], now_ms):
                    late = [batch for batch in partition.on_way if self._is_late(batch, now_ms)]
                    for batch in late:
                        batch.attempts += 1
                    found += late
                while partition.waiting and self._is_late(partition.waiting[0], now_ms):
                    batch = partition.waiting.popleft()
                    batch.closed = True
                    found.append(batch)
        for batch in found:
            self.finish(batch, timed_out(batch, self.limits.delivery_timeout_ms))
        return found

    def next_expiry_ms(self) -> float | None:
        with self.lock:
            bumps = self.limits.bumps
            oldest = min(
                (
                    batches[0].created_ms
                    for each in self._busy.values()
                    for batches in (each.waiting, each.on_way if bumps else ())
                    if batches
                ),
                default=None,
            )
        return None if oldest is None else oldest + self.limits.delivery_timeout_ms

    def _is_late(self, batch: ProducerBatch, now_ms: float) -> bool:
        return batch.created_ms + self.limits.delivery_timeout_ms <= now_ms

    def unreachable(self, tps: Collection[TopicPartition], error: KafkaError) -> None:
        """Record that their broker is unreachable, for the error of batches that expire."""
        with self.lock:
            for tp in tps:
                partition = self._busy.get(tp)
                if partition is not None and partition.waiting:
                    partition.waiting[0].last_error = error

    def fail(self, batch: ProducerBatch, error: KafkaError, now_ms: float, backoff_ms: float) -> bool:
        """An in-flight batch failed. Return True if it is retried after the back-off, False if it failed for
        good.
        """
        with self.lock:
            partition = self._partitions[batch.tp]
            if batch.done or batch not in partition.on_way:
                return False
            partition.resolved(batch)
            verdict = partition.verdict(batch, error, bumps=self.limits.bumps)
            cuttable = error.code == ErrorCode.MESSAGE_TOO_LARGE and len(batch.records) > 1
            again = cuttable or verdict is not Verdict.FAILED
            late = self._is_late(batch, now_ms)
            # Splitting a batch is not a retry: its parts were not sent before.
            if again and not late and (cuttable or batch.attempts < self.limits.retries):
                parts = [batch]
                if cuttable:
                    # Send the parts at once: there is nothing to wait for.
                    parts, backoff_ms = batch.cut(), 0
                    self.counts.splits += 1
                elif verdict is Verdict.AGAIN_WITH_A_NEW_NUMBER:
                    if batch.producer == partition.identity:
                        self._lost(partition, batch)
                    partition.renumber(batch)
                partition.put_back(parts, error, now_ms + backoff_ms)
                return True
        if again and late:
            batch.last_error = error
            batch.attempts += 1
            error = timed_out(batch, self.limits.delivery_timeout_ms)
        self.finish(batch, error)
        return False

    def _lost(self, partition: PartitionQueue, batch: ProducerBatch) -> None:
        if self.limits.bumps and not partition.lost(batch):
            self.exhausted = True

    def fail_waiting(self, error: KafkaError, tps: Collection[TopicPartition] | None = None) -> None:
        """Fail the batches that are not in flight, of these partitions or of all."""
        found: list[ProducerBatch] = []
        with self.lock:
            for tp, partition in self._busy.items():
                if tps is None or tp in tps:
                    for batch in partition.waiting:
                        batch.closed = True
                    found += partition.waiting
                    partition.waiting.clear()
        for batch in found:
            self.finish(batch, error)

    def finish(
        self,
        batch: ProducerBatch,
        error: KafkaError | None,
        base_offset: int = -1,
        append_time_ms: int = -1,
        record_errors: dict[int, KafkaError] | None = None,
    ) -> None:
        """The batch is acknowledged or has failed for good."""
        callbacks: list[tuple[int, OnDelivery]] = []
        whole = batch.parent or batch
        with self.lock:
            if batch.done:
                return
            partition = self._partitions[batch.tp]
            partition.resolved(batch)
            if error is None:
                partition.acknowledged(batch)
            else:
                self._lost(partition, batch)
            self.buffered_bytes -= batch.size_bytes - HEADER_BYTES
            batch.closed = True
            batch.error = error
            batch.record_errors = record_errors or {}
            batch.base_offset = base_offset
            batch.append_time_ms = append_time_ms
            batch.encoded = None
            # Callers that keep the futures should not keep the records in memory.
            batch.records.forget()
            batch.done = True
            if error is None and base_offset >= 0 and not batch.record_errors:
                count = len(batch.records)
                batch.stamps = batch.records.timestamps() if append_time_ms < 0 else [append_time_ms] * count
            if whole.parts is not None and all(part.done for part in whole.parts):
                whole.done = True
            if whole.done:
                callbacks, whole.callbacks = whole.callbacks, []
            self.condition.notify_all()
            waiters = self._made_room()
        self.counts.finished(batch, error)
        if error is not None and self.on_failed is not None:
            self.on_failed(batch, error)
        for callback in waiters:
            callback()
        whole.run_callbacks(callbacks)


def buffer_full(timeout_s: float) -> BufferFull:
    return BufferFull(
        f"buffer_memory stayed full for {timeout_s:g} s",
        advice="Produce more slowly, raise buffer_memory, or check why the brokers acknowledge slowly",
    )
