"""Seeks, pauses, positions and lag of a consumer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from ottla.client.consumer.fetched import FetchBuffer
from ottla.client.consumer.fetcher import Fetcher
from ottla.client.consumer.progress import Progress
from ottla.client.consumer.queries import OffsetQueries
from ottla.client.errors import RequestTimedOut
from ottla.client.metadata import TopicPartition
from ottla.client.offsets import EARLIEST, LATEST, list_offsets


def now_ms() -> float:
    return time.monotonic() * 1000


class SeekOperations(OffsetQueries):
    """The part of an asyncio consumer that changes its positions."""

    _buffer: FetchBuffer
    _fetcher: Fetcher
    _progress: Progress

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int) -> None:
        """Continue reading a partition at an offset.

        Args:
            partition: An assigned partition.
            offset: The offset of the next record to read, 0 or more.

        Raises:
            ValueError: The offset is negative.
            KafkaError: The partition is not assigned to this consumer.
        """
        if offset < 0:
            raise ValueError(
                f"cannot seek to offset {offset}: it must be 0 or more. For the ends of a partition use "
                "seek_to_beginning() or seek_to_end()"
            )
        self._place(TopicPartition(*partition), offset)
        self._fetcher.pump_soon()

    def _place(self, tp: TopicPartition, offset: int) -> None:
        if self._progress.iteration is not None:
            self._progress.iteration.forget(tp)
        self._buffer.place(tp, offset=offset)

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Continue reading partitions at their first offset.

        Args:
            partitions: Assigned partitions. Default: all of them.

        Raises:
            KafkaError: A partition is not assigned, or its offsets cannot be looked up.
        """
        await self._seek_to(partitions, EARLIEST)

    async def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Continue reading partitions at their end offset.

        With `read_committed` that is the last stable offset.

        Args:
            partitions: Assigned partitions. Default: all of them.

        Raises:
            KafkaError: A partition is not assigned, or its offsets cannot be looked up.
        """
        await self._seek_to(partitions, LATEST)

    async def seek_to_time(self, timestamp_ms: int, partitions: Iterable[TopicPartition] = ()) -> None:
        """Continue reading partitions at the first record at or after a time.

        A partition without such a record continues at its end.

        Args:
            timestamp_ms: Milliseconds since 1970 UTC.
            partitions: Assigned partitions. Default: all of them.

        Raises:
            KafkaError: A partition is not assigned, or its offsets cannot be looked up.
        """
        await self._seek_to(partitions, timestamp_ms)

    async def _seek_to(self, partitions: Iterable[TopicPartition], timestamp_ms: int) -> None:
        wanted = list(partitions) or list(self._buffer.partitions)
        # For read_committed the end is the last stable offset, so later commits of open transactions are not
        # skipped.
        level = self._fetcher.isolation_level
        times = dict.fromkeys(wanted, timestamp_ms)
        found = await list_offsets(self._cluster, times, isolation_level=level)
        late = dict.fromkeys((tp for tp in wanted if found[tp].offset < 0), LATEST)
        ends = await list_offsets(self._cluster, late, isolation_level=level) if late else {}
        for tp in wanted:
            self._place(tp, (ends if tp in ends else found)[tp].offset)
        self._fetcher.pump_soon()

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until `resume`. They stay assigned.

        Args:
            partitions: Assigned partitions.

        Raises:
            KafkaError: A partition is not assigned to this consumer.
        """
        self._buffer.pause(partitions, True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of paused partitions again.

        Args:
            partitions: Assigned partitions.

        Raises:
            KafkaError: A partition is not assigned to this consumer.
        """
        self._buffer.pause(partitions, False)
        self._fetcher.pump_soon()

    def paused(self) -> list[TopicPartition]:
        """Return the paused partitions.

        Returns:
            The partitions.
        """
        return [tp for tp, partition in self._buffer.partitions.items() if partition.paused]

    async def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """Return the offset of the next record of a partition.

        The call waits up to `default_api_timeout_ms` until the start offset is known.

        Args:
            partition: An assigned partition.

        Returns:
            The offset.

        Raises:
            RequestTimedOut: The start offset is unknown after `default_api_timeout_ms`.
            OffsetOutOfRange: There is no committed offset, and `auto_offset_reset` is "none".
            KafkaError: The partition is not assigned to this consumer.
        """
        tp = TopicPartition(*partition)
        deadline_ms = now_ms() + self._settings.default_api_timeout_ms
        self._fetcher.pump_soon()
        while True:
            # Clear before the check, so that a later arrival ends the wait.
            self._fetcher.arrived.clear()
            found = self._buffer.position(tp)
            if found is not None:
                return self._progress.positions().get(tp, found)
            state = self._buffer.partitions[tp]
            if state.error is not None:
                raise state.error
            if now_ms() >= deadline_ms:
                raise RequestTimedOut(
                    f"the start offset of {tp} is unknown after {self._settings.default_api_timeout_ms} ms",
                    topic=tp.topic,
                    partition=tp.partition,
                    advice="It may be deleted or without a leader: check it with `ottla topic describe`",
                )
            await self._wait_for_arrival(deadline_ms - now_ms())

    async def lag(
        self, partitions: Iterable[TopicPartition | tuple[str, int]] = ()
    ) -> dict[TopicPartition, int]:
        """Return the lag of each partition: the end offset minus the position.

        Args:
            partitions: Assigned partitions. Default: all of them.

        Returns:
            The number of offsets by partition.

        Raises:
            RequestTimedOut: A start offset is unknown after `default_api_timeout_ms`.
        """
        wanted = [TopicPartition(*tp) for tp in partitions] or list(self._buffer.partitions)
        positions = {tp: await self.position(tp) for tp in wanted}
        return {tp: max(end - positions[tp], 0) for tp, end in (await self.end_offsets(wanted)).items()}

    async def _wait_for_arrival(self, timeout_ms: float) -> None:
        try:
            async with asyncio.timeout(max(timeout_ms, 1) / 1000):
                await self._fetcher.arrived.wait()
        except TimeoutError:
            pass
