"""The producer on asyncio: metadata and partitioner in front of the accumulator, one sender task behind it.

The sender groups ready batches by leader into one Produce request each, encodes a batch once, and settles batches when
answers come; it makes a task only to connect. Retriable errors send a batch again after a back-off until
`delivery_timeout_ms`. With idempotence (the default for acks=all) batches carry a producer id and sequence, so that a
broker keeps one copy of a batch that was sent twice. After a failure that leaves a gap in a partition's sequence a new
producer id is taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Unpack

from ottla.client.cluster import Cluster, backoff_ms
from ottla.client.connection import BrokerConnection
from ottla.client.errors import ClientClosed, KafkaError, MessageTooLarge, TopicNotFound, refused
from ottla.client.metadata import Node, PartitionInfo, TopicPartition
from ottla.client.producer.accumulator import (
    Accumulator,
    Batch,
    SendFuture,
    buffer_full,
    record_of,
    timed_out,
)
from ottla.client.producer.settings import COMPRESSIONS, ProducerSettings, Producing
from ottla.client.settings import bootstrap_addresses, settings_of
from ottla.model.errors import ErrorCode
from ottla.records.partitioner import partition_for_key
from ottla.records.record import encode_batch

PRODUCE = 0
INIT_PRODUCER_ID = 22
#: The last version that names topics; later ones carry ids.
PRODUCE_BY_NAME = 12
SEQUENCE_MODULUS = 1 << 31
TRANSACTION_TIMEOUT_NONE_MS = (1 << 31) - 1

Headers = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]

#: After these the broker's idea of the sequence differs from ours: take a new producer id.
SEQUENCE_LOST = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)


def now_ms() -> float:
    return time.monotonic() * 1000


class AsyncProducer:
    """Use `await start()` first and `await close()` last, or `async with`."""

    def __init__(self, bootstrap_servers: str | Sequence[str], **given: Unpack[ProducerSettings]) -> None:
        settings = settings_of(Producing, given)
        self.settings = settings
        self.cluster = Cluster(bootstrap_addresses(bootstrap_servers), settings, create_topics=True)
        self._accumulator = Accumulator(
            batch_bytes=min(settings.batch_size, settings.max_request_size),
            linger_ms=settings.linger_ms,
            buffer_bytes=settings.buffer_memory,
            delivery_timeout_ms=settings.delivery_timeout_ms,
        )
        self._codec = COMPRESSIONS.index(settings.compression_type)
        self._acks = settings.acks_number
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._waking = False
        self._sender: asyncio.Task[None] | None = None
        self._connecting: set[asyncio.Task[None]] = set()
        self._closing = False
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[TopicPartition, tuple[tuple[int, int], int]] = {}
        self._sticky: dict[str, int] = {}

    async def __aenter__(self) -> AsyncProducer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self.cluster.start()
        self._sender = self._loop.create_task(self._send_forever())

    async def close(self, timeout_ms: float | None = None) -> None:
        """Send what is queued, for at most `timeout_ms`, then fail the rest and disconnect."""
        self._accumulator.close()
        self._closing = True
        if self._sender is not None:
            self._wake.set()
            await asyncio.wait([self._sender], timeout=None if timeout_ms is None else timeout_ms / 1000)
            self._sender.cancel()
            await asyncio.gather(self._sender, *self._connecting, return_exceptions=True)
        for batch in self._accumulator.outstanding():
            self._accumulator.finish(
                batch, ClientClosed(f"the producer was closed before {batch.tp} was acknowledged")
            )
        await self.cluster.close()

    # In front of the accumulator

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> SendFuture:
        """Queue a record; await the future that comes back to know where it landed."""
        if topic not in self.cluster.metadata.topics:
            await self.cluster.topic(topic, self.settings.max_block_ms)
        deadline_ms = now_ms() + self.settings.max_block_ms
        while True:
            future = self.try_send(topic, value, key, partition, headers, timestamp_ms)
            if future is not None:
                return future
            if now_ms() > deadline_ms:
                raise buffer_full(self.settings.max_block_ms / 1000)
            oldest = self._accumulator.outstanding()
            if oldest:
                await _settled(oldest[-1])

    def try_send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: Headers,
        timestamp_ms: int | None,
    ) -> SendFuture | None:
        """Queue a record of a known topic, from any thread; None when the buffer is full."""
        record, size_bytes = record_of(
            value, key, headers, int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        )
        if size_bytes > self.settings.max_request_size:
            raise MessageTooLarge(
                f"a record of {size_bytes} bytes is over max_request_size ({self.settings.max_request_size})",
                topic=topic,
                advice="Raise max_request_size here and max.message.bytes on the topic, or send less",
            )
        tp = TopicPartition(topic, self._partition(topic, key, partition))
        appended = self._accumulator.append(tp, record, size_bytes, now_ms())
        if appended is None:
            return None
        future, wake = appended
        if wake:
            self.wake()
        return future

    def wait_for_room(self, timeout_s: float) -> None:
        """Block (another thread than the loop's) until records were acknowledged."""
        self._accumulator.wait_for_room(1, timeout_s)

    def _partition(self, topic: str, key: bytes | None, partition: int | None) -> int:
        known = self.cluster.metadata.topics.get(topic)
        if known is None or not known.partitions:
            raise TopicNotFound(
                f"topic {topic!r} is not known any more", topic=topic, advice="It may have been deleted"
            )
        partitions = known.partitions
        if partition is not None:
            if partition not in partitions:
                raise TopicNotFound(
                    f"topic {topic!r} has partitions 0 to {len(partitions) - 1}, not {partition}",
                    topic=topic,
                    partition=partition,
                    advice="Add partitions with `ottla topic alter`",
                )
            return partition
        if key is not None:
            return partition_for_key(key, len(partitions))
        return self._keyless(topic, partitions)

    def _keyless(self, topic: str, partitions: Mapping[int, PartitionInfo]) -> int:
        """Fill one partition's batch, then go round (KIP-480); partitions without a leader are passed over."""
        current = self._sticky.get(topic)
        if current is None:
            current = random.randrange(len(partitions))
        elif self._accumulator.has_open_batch(TopicPartition(topic, current)):
            return current
        else:
            current = (current + 1) % len(partitions)
        for step in range(len(partitions)):
            choice = (current + step) % len(partitions)
            if partitions[choice].leader >= 0:
                break
        else:
            choice = current
        self._sticky[topic] = choice
        return choice

    def wake(self) -> None:
        """Make the sender look, from any thread; calls before it has looked cost nothing."""
        if self._waking or self._loop is None:
            return
        self._waking = True
        try:
            self._loop.call_soon_threadsafe(self._wake.set)
        except RuntimeError:  # the loop ended with the client
            self._waking = False

    async def flush(self) -> None:
        """Wait until everything that was queued before is acknowledged or has failed."""
        self._accumulator.begin_flush()
        try:
            self.wake()
            for batch in self._accumulator.outstanding():
                await _settled(batch)
        finally:
            self._accumulator.end_flush()

    # The sender

    async def _send_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            self._waking = False
            now = now_ms()
            for batch in self._accumulator.expired(now):
                self._accumulator.finish(batch, timed_out(batch, self.settings.delivery_timeout_ms))
                if batch.attempts:
                    self._forget_sequences()
            if self.settings.idempotent and self._producer is None:
                try:
                    await self._init_producer_id()
                except KafkaError as error:
                    if not error.retriable:
                        for batch in self._accumulator.outstanding():
                            self._accumulator.fail_queued(batch, error)
                    if self._closing and self._accumulator.empty:
                        return
                    # The coordinator is loading or brokers are away: batches wait, and expire in their time.
                    await asyncio.sleep(backoff_ms(self.settings, 1) / 1000)
                    continue
            drained = self._accumulator.drain(now, self._leader)
            for node_id, batches in drained.ready.items():
                self._dispatch(node_id, batches)
            if self._closing and self._accumulator.empty:
                return
            wait_ms = drained.wait_ms
            if drained.leaderless:
                self.cluster.refresh_soon()
                wait_ms = min(wait_ms or self.settings.retry_backoff_ms, self.settings.retry_backoff_ms)
            expiry_ms = self._accumulator.next_expiry_ms()
            if expiry_ms is not None:
                wait_ms = expiry_ms - now if wait_ms is None else min(wait_ms, expiry_ms - now)
            timer = None if wait_ms is None else loop.call_later(max(wait_ms, 0) / 1000, self._wake.set)
            await self._wake.wait()
            if timer is not None:
                timer.cancel()

    def _leader(self, tp: TopicPartition) -> int | None:
        node = self.cluster.metadata.leader(*tp)
        return None if node is None else node.id

    def _dispatch(self, node_id: int, batches: list[Batch]) -> None:
        node = self.cluster.metadata.nodes.get(node_id)
        connection = None if node is None else self.cluster.connected(node)
        if connection is not None:
            self._produce(connection, batches)
            return
        assert self._loop is not None
        task = self._loop.create_task(self._connect(node, batches))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, node: Node | None, batches: list[Batch]) -> None:
        try:
            if node is None:
                raise KafkaError("the leader is not known any more", code=ErrorCode.LEADER_NOT_AVAILABLE)
            connection = await self.cluster.connection(node)
        except KafkaError as error:
            self._retry_or_fail(batches, error)
        else:
            self._produce(connection, batches)

    def _produce(self, connection: BrokerConnection, batches: list[Batch]) -> None:
        topics: dict[str, list[dict[str, Any]]] = {}
        for batch in batches:
            topics.setdefault(batch.tp.topic, []).append(
                {"index": batch.tp.partition, "records": self._encode(batch)}
            )
        metadata = self.cluster.metadata
        ids = {topic: metadata.topic_id(topic) for topic in topics}
        body = {
            "transactional_id": None,
            "acks": self._acks,
            "timeout": self.settings.request_timeout_ms,
            "topic_data": [
                {"name": topic, "topic_id": ids[topic], "partition_data": parts}
                for topic, parts in topics.items()
            ],
        }
        version_max = None if all(ids.values()) else PRODUCE_BY_NAME
        try:
            if self._acks == 0:
                connection.post(PRODUCE, body, version_max=version_max)
                for batch in batches:
                    self._accumulator.finish(batch, None)
                self._wake.set()
                return
            answer = connection.send(PRODUCE, body, version_max=version_max)
        except KafkaError as error:
            self._retry_or_fail(batches, error)
            return
        answer.add_done_callback(partial(self._answered, connection.address, batches))

    def _encode(self, batch: Batch) -> bytes:
        if batch.encoded is None:
            producer = self._producer
            if self.settings.idempotent and producer is not None:
                before, sequence = self._sequences.get(batch.tp, (producer, 0))
                if before != producer:
                    sequence = 0
                self._sequences[batch.tp] = (producer, (sequence + len(batch.records)) % SEQUENCE_MODULUS)
                batch.producer, batch.sequence = producer, sequence
                batch.encoded = encode_batch(
                    batch.records,
                    codec=self._codec,
                    producer_id=producer[0],
                    producer_epoch=producer[1],
                    base_sequence=sequence,
                )
            else:
                batch.encoded = encode_batch(batch.records, codec=self._codec)
        return batch.encoded

    def _answered(self, broker: str, batches: list[Batch], answer: asyncio.Future[Any]) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if error is not None:
            failure = (
                error
                if isinstance(error, KafkaError)
                else KafkaError(f"producing failed: {error}", broker=broker)
            )
            self._retry_or_fail(batches, failure)
            return
        waiting = {batch.tp: batch for batch in batches}
        names = self.cluster.metadata.names
        for topic in answer.result().responses:
            name = topic.name or names.get(topic.topic_id.bytes if topic.topic_id else b"", "")
            for part in topic.partition_responses:
                batch = waiting.pop(TopicPartition(str(name), int(part.index)), None)
                if batch is not None:
                    self._settle(batch, part, broker)
        for batch in waiting.values():
            self._retry_or_fail(
                [batch], KafkaError("the broker left the partition out of its answer", broker=broker)
            )
        self._wake.set()

    def _settle(self, batch: Batch, part: Any, broker: str) -> None:
        code = int(part.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            stamp = part.log_append_time
            append_time_ms = -1 if stamp is None else round(stamp.timestamp() * 1000)
            self._accumulator.finish(batch, None, int(part.base_offset) if not code else -1, append_time_ms)
            return
        message = part.error_message
        if part.record_errors:
            first = part.record_errors[0]
            message = (
                f"{message or ''} (record {first.batch_index}: {first.batch_index_error_message})".strip()
            )
        error = refused(
            code,
            "producing",
            message=message,
            broker=broker,
            topic=batch.tp.topic,
            partition=batch.tp.partition,
        )
        self._retry_or_fail([batch], error)

    def _retry_or_fail(self, batches: list[Batch], error: KafkaError) -> None:
        now = now_ms()
        for batch in batches:
            if error.code in SEQUENCE_LOST:
                self._forget_sequences()
            if not error.retriable:
                # Nothing of it was appended, but its sequence numbers are used up.
                self._forget_sequences()
                self._accumulator.finish(batch, error)
                continue
            wait_ms = backoff_ms(self.settings, batch.attempts + 1)
            if batch.created_ms + self.settings.delivery_timeout_ms <= now:
                batch.last_error = error
                batch.attempts += 1
                self._forget_sequences()
                self._accumulator.finish(batch, timed_out(batch, self.settings.delivery_timeout_ms))
            else:
                self._accumulator.retry(batch, error, now, wait_ms)
        if error.retriable:
            self.cluster.refresh_soon()
        self._wake.set()

    # Idempotence

    def _forget_sequences(self) -> None:
        self._producer = None

    async def _init_producer_id(self) -> None:
        connection = await self.cluster.any_connection()
        body = {
            "transactional_id": None,
            "transaction_timeout": TRANSACTION_TIMEOUT_NONE_MS,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        response = await connection.request(INIT_PRODUCER_ID, body)
        if response.error_code:
            raise refused(int(response.error_code), "asking for a producer id", broker=connection.address)
        self._producer = (int(response.producer_id), int(response.producer_epoch))


async def _settled(batch: Batch) -> None:
    # Whoever holds the future of the record hears of its error.
    with contextlib.suppress(KafkaError):
        await SendFuture(batch, 0)
