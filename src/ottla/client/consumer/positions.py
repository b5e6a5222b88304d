"""Unknown positions: the start or reset of a partition, looked up with ListOffsets for the fetcher."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.client.consumer.partition import Partition
from ottla.client.errors import KafkaError, refused
from ottla.client.metadata import TopicPartition
from ottla.client.offsets import LATEST, list_offsets
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.client.consumer.fetcher import Fetcher


class Positions:
    """Looks up the positions of the fetcher's partitions, each at most once at a time."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._looking_up: set[TopicPartition] = set()

    def look_up(self, partitions: list[Partition]) -> None:
        """Look up the start of these partitions by their `reset`; without a reset the partition fails."""
        buffer = self._fetcher.buffer
        asked: list[tuple[Partition, int]] = []
        for partition in partitions:
            if partition.tp in self._looking_up:
                continue
            if partition.reset is None:
                tp = partition.tp
                error = refused(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"no position for {tp}",
                    topic=tp.topic,
                    partition=tp.partition,
                )
                buffer.fail(partition, partition.generation, error)
                self._fetcher.arrived.set()
                continue
            if self._is_unheard_of(partition.tp):
                error = refused(ErrorCode.LEADER_NOT_AVAILABLE, f"the start of {partition.tp}")
                self._fetcher.failed([(partition, partition.generation)], error)
                continue
            asked.append((partition, partition.generation))
        if asked:
            self._looking_up.update(partition.tp for partition, _ in asked)
            self._fetcher.run(self._find(asked))

    def _is_unheard_of(self, tp: TopicPartition) -> bool:
        """Whether the partition is newer than this client's metadata of its topic. The group leader or the
        broker knows more.
        """
        cluster = self._fetcher.cluster
        topic = cluster.metadata.topics.get(tp.topic)
        if topic is None or tp.partition in topic.partitions:
            return False
        cluster.watch((tp.topic,))
        return True

    async def _find(self, asked: list[tuple[Partition, int]]) -> None:
        fetcher = self._fetcher
        cluster, isolation_level = fetcher.cluster, fetcher.isolation_level
        times = {partition.tp: partition.reset for partition, _ in asked if partition.reset is not None}
        try:
            # One attempt: the fetcher retries, with the partitions that are missing then.
            found = await list_offsets(cluster, times, attempts_max=1, isolation_level=isolation_level)
            # No record is that new: start at the end.
            late = dict.fromkeys((tp for tp, row in found.items() if row.offset < 0), LATEST)
            if late:
                found |= await list_offsets(cluster, late, attempts_max=1, isolation_level=isolation_level)
        except KafkaError as error:
            if len(asked) == 1:
                fetcher.failed(asked, error)
            else:
                # A deleted topic or a partition without a leader must not block the others.
                await asyncio.gather(*(self._find([each]) for each in asked))
            return
        finally:
            self._looking_up.difference_update(partition.tp for partition, _ in asked)
        with fetcher.buffer.lock:
            for partition, generation in asked:
                if partition.generation == generation and partition.tp in found:
                    partition.position = partition.fetch_offset = max(found[partition.tp].offset, 0)
            fetcher.buffer.condition.notify_all()
        fetcher.arrived.set()
        fetcher.pump()
