"""The blocking face of the producer, `ottla.Producer`.

What is hot stays in the caller's thread: `send` appends to the accumulator without visiting the event loop. Any number of
threads may share one.
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

#: How long a program that ends without `close()` waits for the records that it left.
EXIT_S_MAX = 5.0

logger = logging.getLogger(__name__)


class Producer(BlockingClient):
    """Sends records. Settings are Kafka's, with underscores: `Producer("127.0.0.1:9092", linger_ms=5)`.

    The first broker must be reachable; brokers that go away later are retried until `delivery_timeout_ms`. With a `transactional_id`
    older producers of the same name are fenced from now on. Any number of threads may share one producer; a child of a fork
    may not use its parent's.
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
        """Queue a record and return at once; `.result()` of what comes back tells its offset.

        Keys and values are bytes, unless `key_serializer` and `value_serializer` make bytes of them. A record goes to its
        `partition`, else to the one of its key, else to the next in turn. `on_delivery(metadata, error)` is called when the record is
        acknowledged or has failed, on the producer's own thread: it must not block. Waits up to `max_block_ms`
        for a topic that is not known yet and for room in the buffer.
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
                    # A callback runs on the thread that makes room: it would wait for itself.
                    raise buffer_full(0 if thread.is_current else block_s)
                blocked = blocked.again()
            except Exception as error:
                assert not isinstance(blocked, SendFuture)
                core._report_unsent(blocked, error)
                raise
        return blocked

    def send_batch(self, topic: str, partition: int, batch: bytes | memoryview) -> SendFuture:
        """Queue a record batch (magic 2) that is encoded already and return at once; the future is of its first record.

        It gets this producer's numbers and is sent as it is otherwise: its records see no serializer, interceptor or partitioner.
        """
        sent = self._core._try_send_batch(topic, partition, batch)
        return sent if isinstance(sent, SendFuture) else self._send_later(sent)

    def flush(self, timeout: float | None = None) -> None:
        """Wait (seconds) until everything sent before is acknowledged or has failed; `TimeoutError` if it takes longer."""
        self._thread.run(self._core.flush(timeout))

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[int]:
        """The numbers of the topic's partitions, waiting (seconds, else `max_block_ms`) for a topic that is being made."""
        return self._thread.run(self._core.partitions_for(topic, timeout))

    def metrics(self) -> ProducerMetrics:
        """What this producer has done so far; printed, it is a table."""
        return self._core.metrics()

    def renew(self) -> None:
        """Take the transactional id back, between two transactions: as when the producer was made, whoever has used the id since is fenced.

        For those who share an id and take turns by other means; one who was fenced without knowing goes on.
        """
        self._thread.run(self._core.renew())

    def begin(self) -> None:
        """Begin a transaction. What is sent from now on counts when it is committed, all of it or nothing."""
        self._thread.run(self._core.begin())

    def commit(self) -> None:
        """Wait for everything that was sent, then commit. When it returns, nothing undoes it.

        Raises `TransactionAbortable` if a part failed: `abort()` and try again. After a time-out call it again, to learn what became of it.
        """
        self._thread.run(self._core.commit())

    def abort(self) -> None:
        """End the transaction so that none of it counts. What is not sent yet fails."""
        self._thread.run(self._core.abort())

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMetadata
    ) -> None:
        """Make the offsets that a group has read up to (the next to read) a part of the transaction.

        Give `consumer.group_metadata()` as the group: then a member that the group has gone on without is refused.
        """
        self._thread.run(self._core.send_offsets(offsets, group))

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """`with producer.transaction():` begins one, commits it at the end and aborts it on an exception."""
        self.begin()
        try:
            yield
        except BaseException:
            with contextlib.suppress(KafkaError):
                self.abort()
            raise
        self._thread.run(self._core._commit_or_abort())

    def close(self, timeout: float | None = None) -> None:
        """Send what is queued, for at most `timeout` seconds; records left over fail with `ClientClosed`.

        A transaction that is open is aborted.
        """
        if self._closes():
            self._shut(self._core.close(timeout))


_open_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


@atexit.register
def _send_what_is_left() -> None:
    """The thread that sends is a daemon: without this, records of a program that forgot `close()` would be lost in silence."""
    for producer in list(_open_producers):
        # In a forked child it is none: there the parent sends them.
        core: object = producer._core
        if producer._closed or not isinstance(core, AsyncProducer) or not core._accumulator.buffered_bytes:
            continue
        before = core.metrics().records_failed
        producer.close(EXIT_S_MAX)
        failed = core.metrics().records_failed - before
        if failed:
            logger.warning("the program ended without close() of a producer: %d record(s) failed", failed)
