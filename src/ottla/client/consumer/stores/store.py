"""What an offset store is: the small interface behind `offset_store=`.

The consumer loads when it starts and after each rebalance, and saves when it commits, by hand or automatically. `load` and `save` are
called in the thread that polls or commits; by asyncio consumers in a thread of a pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from ottla.client.errors import KafkaError
from ottla.client.metadata import TopicPartition


class OffsetStore(Protocol):
    def load(self, group: str, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The offset of the next record to read of each partition that the store knows."""

    def save(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Keep these; raise `OffsetsMoved` if another consumer has saved since this one loaded."""

    def close(self) -> None:
        """The consumer is closed."""


class OffsetsMoved(KafkaError):
    """Another consumer has moved the stored offsets: it has these partitions now, and this one's work on them must not count."""


def moved(group: str, tp: TopicPartition, known: int | None, found: int | None) -> OffsetsMoved:
    return OffsetsMoved(
        f"group {group!r} is at {'nothing' if found is None else found} of {tp} in the store, "
        f"not at {'nothing' if known is None else known}, where this consumer began",
        topic=tp.topic,
        partition=tp.partition,
        advice="Another consumer has the partition now: undo what was made of these records and poll on",
    )
