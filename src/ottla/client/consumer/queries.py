"""Partition queries that need no position: partitions of a topic, first and end offsets, offsets by time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.client.cluster import Cluster
from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.metadata import TopicPartition
from ottla.client.offsets import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offsets

METADATA_TIMEOUT_MS = 30_000


class OffsetQueries:
    """The part of an asyncio consumer that only needs the cluster."""

    _cluster: Cluster
    _settings: ConsumerConfig

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """List the partitions of a topic.

        Args:
            topic: Name of the topic.

        Returns:
            The partitions.

        Raises:
            TopicNotFound: The topic does not exist.
        """
        known = await self._cluster.topic(topic, METADATA_TIMEOUT_MS)
        return [TopicPartition(topic, index) for index in known.partitions]

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition.

        Args:
            partitions: Any partitions; they need not be assigned.

        Returns:
            The offset by partition.

        Raises:
            TopicNotFound: A topic or a partition does not exist.
        """
        return {
            tp: row.offset
            for tp, row in (await list_offsets(self._cluster, dict.fromkeys(partitions, EARLIEST))).items()
        }

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offset of each partition: the offset of the next record to be written.

        With `read_committed` that is the last stable offset.

        Args:
            partitions: Any partitions; they need not be assigned.

        Returns:
            The offset by partition.

        Raises:
            TopicNotFound: A topic or a partition does not exist.
        """
        committed = self._settings.isolation_level == "read_committed"
        found = await list_offsets(
            self._cluster,
            dict.fromkeys(partitions, LATEST),
            isolation_level=READ_COMMITTED if committed else READ_UNCOMMITTED,
        )
        return {tp: row.offset for tp, row in found.items()}

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """Return for each partition the offset of the first record at or after a time.

        Args:
            times: Milliseconds since 1970 UTC, by partition.

        Returns:
            The offset by partition; None where there is no such record.

        Raises:
            TopicNotFound: A topic or a partition does not exist.
        """
        found = await list_offsets(self._cluster, times)
        return {tp: row.offset if row.offset >= 0 else None for tp, row in found.items()}
