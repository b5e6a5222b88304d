"""The blocking face of the consumer, `ottla.Consumer`.

What is hot stays in the caller's thread: `poll` takes from the fetch buffer without visiting the event loop. One consumer serves
one caller at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, Unpack

from ottla.client.consumer.columns import Columns
from ottla.client.consumer.core import AsyncConsumer
from ottla.client.consumer.fetched import ConsumerRecord
from ottla.client.consumer.settings import ConsumerSettings
from ottla.client.errors import ClientClosed
from ottla.client.loop_thread import Blocking
from ottla.client.metadata import TopicPartition

Taken = TypeVar("Taken")


class Consumer(Blocking):
    """Reads records of assigned partitions. Settings are Kafka's, with underscores."""

    _core: AsyncConsumer

    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Unpack[ConsumerSettings]) -> None:
        self._core = self._open("ottla-consumer", lambda: AsyncConsumer(bootstrap_servers, **settings))

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read these partitions, starting by `auto_offset_reset` unless a seek follows."""
        self._thread.run(self._core.assign(TopicPartition(*tp) for tp in partitions))

    def assignment(self) -> list[TopicPartition]:
        return list(self._core.buffer.partitions)

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        return self._thread.run(self._core.partitions(topic))

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int) -> None:
        self._core.seek(TopicPartition(*partition), offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        self._thread.run(self._core.seek_to_beginning(partitions))

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        self._thread.run(self._core.seek_to_end(partitions))

    def seek_to_time(self, timestamp_ms: int, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go on at the first record of each partition at or after that time; at the end where there is none."""
        self._thread.run(self._core.seek_to_time(timestamp_ms, partitions))

    def pause(self, *partitions: TopicPartition) -> None:
        self._core.pause(*partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._core.resume(*partitions)

    def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        return self._thread.run(self._core.position(TopicPartition(*partition)))

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._thread.run(self._core.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._thread.run(self._core.end_offsets(partitions))

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return self._thread.run(self._core.offsets_for_times(times))

    def poll(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Records that are there, or that come within the time; an empty dictionary when none do."""
        return self._poll(self._core.take, timeout_ms, max_records)

    def poll_columns(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, Columns]:
        """As `poll`, with the records of each partition as columns: arrays of offsets and timestamps, keys and values as bytes.

        Without `max_records` it gives all that are there. Deserializers are not applied.
        """
        return self._poll(self._core.take_columns, timeout_ms, max_records)

    def _poll(
        self,
        take: Callable[[int | None], dict[TopicPartition, Taken]],
        timeout_ms: float,
        max_records: int | None,
    ) -> dict[TopicPartition, Taken]:
        buffer = self._core.buffer
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            if self._closed:
                raise ClientClosed("this consumer is closed", advice="Make a new one")
            taken = take(max_records)
            if taken:
                return taken
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return {}
            with buffer.lock:
                buffer.condition.wait_for(lambda: buffer.ready or self._closed, left_s)

    def batches(self, timeout_ms: float = 1000) -> Iterator[dict[TopicPartition, list[ConsumerRecord]]]:
        """What each poll gives, for ever; polls that give nothing are left out."""
        while True:
            taken = self.poll(timeout_ms)
            if taken:
                yield taken

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Every record as it comes, for ever."""
        while True:
            for records in self.poll(1000).values():
                yield from records
