"""Produce requests: encode batches, send them to their leader, and finish them by the response.

Every batch from the sender ends in the accumulator's `finish` or `fail`. Runs on the client's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.client.cluster import Cluster, backoff_ms
from ottla.client.connection import BrokerConnection
from ottla.client.errors import KafkaError, refused
from ottla.client.metadata import TopicPartition
from ottla.client.producer.accumulator import Accumulator
from ottla.client.producer.batches import ProducerBatch
from ottla.client.producer.settings import COMPRESSIONS, ProducerConfig
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.client.producer.transactions import Transactions

#: The last version that names topics; later ones carry ids.
PRODUCE_BY_NAME = 12
#: The last version that needs AddPartitionsToTxn first (KIP-890).
PRODUCE_ANNOUNCED = 11
#: The markers of the previous transaction are written soon: retry early.
CONCURRENT_BACKOFF_MS = 20

logger = logging.getLogger(__name__)


def now_ms() -> float:
    return time.monotonic() * 1000


class Link:
    """The sender's state of a broker: requests in flight, and the time until which it is throttled."""

    __slots__ = ("failures", "in_flight", "not_before_ms", "opening")

    def __init__(self) -> None:
        self.in_flight = 0
        self.not_before_ms = 0.0
        self.failures = 0
        self.opening: asyncio.Task[None] | None = None


