"""The interface of offset stores, `offset_store=`.

The consumer loads offsets at the start and after each rebalance, and saves them when it commits. `load` and
`save` run in the thread that polls or commits; asyncio consumers call them in a thread pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from ottla.client.errors import KafkaError
from ottla.client.metadata import TopicPartition


class OffsetStore(Protocol):
    def load(self, group: str, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The next offset to read of each partition that the store has."""

    def save(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Save these offsets. Raise `OffsetsMoved` if another consumer has saved since this one loaded."""

    def close(self) -> None:
        """Called when the consumer is closed."""


class OffsetsMoved(KafkaError):
    """Another consumer has moved the stored offsets and has these partitions: roll back the results of these
    records.
    """


def moved(group: str, tp: TopicPartition, known: int | None, found: int | None) -> OffsetsMoved:
    return OffsetsMoved(
        f"group {group!r} is at {'nothing' if found is None else found} of {tp} in the store, "
        f"not at {'nothing' if known is None else known}, where this consumer began",
        topic=tp.topic,
        partition=tp.partition,
        advice="Another consumer has the partition: roll back the results of these records and poll again",
    )
