"""The blocking producer, `ottla.Producer`.

The hot path stays in the caller's thread: `send` appends to the accumulator without a switch to the event
loop.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

from ottla.client.errors import KafkaError
from ottla.client.loop_thread import BlockingClient
from ottla.client.metadata import GroupMetadata, OffsetAndMetadata, TopicPartition
from ottla.client.producer.accumulator import buffer_full
from ottla.client.producer.batches import Headers, OnDelivery, RecordMetadata, SendFuture
from ottla.client.producer.core import AsyncProducer, Blocked
from ottla.client.producer.metrics import ProducerMetrics
from ottla.client.producer.settings import ProducerSettings

__all__ = ["Producer", "RecordMetadata"]

#: How long a program that ends without `close()` waits for its buffered records.
EXIT_S_MAX = 5.0

logger = logging.getLogger(__name__)


class Producer(BlockingClient):
    """A producer for threads: it sends records to a cluster.

    One producer may be shared by any number of threads. A background thread sends the batches. The
    constructor connects. A forked child cannot use its parent's producer. Brokers that fail later are retried
    until `delivery_timeout_ms`.

    Args:
        bootstrap_servers: `host:port` of one or more brokers, as a string with commas or a sequence.
        settings: Kafka's producer settings with underscores, for example `linger_ms=5`. The defaults are in
            `ottla.client.producer.settings.ProducerConfig`; docs/sdk.md explains the ones worth tuning.

    Raises:
        SettingError: A setting has an unknown name or an invalid value.
        BrokerUnreachable: No bootstrap server can be reached.
        AuthenticationFailed: The broker refuses the credentials, or TLS fails.
        ProducerFenced: A newer producer uses the same `transactional_id`.

    Example:
        >>> import ottla
        >>> with ottla.Producer(broker.address, linger_ms=5) as producer:
        ...     sent = producer.send("payments", b"12 EUR", key=b"alice")
        ...     print(sent.result(timeout=10).offset)
        0
    """

    _core: AsyncProducer

    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Unpack[ProducerSettings]) -> None:
        self._core = self._open("ottla-producer", lambda: AsyncProducer(bootstrap_servers, **settings))
        _open_producers.add(self)

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> SendFuture:
        """Put a record into the buffer and return at once.

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
                runs on the producer's thread and must not block. Default: None.

        Returns:
            A future: `result(timeout)` waits for the acknowledgement and returns the `RecordMetadata`.

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
            >>> producer.send("orders", b"a fourth order", key=b"alice").result(timeout=10).offset
            3
        """
        core = self._core
        sent = core._try_send(topic, value, key, partition, headers, timestamp_ms, on_delivery)
        if type(sent) is not SendFuture:
            return self._send_later(sent)
        if not sent.index and core._sender_is_due:
            core._yield_to_sender()
        return sent

    def _send_later(self, blocked: SendFuture | Blocked) -> SendFuture:
        core, thread = self._core, self._thread
        block_s = core._settings.max_block_ms / 1000
        deadline_s = time.monotonic() + block_s
        while not isinstance(blocked, SendFuture):
            try:
                left_s = max(deadline_s - time.monotonic(), 0)
                if not blocked.size_bytes:
                    thread.run(core._find_topic(blocked.topic, left_s))
                elif thread.is_current or not core._accumulator.wait_for_room(blocked.size_bytes, left_s):
                    # A callback runs on the thread that frees memory: it would wait for itself.
                    raise buffer_full(0 if thread.is_current else block_s)
                blocked = blocked.again()
            except Exception as error:
                assert not isinstance(blocked, SendFuture)
                core._report_unsent(blocked, error)
                raise
        return blocked

    def send_batch(self, topic: str, partition: int, batch: bytes | memoryview) -> SendFuture:
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

        Example:
            >>> from ottla.records.record import Record, encode_batch
            >>> batch = encode_batch([Record(0, 1_700_000_000_000, None, b"value", ())])
            >>> producer.send_batch("orders", 0, batch).result(timeout=10).offset
            3
        """
        sent = self._core._try_send_batch(topic, partition, batch)
        return sent if isinstance(sent, SendFuture) else self._send_later(sent)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record that was sent before is acknowledged or has failed.

        Args:
            timeout: Seconds. Default: no limit.

        Raises:
            TimeoutError: Records are still outstanding after `timeout`.

        Example:
            >>> sent = producer.send("orders", b"value")
            >>> producer.flush()
            >>> sent.done()
            True
        """
        self._thread.run(self._core.flush(timeout))

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[int]:
        """List the partitions of a topic.

        Args:
            topic: Name of the topic.
            timeout: Seconds to wait for a topic that is being created. Default: `max_block_ms`.

        Returns:
            The partition numbers.

        Raises:
            TopicNotFound: The topic does not exist.
            RequestTimedOut: No broker returns the topic's metadata in time.

        Example:
            >>> producer.partitions_for("orders")
            [0]
        """
        return self._thread.run(self._core.partitions_for(topic, timeout))

    def metrics(self) -> ProducerMetrics:
        """Return the producer's counters and averages since it was created.

        Returns:
            The `ProducerMetrics`. `print()` shows them as a table.

        Example:
            >>> producer.send("orders", b"value").result(timeout=10).offset
            3
            >>> producer.metrics().records_sent
            1
        """
        return self._core.metrics()

    def renew(self) -> None:
        """Initialize the transactional id again, between two transactions.

        Every other producer of the id is fenced, as by a new producer. A producer that was fenced can
        continue after this call. Use it for producers that share an id and take turns.

        Raises:
            TransactionMisused: The producer has no `transactional_id`, or a transaction is open.

        Example:
            >>> with ottla.Producer(broker.address, transactional_id="billing-1") as producer:
            ...     producer.renew()
        """
        self._thread.run(self._core.renew())

    def begin(self) -> None:
        """Begin a transaction.

        Records that are sent from here on are committed together or not at all.

        Raises:
            TransactionMisused: The producer has no `transactional_id`, or a transaction is open.
            ProducerFenced: A newer producer uses the `transactional_id`.

        Example:
            >>> with ottla.Producer(broker.address, transactional_id="billing-1") as producer:
            ...     producer.begin()
            ...     sent = producer.send("orders", b"value")
            ...     producer.commit()
        """
        self._thread.run(self._core.begin())

    def commit(self) -> None:
        """Wait for the acknowledgement of every record of the transaction, then commit it.

        After `RequestTimedOut` call it again: the second call returns the outcome of the first.

        Raises:
            TransactionAbortable: A part of the transaction failed. Call `abort()`, then run the transaction
                again.
            ProducerFenced: A newer producer uses the `transactional_id`.
            RequestTimedOut: The coordinator does not answer within `max_block_ms`.
            TransactionMisused: No transaction is open.

        Example:
            >>> with ottla.Producer(broker.address, transactional_id="billing-1") as producer:
            ...     producer.begin()
            ...     sent = producer.send("orders", b"value")
            ...     producer.commit()
            >>> sent.done()
            True
        """
        self._thread.run(self._core.commit())

    def abort(self) -> None:
        """Abort the transaction: consumers with `read_committed` see none of its records.

        Records that are still in the buffer fail.

        Raises:
            ProducerFenced: A newer producer uses the `transactional_id`.
            RequestTimedOut: The coordinator does not answer within `max_block_ms`.
            TransactionMisused: No transaction is open, or a commit is in progress.

        Example:
            >>> with ottla.Producer(broker.address, transactional_id="billing-1") as producer:
            ...     producer.begin()
            ...     sent = producer.send("orders", b"value")
            ...     producer.abort()
        """
        self._thread.run(self._core.abort())

    def send_offsets(
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

        Example:
            >>> with ottla.Producer(broker.address, transactional_id="billing-1") as producer:
            ...     with producer.transaction():
            ...         producer.send_offsets({ottla.TopicPartition("orders", 0): 3}, "billing")
            >>> admin.group_offsets("billing")
            {TopicPartition(topic='orders', partition=0): 3}
        """
        self._thread.run(self._core.send_offsets(offsets, group))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a block in a transaction: commit at its end, abort if it raises.

        Returns:
            A context manager for `with`.

        Raises:
            TransactionAbortable: A part of the transaction failed; it is aborted.
            ProducerFenced: A newer producer uses the `transactional_id`.
            TransactionMisused: The producer has no `transactional_id`, or a transaction is open.

        Example:
            >>> with ottla.Producer(broker.address, transactional_id="billing-1") as producer:
            ...     with producer.transaction():
            ...         sent = producer.send("orders", b"value")
        """
        self.begin()
        try:
            yield
        except BaseException:
            with contextlib.suppress(KafkaError):
                self.abort()
            raise
        self._thread.run(self._core._commit_or_abort())

    def close(self, timeout: float | None = None) -> None:
        """Send the buffered records, then disconnect. An open transaction is aborted.

        Records that are not acknowledged in time fail with `ClientClosed`. A second call does nothing.

        Args:
            timeout: Seconds to wait for acknowledgements. Default: until every record is acknowledged or has
                failed.

        Example:
            >>> producer = ottla.Producer(broker.address)
            >>> sent = producer.send("orders", b"value")
            >>> producer.close(timeout=10)
            >>> sent.done()
            True
        """
        if self._closes():
            self._shut(self._core.close(timeout))


_open_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


@atexit.register
def _send_buffered_records() -> None:
    """Send the buffered records of a program that did not call `close()`: the sending thread is a daemon."""
    for producer in list(_open_producers):
        # In a forked child the core is not an AsyncProducer: the parent sends the records.
        core: object = producer._core
        if producer._closed or not isinstance(core, AsyncProducer) or not core._accumulator.buffered_bytes:
            continue
        before = core.metrics().records_failed
        producer.close(EXIT_S_MAX)
        failed = core.metrics().records_failed - before
        if failed:
            logger.warning("the program ended without closing a producer: %d record(s) failed", failed)
