"""The asyncio producer, `ottla.aio.Producer`: the path of a record from `send` to the accumulator.

A record passes interceptors, serializers and the partitioner, and is appended to the accumulator
(`_try_send`, which any thread may call). The sender does the rest. A record that cannot be appended comes
back as `Blocked`; the blocking and the asyncio producer then wait, each in its own way, for the topic's
metadata or for free `buffer_memory`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from time import time_ns
from typing import Any, NamedTuple, Unpack

from ottla.client.cluster import Cluster, backoff_ms
from ottla.client.errors import (
    KafkaError,
    MessageTooLarge,
    RequestTimedOut,
    SerializationError,
    TransactionMisused,
)
from ottla.client.metadata import GroupMetadata, OffsetAndMetadata, TopicInfo, TopicPartition
from ottla.client.producer.accumulator import Accumulator, Limits, buffer_full
from ottla.client.producer.batches import (
    RECORD_OVERHEAD_BYTES,
    Headers,
    OnDelivery,
    ProducerBatch,
    SendFuture,
    as_bytes,
    headers_of,
    settle,
    size_of_headers,
)
from ottla.client.producer.interceptors import Interceptors, ProducerRecord
from ottla.client.producer.metrics import ProducerMetrics
from ottla.client.producer.partitioner import Sticky, checked, spread_of
from ottla.client.producer.ready_made import ReadyMade
from ottla.client.producer.requests import now_ms
from ottla.client.producer.sender import Sender
from ottla.client.producer.settings import ProducerConfig, ProducerSettings
from ottla.client.producer.transactions import Transactions
from ottla.client.serialization import Serializer, serializer_of
from ottla.client.settings import bootstrap_addresses, settings_of
from ottla.records.batch import HEADER_BYTES
from ottla.records.partitioner import partition_for_key
from ottla.records.record import Record

TIMESTAMP_MS_MAX = 1 << 61


class Blocked(NamedTuple):
    """A record that cannot be appended yet.

    Its topic's metadata is missing (`size_bytes` is 0), or `buffer_memory` has no `size_bytes` left.
    """

    topic: str
    size_bytes: int
    again: Callable[[], SendFuture | Blocked]
    intercepted: ProducerRecord | None = None


class AsyncProducer:
    """A producer for asyncio: it sends records to a cluster.

    Use it with `async with`, or call `await start()` first and `await close()` last. Brokers that fail later
    are retried until `delivery_timeout_ms`.

    Args:
        bootstrap_servers: `host:port` of one or more brokers, as a string with commas or a sequence.
        settings: Kafka's producer settings with underscores, for example `linger_ms=5`. The defaults are in
            `ottla.client.producer.settings.ProducerConfig`; docs/sdk.md explains the ones worth tuning.

    Raises:
        SettingError: A setting has an unknown name or an invalid value.

    Example:
        >>> import ottla.aio
        >>> async with ottla.aio.Producer(broker.address, linger_ms=5) as producer:
        ...     sent = await producer.send("payments", b"12 EUR", key=b"alice")
        ...     print((await sent).offset)
        0
    """

    def __init__(self, bootstrap_servers: str | Sequence[str], **given: Unpack[ProducerSettings]) -> None:
        settings = settings_of(ProducerConfig, given)
        self._settings = settings
        self._cluster = Cluster(bootstrap_addresses(bootstrap_servers), settings, create_topics=True)
        self._accumulator = Accumulator(
            Limits(
                batch_bytes=min(settings.batch_size, settings.max_request_size),
                buffer_bytes=settings.buffer_memory,
                request_bytes=settings.max_request_size,
                linger_ms=settings.linger_ms,
                delivery_timeout_ms=settings.delivery_timeout_ms,
                in_flight_max=settings.max_in_flight_requests_per_connection,
                retries=settings.retries,
                bumps=settings.transactional_id is None,
            )
        )
        name = settings.transactional_id
        self._transactions = (
            None if name is None else Transactions(self._cluster, settings, self._accumulator, name)
        )
        self._sender = Sender(self._cluster, settings, self._accumulator, self._transactions)
        if self._transactions is not None:
            self._transactions.attach(self._sender.wake, self._sender.flush)
        self._interceptors = Interceptors(settings.interceptors)
        self._closed = False
        self._key_serializer = serializer_of(settings.key_serializer, "key_serializer")
        self._value_serializer = serializer_of(settings.value_serializer, "value_serializer")
        self._serializes = self._key_serializer is not None or self._value_serializer is not None
        self._partitioner = settings.partitioner if callable(settings.partitioner) else None
        self._spread = spread_of(settings.partitioner)
        self._join, self._open_batches = self._accumulator.join, self._accumulator.open_batches
        #: By topic: the open batch for records without a key. Empty for producers that must check more per
        #: record.
        self._sticky_batches: dict[str, ProducerBatch] = {}
        self._sticks = not self._serializes and isinstance(self._spread, Sticky) and self._partitioner is None
        self._size_bytes_max = settings.max_request_size
        #: Appends a record, from any thread. Chosen once, so that producers without interceptors pay nothing.
        self._try_send = self._try_intercepted if self._interceptors else self._try

    async def __aenter__(self) -> AsyncProducer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect to the cluster. With a `transactional_id`, also fence older producers of the id.

        Raises:
            BrokerUnreachable: No bootstrap server can be reached.
            AuthenticationFailed: The broker refuses the credentials, or TLS fails.
            ProducerFenced: A newer producer uses the same `transactional_id`.
        """
        try:
            await self._cluster.start()
            self._sender.start()
            if self._transactions is not None:
                await self._transactions.start()
        except BaseException:
            await self.close(0)
            raise

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 (same signature as the blocking client)
        """Send the buffered records, then disconnect. An open transaction is aborted.

        Records that are not acknowledged in time fail with `ClientClosed`. A second call does nothing.

        Args:
            timeout: Seconds to wait for acknowledgements. Default: until every record is acknowledged or has
                failed.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        # A cancelled close waits for nothing more and leaves nothing behind.
        left_s: float | None = 0
        try:
            if self._transactions is not None and self._transactions.open:
                with contextlib.suppress(KafkaError, TimeoutError):
                    async with asyncio.timeout(timeout):
                        await self._transactions.abort()
            left_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 0)
        finally:
            self._accumulator.close()
            try:
                await self._sender.close(left_s)
            finally:
                await self._disconnect()

    async def _disconnect(self) -> None:
        if self._transactions is not None:
            await self._transactions.close()
        await self._cluster.close()
        if not self._closed:
            self._closed = True
            self._interceptors.close()

    # Sending

    async def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> SendFuture:
        """Put a record into the buffer.

        The record goes to `partition`, else to the partition of its key, else to the partitioner's choice.
        The call waits up to `max_block_ms` for the topic's metadata and for free `buffer_memory`.

        Args:
            topic: Name of the topic. A broker with `auto.create.topics.enable` creates a missing topic.
            value: Bytes, or an object for `value_serializer`. None is a tombstone.
            key: Bytes, or an object for `key_serializer`. Default: no key.
            partition: Number of the partition. Default: the key or the partitioner decides.
            headers: Pairs of a name and bytes, or a mapping. Default: none.
            timestamp_ms: Milliseconds since 1970 UTC. Default: the time of the call.
            on_delivery: Called as `on_delivery(metadata, error)` after the acknowledgement or the failure. It
                runs on the event loop and must not block. Default: None.

        Returns:
            A future: await it for the `RecordMetadata`.

        Raises:
            MessageTooLarge: The record is larger than `max_request_size`.
            SerializationError: A serializer fails.
            BufferFull: `buffer_memory` stays full for `max_block_ms`.
            TopicNotFound: The topic or the partition does not exist.
            RequestTimedOut: No broker returns the topic's metadata within `max_block_ms`.
            TransactionMisused: The producer has a `transactional_id` and no transaction is open.
            ClientClosed: The producer is closed.
            TypeError: Key or value are not bytes, and there is no serializer.

        Example:
            >>> sent = await producer.send("orders", b"a fourth order", key=b"alice")
            >>> (await sent).offset
            3
        """
        sent = self._try_send(topic, value, key, partition, headers, timestamp_ms, on_delivery)
        if type(sent) is not SendFuture:
            return await self._send_later(sent)
        if not sent.index and self._sender_is_due:
            # Give the sender a turn on this event loop.
            await asyncio.sleep(0)
        return sent

    @property
    def _sender_is_due(self) -> bool:
        """Whether the sender should run now: at every fourth batch, if four batches are queued."""
        accumulator = self._accumulator
        return not accumulator.made & 3 and accumulator.buffered_bytes > 4 * accumulator.limits.batch_bytes

    def _yield_to_sender(self) -> None:
        self._sender.wake_and_wait()

    async def _send_later(self, blocked: SendFuture | Blocked) -> SendFuture:
        assert isinstance(blocked, Blocked)
        deadline_s = time.monotonic() + self._settings.max_block_ms / 1000
        try:
            while True:
                left_s = max(deadline_s - time.monotonic(), 0)
                if not blocked.size_bytes:
                    await self._find_topic(blocked.topic, left_s)
                elif not await self._wait_for_room(blocked.size_bytes, left_s):
                    raise buffer_full(self._settings.max_block_ms / 1000)
                sent = blocked.again()
                if isinstance(sent, SendFuture):
                    return sent
                blocked = sent
        except Exception as error:
            self._report_unsent(blocked, error)
            raise

    async def _wait_for_room(self, size_bytes: int, timeout_s: float) -> bool:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()

        def there_is_room() -> None:
            loop.call_soon_threadsafe(settle, waiting)

        self._accumulator.when_room(size_bytes, there_is_room)
        try:
            async with asyncio.timeout(timeout_s):
                await waiting
        except TimeoutError:
            return False
        finally:
            if not waiting.done():
                self._accumulator.stop_waiting(there_is_room)
        return True

    async def _find_topic(self, topic: str, timeout_s: float) -> TopicInfo:
        """Return the topic's metadata. Wait for a topic that is being created and for unreachable brokers."""
        if not self._sender.started:
            raise KafkaError(
                "this producer is not started",
                advice="`await start()` first, or use `async with`",
                topic=topic,
            )
        before = self._cluster.metadata
        try:
            async with asyncio.timeout(timeout_s):
                return await self._retry_topic_lookup(topic, timeout_s)
        except TimeoutError:
            code = self._cluster.metadata.errors.get(topic)
            if code is not None and self._cluster.metadata is not before:
                # The first Metadata request was answered, a later one was not: report the first answer.
                raise self._cluster.unavailable(topic, code) from None
            # A later call may find the topic in the metadata.
            self._cluster.watch((topic,))
            self._cluster.refresh_soon()
            raise RequestTimedOut(
                f"no broker returned the metadata of topic {topic!r} within {timeout_s:.3g} s",
                topic=topic,
                advice="The brokers may be overloaded, paused or cut off",
            ) from None

    async def _retry_topic_lookup(self, topic: str, timeout_s: float) -> TopicInfo:
        deadline_s = time.monotonic() + timeout_s
        attempt = 0
        while True:
            try:
                return await self._cluster.topic(topic, max(deadline_s - time.monotonic(), 0) * 1000)
            except KafkaError as error:
                attempt += 1
                wait_s = backoff_ms(self._settings, attempt) / 1000
                if error.code is not None or not error.retriable or time.monotonic() + wait_s > deadline_s:
                    raise
            await asyncio.sleep(wait_s)

    def _report_unsent(self, blocked: Blocked, error: Exception) -> None:
        if blocked.intercepted is not None:
            self._interceptors.failed(blocked.intercepted, error)

    def _try_intercepted(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        headers: Headers,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> SendFuture | Blocked:
        record = self._interceptors.on_send(
            ProducerRecord(topic, value, key, partition, headers, timestamp_ms)
        )
        try:
            sent = self._try(
                record.topic,
                record.value,
                record.key,
                record.partition,
                record.headers,
                record.timestamp_ms,
                self._interceptors.callback_for(on_delivery),
            )
        except Exception as error:
            self._interceptors.failed(record, error)
            raise
        return sent if isinstance(sent, SendFuture) else _of(sent, record)

    def _try(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        headers: Headers,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> SendFuture | Blocked:
        if key is None and partition is None and type(value) is bytes:
            # The path of almost every record: the general path below would end in the same call.
            batch = self._sticky_batches.get(topic)
            if batch is not None and timestamp_ms is None and not headers:
                joined = self._join(
                    batch,
                    value,
                    None,
                    (),
                    time_ns() // 1_000_000,
                    len(value) + RECORD_OVERHEAD_BYTES,
                    on_delivery,
                )
                if joined is not None:
                    return joined
        known = self._cluster.metadata.topics.get(topic)
        if known is None:
            again = partial(self._try, topic, value, key, partition, headers, timestamp_ms, on_delivery)
            return Blocked(topic, 0, again)
        key_bytes, value_bytes = key, value
        if self._serializes:
            key_bytes = _serialized(self._key_serializer, topic, key, "key")
            value_bytes = _serialized(self._value_serializer, topic, value, "value")
        else:
            if value is not None and type(value) is not bytes:
                value_bytes = as_bytes(value, "value")
            if key is not None and type(key) is not bytes:
                key_bytes = as_bytes(key, "key")
        stamp = time_ns() // 1_000_000 if timestamp_ms is None else _checked_time(timestamp_ms)
        pairs = headers_of(headers) if headers else ()
        partitions = known.partitions
        spreads = False
        if partition is not None:
            if partition not in partitions:
                checked(topic, partition, partitions)
        elif self._partitioner is not None:
            chosen = self._partitioner(topic, key, key_bytes, value, tuple(partitions))
            partition = checked(topic, chosen, partitions)
        elif key_bytes is not None:
            partition = partition_for_key(key_bytes, len(partitions))
        else:
            partition = self._spread.current(topic, partitions)
            spreads = True
        size_bytes = RECORD_OVERHEAD_BYTES
        if value_bytes is not None:
            size_bytes += len(value_bytes)
        if key_bytes is not None:
            size_bytes += len(key_bytes)
        if pairs:
            size_bytes += size_of_headers(pairs)
        batch = self._open_batches.get((topic, partition))
        if batch is not None:
            joined = self._join(batch, value_bytes, key_bytes, pairs, stamp, size_bytes, on_delivery)
            if joined is not None:
                if spreads and self._sticks:
                    self._sticky_batches[topic] = batch
                return joined
        if size_bytes > self._size_bytes_max:
            raise MessageTooLarge(
                f"a record of {size_bytes} bytes is over max_request_size ({self._size_bytes_max})",
                topic=topic,
                advice="Send a smaller record, or raise max_request_size and the topic's max.message.bytes",
            )
        if spreads:
            partition = self._spread.moved(topic, partition, partitions)
        record = Record(0, stamp, key_bytes, value_bytes, pairs)
        sent = self._append(TopicPartition(topic, partition), record, size_bytes, on_delivery)
        if spreads and self._sticks and type(sent) is SendFuture:
            self._sticky_batches[topic] = sent.batch
        return sent

    def _append(
        self, tp: TopicPartition, record: Record, size_bytes: int, on_delivery: OnDelivery | None
    ) -> SendFuture | Blocked:
        """Append a record that starts a new batch."""
        appended = self._accumulator.append(tp, record, size_bytes, now_ms(), on_delivery)
        if appended is None:
            again = partial(self._append, tp, record, size_bytes, on_delivery)
            return Blocked(tp.topic, size_bytes, again)
        future, wake = appended
        if wake:
            self._sender.wake()
        return future

    async def send_batch(self, topic: str, partition: int, batch: bytes | memoryview) -> SendFuture:
        """Put an encoded record batch (magic 2) into the buffer, as it is.

        The producer writes its own producer id, epoch and sequence into the header. Serializers, interceptors
        and the partitioner do not see the records.

        Args:
            topic: Name of the topic.
            partition: Number of the partition.
            batch: The bytes of one record batch.

        Returns:
            The future of the first record.

        Raises:
            MessageTooLarge: The batch is larger than `max_request_size`.
            BufferFull: `buffer_memory` stays full for `max_block_ms`.
            TopicNotFound: The topic or the partition does not exist.
            ClientClosed: The producer is closed.
        """
        sent = self._try_send_batch(topic, partition, batch)
        return sent if isinstance(sent, SendFuture) else await self._send_later(sent)

    def _try_send_batch(self, topic: str, partition: int, batch: bytes | memoryview) -> SendFuture | Blocked:
        size_bytes = len(batch) - HEADER_BYTES
        if size_bytes > self._size_bytes_max:
            raise MessageTooLarge(
                f"a batch of {len(batch)} bytes is over max_request_size ({self._size_bytes_max})",
                topic=topic,
                partition=partition,
                advice="Send smaller batches, or raise max_request_size and the topic's max.message.bytes",
            )
        known = self._cluster.metadata.topics.get(topic)
        if known is None:
            return Blocked(topic, 0, partial(self._try_send_batch, topic, partition, batch))
        checked(topic, partition, known.partitions)
        sent = self._accumulator.append_ready(
            TopicPartition(topic, partition), ReadyMade(batch), size_bytes, now_ms()
        )
        if sent is None:
            return Blocked(topic, size_bytes, partial(self._try_send_batch, topic, partition, batch))
        self._sender.wake()
        return sent

    # Other than sending

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 (same signature as the blocking client)
        """Wait until every record that was sent before is acknowledged or has failed.

        Args:
            timeout: Seconds. Default: no limit.

        Raises:
            TimeoutError: Records are still outstanding after `timeout`.
        """
        async with asyncio.timeout(timeout):
            await self._sender.flush()

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[int]:  # noqa: ASYNC109 (same signature as the blocking client)
        """List the partitions of a topic.

        Args:
            topic: Name of the topic.
            timeout: Seconds to wait for a topic that is being created. Default: `max_block_ms`.

        Returns:
            The partition numbers.

        Raises:
            TopicNotFound: The topic does not exist.
            RequestTimedOut: No broker returns the topic's metadata in time.
        """
        timeout_s = self._settings.max_block_ms / 1000 if timeout is None else timeout
        return list((await self._find_topic(topic, timeout_s)).partitions)

    def metrics(self) -> ProducerMetrics:
        """Return the producer's counters and averages since it was created.

        Returns:
            The `ProducerMetrics`. `print()` shows them as a table.
        """
        limits = self._accumulator.limits
        return self._accumulator.counts.snapshot(
            in_flight=self._sender.in_flight,
            batch_bytes=limits.batch_bytes,
            buffered_bytes=self._accumulator.buffered_bytes,
            buffer_bytes=limits.buffer_bytes,
        )

    # Transactions

    async def renew(self) -> None:
        """Initialize the transactional id again, between two transactions.

        Every other producer of the id is fenced, as by a new producer. A producer that was fenced can
        continue after this call. Use it for producers that share an id and take turns.

        Raises:
            TransactionMisused: The producer has no `transactional_id`, or a transaction is open.
        """
        await self._transactional().renew()

    async def begin(self) -> None:
        """Begin a transaction.

        Records that are sent from here on are committed together or not at all.

        Raises:
            TransactionMisused: The producer has no `transactional_id`, or a transaction is open.
            ProducerFenced: A newer producer uses the `transactional_id`.
        """
        await self._transactional().begin()

    async def commit(self) -> None:
        """Wait for the acknowledgement of every record of the transaction, then commit it.

        After `RequestTimedOut` call it again: the second call returns the outcome of the first.

        Raises:
            TransactionAbortable: A part of the transaction failed. Call `abort()`, then run the transaction
                again.
            ProducerFenced: A newer producer uses the `transactional_id`.
            RequestTimedOut: The coordinator does not answer within `max_block_ms`.
            TransactionMisused: No transaction is open.
        """
        await self._transactional().commit()

    async def abort(self) -> None:
        """Abort the transaction: consumers with `read_committed` see none of its records.

        Records that are still in the buffer fail.

        Raises:
            ProducerFenced: A newer producer uses the `transactional_id`.
            RequestTimedOut: The coordinator does not answer within `max_block_ms`.
            TransactionMisused: No transaction is open, or a commit is in progress.
        """
        await self._transactional().abort()

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMetadata
    ) -> None:
        """Commit a group's offsets as a part of the transaction.

        Args:
            offsets: For each partition the next offset to read.
            group: `consumer.group_metadata()`, so that a member outside the group is refused; or a group id.

        Raises:
            TransactionAbortable: The group refuses the offsets. Call `abort()`, then run the transaction
                again.
            ProducerFenced: A newer producer uses the `transactional_id`.
            TransactionMisused: No transaction is open.
        """
        await self._transactional().send_offsets(offsets, group)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Run a block in a transaction: commit at its end, abort if it raises.

        Returns:
            A context manager for `async with`.

        Raises:
            TransactionAbortable: A part of the transaction failed; it is aborted.
            ProducerFenced: A newer producer uses the `transactional_id`.
            TransactionMisused: The producer has no `transactional_id`, or a transaction is open.

        Example:
            >>> async with ottla.aio.Producer(broker.address, transactional_id="billing-1") as producer:
            ...     async with producer.transaction():
            ...         sent = await producer.send("orders", b"value")
        """
        await self.begin()
        try:
            yield
        except BaseException:
            with contextlib.suppress(KafkaError):
                await self.abort()
            raise
        await self._commit_or_abort()

    async def _commit_or_abort(self) -> None:
        """Commit. If a part of the transaction failed, abort it and raise that error."""
        transactions = self._transactional()
        try:
            await transactions.commit()
        except BaseException as error:
            if transactions.open:
                try:
                    await transactions.abort()
                except KafkaError as worse:
                    # A fenced producer is the more important error.
                    if isinstance(error, KafkaError):
                        raise worse from error
            raise

    def _transactional(self) -> Transactions:
        if self._transactions is None:
            raise TransactionMisused(
                "this producer has no transactional_id", advice="Set transactional_id to use transactions"
            )
        return self._transactions


def _of(blocked: Blocked, record: ProducerRecord) -> Blocked:
    """The same `Blocked`, with the record for the interceptors if it fails later."""

    def again() -> SendFuture | Blocked:
        sent = blocked.again()
        return sent if isinstance(sent, SendFuture) else _of(sent, record)

    return blocked._replace(again=again, intercepted=record)


def _serialized(serializer: Serializer | None, topic: str, thing: Any, what: str) -> bytes | None:
    if serializer is None or thing is None:
        return as_bytes(thing, what)
    try:
        made: Any = serializer(topic, thing)
        if isinstance(made, (bytes, bytearray, memoryview)):
            return bytes(made)
        reason: Exception = TypeError(f"it returned {type(made).__name__}, not bytes")
    except Exception as error:
        reason = error
    name = getattr(serializer, "__name__", repr(serializer)).strip("_")
    raise SerializationError(
        f"{what}_serializer {name} cannot serialize a {type(thing).__name__} for topic {topic!r}: {reason}",
        topic=topic,
        advice=f"Send a {what} that it supports, or set another {what}_serializer",
    ) from reason


def _checked_time(timestamp_ms: Any) -> int:
    if type(timestamp_ms) is not int or not 0 <= timestamp_ms < TIMESTAMP_MS_MAX:
        raise ValueError(
            f"timestamp_ms must be a whole number of milliseconds since 1970, not {timestamp_ms!r}"
        )
    return timestamp_ms
