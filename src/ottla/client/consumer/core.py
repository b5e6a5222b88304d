"""The consumer on asyncio: what callers ask of it. The fetcher keeps its buffer filled; `poll` takes records out of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Unpack

from ottla.client.cluster import Cluster
from ottla.client.consumer.columns import Columns
from ottla.client.consumer.fetched import ConsumerRecord
from ottla.client.consumer.fetcher import Fetcher, fetch_buffer
from ottla.client.consumer.settings import ConsumerSettings, Consuming
from ottla.client.errors import SettingError, TopicNotFound
from ottla.client.metadata import TopicPartition
from ottla.client.offsets import EARLIEST, LATEST, list_offsets
from ottla.client.settings import bootstrap_addresses, settings_of

METADATA_TIMEOUT_MS = 30_000


def now_ms() -> float:
    return time.monotonic() * 1000


class AsyncConsumer:
    """Use `await start()` first and `await close()` last, or `async with`."""

    def __init__(self, bootstrap_servers: str | Sequence[str], **given: Unpack[ConsumerSettings]) -> None:
        settings = settings_of(Consuming, given)
        if settings.group_id is not None:
            raise SettingError(
                "group_id: this client cannot join groups yet; use assign() without a group, or another client"
            )
        self.settings = settings
        self.cluster = Cluster(bootstrap_addresses(bootstrap_servers), settings)
        self.buffer = fetch_buffer(settings)
        self.fetcher = Fetcher(self.cluster, settings, self.buffer)

    async def __aenter__(self) -> AsyncConsumer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        await self.cluster.start()
        self.fetcher.start()

    async def close(self) -> None:
        await self.fetcher.close()
        await self.cluster.close()
        with self.buffer.lock:
            self.buffer.condition.notify_all()

    # What callers ask

    async def partitions(self, topic: str) -> list[TopicPartition]:
        known = await self.cluster.topic(topic, METADATA_TIMEOUT_MS)
        return [TopicPartition(topic, index) for index in known.partitions]

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions from now on, starting by `auto_offset_reset` unless a seek follows."""
        wanted = list(dict.fromkeys(TopicPartition(*tp) for tp in partitions))
        for topic in {tp.topic for tp in wanted}:
            known = await self.cluster.topic(topic, METADATA_TIMEOUT_MS)
            for tp in wanted:
                if tp.topic == topic and tp.partition not in known.partitions:
                    raise TopicNotFound(
                        f"topic {topic!r} has partitions 0 to {len(known.partitions) - 1}, not {tp.partition}",
                        topic=topic,
                        partition=tp.partition,
                        advice="Look with `ottla topic describe`",
                    )
        self.buffer.assign(wanted, self.fetcher.reset)
        self.fetcher.pump_soon()

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.buffer.place(tp, offset=offset)
        self.fetcher.pump_soon()

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        await self._seek_to(partitions, EARLIEST)

    async def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        await self._seek_to(partitions, LATEST)

    async def seek_to_time(self, timestamp_ms: int, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go on at the first record of each partition at or after that time; at the end where there is none."""
        await self._seek_to(partitions, timestamp_ms)

    async def _seek_to(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> None:
        wanted = list(partitions) or list(self.buffer.partitions)
        found = await list_offsets(self.cluster, dict.fromkeys(wanted, timestamp_ms))
        missing = [tp for tp in wanted if found[tp].offset < 0]
        ends = await list_offsets(self.cluster, dict.fromkeys(missing, LATEST)) if missing else {}
        for tp in wanted:
            self.buffer.place(tp, offset=(ends if tp in ends else found)[tp].offset)
        self.fetcher.pump_soon()

    def pause(self, *partitions: TopicPartition) -> None:
        self.buffer.pause(partitions, True)

    def resume(self, *partitions: TopicPartition) -> None:
        self.buffer.pause(partitions, False)
        self.fetcher.pump_soon()

    async def position(self, tp: TopicPartition) -> int:
        """The offset of the next record, waiting until the start is known."""
        while True:
            found = self.buffer.position(tp)
            if found is not None:
                return found
            state = self.buffer.partitions[tp]
            if state.error is not None:
                raise state.error
            await self._wait(self.settings.request_timeout_ms)

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {
            tp: row.offset
            for tp, row in (await list_offsets(self.cluster, dict.fromkeys(partitions, EARLIEST))).items()
        }

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {
            tp: row.offset
            for tp, row in (await list_offsets(self.cluster, dict.fromkeys(partitions, LATEST))).items()
        }

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """For each partition the offset of its first record at or after that time, or None."""
        found = await list_offsets(self.cluster, times)
        return {tp: row.offset if row.offset >= 0 else None for tp, row in found.items()}

    async def poll(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Records that are there, or that come within the time; an empty dictionary when none do."""
        deadline_ms = now_ms() + timeout_ms
        while True:
            records = self.take(max_records)
            left_ms = deadline_ms - now_ms()
            if records or left_ms <= 0:
                return records
            await self._wait(left_ms)

    def take(self, max_records: int | None = None) -> dict[TopicPartition, list[ConsumerRecord]]:
        """What `poll` would give at once, from any thread."""
        try:
            return self.buffer.take(max_records or self.settings.max_poll_records)
        finally:
            self._pump_if_room()

    async def poll_columns(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, Columns]:
        """As `poll`, with the records of each partition as columns; without `max_records`, all that are there."""
        deadline_ms = now_ms() + timeout_ms
        while True:
            columns = self.take_columns(max_records)
            left_ms = deadline_ms - now_ms()
            if columns or left_ms <= 0:
                return columns
            await self._wait(left_ms)

    def take_columns(self, max_records: int | None = None) -> dict[TopicPartition, Columns]:
        """What `poll_columns` would give at once, from any thread."""
        try:
            return self.buffer.take_columns(max_records)
        finally:
            self._pump_if_room()

    def _pump_if_room(self) -> None:
        # To wake the loop costs a system call and the interpreter's lock: only when there is something to fetch.
        if self.buffer.has_room:
            self.buffer.has_room = False
            self.fetcher.pump_soon()

    async def _wait(self, timeout_ms: float) -> None:
        self.fetcher.arrived.clear()
        if self.buffer.ready:
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.fetcher.arrived.wait()
        except TimeoutError:
            pass
