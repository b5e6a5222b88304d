"""Producer interceptors: objects that see every record before serialization, and its outcome.

Each may implement any of `on_send(record) -> record`, `on_acknowledgement(metadata, error)` and `close()`.
They form a chain: each gets the record that the previous one returned. An interceptor that raises is logged
and skipped, as in Kafka. `on_acknowledgement` is called once for each record, also for a record that failed
before it was buffered.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

from ottla.client.errors import KafkaError
from ottla.client.interception import Interceptor, call
from ottla.client.producer.batches import Headers, OnDelivery, RecordMetadata

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class ProducerRecord:
    """A record as it was passed to `send`. Change it with `dataclasses.replace`."""

    topic: str
    value: Any
    key: Any = None
    partition: int | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None


class Interceptors:
    def __init__(self, chain: Sequence[Interceptor]) -> None:
        self._chain = tuple(chain)

    def __bool__(self) -> bool:
        return bool(self._chain)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        for each in self._chain:
            made = call(each, "on_send", record)
            if isinstance(made, ProducerRecord):
                record = made
            elif made is not None:
                logger.error(
                    "on_send of interceptor %r returned %s, not a ProducerRecord", each, type(made).__name__
                )
        return record

    def callback_for(self, on_delivery: OnDelivery | None) -> OnDelivery:
        """A callback that calls the chain first, then the caller's own callback."""

        def call_all(metadata: RecordMetadata, error: KafkaError | None) -> None:
            self._acknowledged(metadata, error)
            if on_delivery is not None:
                on_delivery(metadata, error)

        return call_all

    def failed(self, record: ProducerRecord, error: Exception) -> None:
        """A record was not appended to the accumulator."""
        partition = -1 if record.partition is None else record.partition
        self._acknowledged(RecordMetadata(record.topic, partition, -1, -1), error)

    def _acknowledged(self, metadata: RecordMetadata, error: Exception | None) -> None:
        for each in self._chain:
            call(each, "on_acknowledgement", metadata, error)

    def close(self) -> None:
        for each in self._chain:
            call(each, "close")
