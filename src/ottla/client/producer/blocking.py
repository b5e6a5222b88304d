"""The blocking face of the producer, `ottla.Producer`.

What is hot stays in the caller's thread: `send` appends to the accumulator without visiting the event loop. Any number of
threads may share one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Unpack

from ottla.client.loop_thread import Blocking
from ottla.client.producer.accumulator import RecordMetadata, SendFuture, buffer_full
from ottla.client.producer.core import AsyncProducer, Headers
from ottla.client.producer.settings import ProducerSettings

__all__ = ["Producer", "RecordMetadata"]


class Producer(Blocking):
    """Sends records. Settings are Kafka's, with underscores: `Producer("127.0.0.1:9092", linger_ms=5)`.

    The first broker must be reachable; brokers that go away later are retried until `delivery_timeout_ms`.
    """

    _core: AsyncProducer

    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Unpack[ProducerSettings]) -> None:
        self._core = self._open("ottla-producer", lambda: AsyncProducer(bootstrap_servers, **settings))

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> SendFuture:
        """Queue a record and return at once; `.result()` of what comes back tells its offset.

        Waits up to `max_block_ms` for a topic that is not known yet and for room in the buffer.
        """
        for name, content in (("value", value), ("key", key)):
            if content is not None and not isinstance(content, bytes):
                raise TypeError(
                    f"the {name} must be bytes or None, not {type(content).__name__}: encode it first"
                )
        core = self._core
        if topic not in core.cluster.metadata.topics:
            self._thread.run(core.cluster.topic(topic, core.settings.max_block_ms))
        future = core.try_send(topic, value, key, partition, headers, timestamp_ms)
        if future is None:
            future = self._send_when_there_is_room(topic, value, key, partition, headers, timestamp_ms)
        return future

    def _send_when_there_is_room(self, *record: Any) -> SendFuture:
        block_s = self._core.settings.max_block_ms / 1000
        deadline = time.monotonic() + block_s
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise buffer_full(block_s)
            self._core.wait_for_room(left_s)
            future = self._core.try_send(*record)
            if future is not None:
                return future

    def flush(self, timeout: float | None = None) -> None:
        """Wait (seconds) until everything sent before is acknowledged or has failed."""
        self._thread.run(self._core.flush(), timeout)

    def partitions_for(self, topic: str) -> list[int]:
        known = self._thread.run(self._core.cluster.topic(topic, self._core.settings.max_block_ms))
        return list(known.partitions)

    def close(self, timeout: float | None = None) -> None:
        """Send what is queued, for at most `timeout` seconds; records left over fail with `ClientClosed`."""
        self._shut(self._core.close(None if timeout is None else timeout * 1000))