class ProduceRequests:
    """Sends batches. `woken` is set whenever the sender should run again."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerConfig,
        accumulator: Accumulator,
        transactions: Transactions | None,
        woken: asyncio.Event,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._accumulator = accumulator
        self._transactions = transactions
        self._counts = accumulator.counts
        self._codec = COMPRESSIONS.index(settings.compression_type)
        self._acks = settings.acks_number
        self._woken = woken

    def send(self, connection: BrokerConnection, link: Link, batches: list[ProducerBatch]) -> None:
        """Send one request with these batches, each of a different partition."""
        topics: dict[str, list[dict[str, Any]]] = {}
        sent = []
        for batch in batches:
            try:
                encoded = self._encode(batch)
            except Exception as error:
                failure = KafkaError(
                    f"{len(batch.records)} record(s) for {batch.tp} cannot be encoded: {error}",
                    topic=batch.tp.topic,
                    partition=batch.tp.partition,
                )
                failure.__cause__ = error
                self._accumulator.finish(batch, failure)
                continue
            topics.setdefault(batch.tp.topic, []).append({"index": batch.tp.partition, "records": encoded})
            self._counts.left(batch)
            sent.append(batch)
        if not sent:
            return
        metadata = self._cluster.metadata
        ids = {topic: metadata.topic_id(topic) for topic in topics}
        body = {
            "transactional_id": self._settings.transactional_id,
            "acks": self._acks,
            "timeout": self._settings.request_timeout_ms,
            "topic_data": [
                {"name": topic, "topic_id": ids[topic], "partition_data": parts}
                for topic, parts in topics.items()
            ],
        }
        version_max = None if all(ids.values()) else PRODUCE_BY_NAME
        if self._transactions is not None and not self._transactions.states.implicit:
            version_max = PRODUCE_ANNOUNCED
        self._counts.requests += 1
        try:
            if self._acks == 0:
                connection.post(ApiKey.PRODUCE, body, version_max=version_max)
                for batch in sent:
                    self._accumulator.finish(batch, None)
                return
            answer = connection.send(ApiKey.PRODUCE, body, version_max=version_max)
        except KafkaError as error:
            self._failed(sent, error)
            return
        link.in_flight += 1
        # Use the ids of the request: the metadata may have another topic of that name by now, or none.
        names = {topic_id: topic for topic, topic_id in ids.items() if topic_id}
        answer.add_done_callback(partial(self._answered, connection.address, link, sent, names, now_ms()))

    def _encode(self, batch: ProducerBatch) -> bytes:
        if batch.encoded is None:
            if batch.producer is None:
                batch.encoded = batch.records.encode(codec=self._codec)
            else:
                batch.encoded = batch.records.encode(
                    codec=self._codec,
                    producer_id=batch.producer[0],
                    producer_epoch=batch.producer[1],
                    base_sequence=batch.sequence,
                    transactional=self._transactions is not None,
                )
        return batch.encoded

    def _answered(
        self,
        broker: str,
        link: Link,
        batches: list[ProducerBatch],
        names: dict[bytes, str],
        sent_ms: float,
        answer: asyncio.Future[Any],
    ) -> None:
        link.in_flight -= 1
        self._woken.set()
        if answer.cancelled():
            return
        try:
            self._read(broker, link, batches, names, sent_ms, answer.result())
        except KafkaError as error:
            self._failed(batches, error)
        except Exception as error:
            # Fail the batches whatever the error is, so that no future waits.
            logger.exception("a Produce response of %s could not be read", broker)
            failure = KafkaError(f"producing failed: {error!r}", broker=broker)
            failure.__cause__ = error
            self._failed(batches, failure)

    def _read(
        self,
        broker: str,
        link: Link,
        batches: list[ProducerBatch],
        names: dict[bytes, str],
        sent_ms: float,
        response: Any,
    ) -> None:
        now = now_ms()
        self._counts.answered(now - sent_ms)
        throttle_ms = response.throttle_time.total_seconds() * 1000
        if throttle_ms > 0:
            self._counts.throttled_ms += throttle_ms
            link.not_before_ms = max(link.not_before_ms, now + throttle_ms)
        waiting = {batch.tp: batch for batch in batches}
        for topic in response.responses:
            name = getattr(topic, "name", None) or names.get(
                topic.topic_id.bytes if topic.topic_id else b"", ""
            )
            for part in topic.partition_responses:
                batch = waiting.pop(TopicPartition(str(name), int(part.index)), None)
                if batch is not None:
                    self._settle(batch, part, broker)
        for batch in waiting.values():
            # The response does not mention the batch: the broker may have written it.
            topic, partition = batch.tp
            self._failed(
                [batch],
                refused(
                    ErrorCode.UNKNOWN_TOPIC_ID,
                    f"the answer about {batch.tp}",
                    broker=broker,
                    topic=topic,
                    partition=partition,
                ),
            )

    def _settle(self, batch: ProducerBatch, part: Any, broker: str) -> None:
        code = int(part.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            stamp = part.log_append_time
            append_time_ms = -1 if stamp is None else round(stamp.timestamp() * 1000)
            self._accumulator.finish(batch, None, int(part.base_offset) if not code else -1, append_time_ms)
            return
        refusal = partial(
            refused, code, "producing", broker=broker, topic=batch.tp.topic, partition=batch.tp.partition
        )
        message = getattr(part, "error_message", None)
        guilty = {
            int(row.batch_index): refusal(message=row.batch_index_error_message or message)
            for row in getattr(part, "record_errors", ()) or ()
        }
        if guilty and len(batch.records) > 1:
            # KIP-467: the other records failed only because they are in the same batch.
            rest = refusal(message=f"{message or ''} (another record of the batch was refused)".strip())
            self._accumulator.finish(batch, rest, record_errors=guilty)
        elif guilty:
            self._accumulator.finish(batch, next(iter(guilty.values())))
        else:
            self._failed([batch], refusal(message=message))

    def _failed(self, batches: list[ProducerBatch], error: KafkaError) -> None:
        now = now_ms()
        for batch in batches:
            wait_ms = backoff_ms(self._settings, batch.attempts + 1)
            if error.code == ErrorCode.CONCURRENT_TRANSACTIONS:
                wait_ms = min(wait_ms, CONCURRENT_BACKOFF_MS)
            self._accumulator.fail(batch, error, now, wait_ms)
        if error.retriable:
            self._cluster.refresh_soon()
        if self._transactions is not None:
            self._transactions.give_up_waiting()
        self._woken.set()
