"""The partition of a record: the given one, the one of its key, or the choice of a partitioner.

Keys map to the same partition as in every Kafka client (murmur2). For records without a key, `sticky` fills a
batch of one partition before it goes to the next (KIP-480), and `round_robin` changes the partition with
every record. Both start at random. A callable decides for all records without a partition. Partitions without
a leader are skipped while others have one. `send` calls it in any thread.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from ottla.client.errors import TopicNotFound
from ottla.client.metadata import PartitionInfo
from ottla.client.producer.settings import PartitionerName

#: (topic, key as given, key as bytes, value as given, the topic's partitions) -> one of them
Partitioner: TypeAlias = Callable[[str, Any, bytes | None, Any, tuple[int, ...]], int]


class Spread(Protocol):
    """Chooses the partition of records without a key."""

    def current(self, topic: str, partitions: Mapping[int, PartitionInfo]) -> int:
        """The partition for the next record."""

    def moved(self, topic: str, partition: int, partitions: Mapping[int, PartitionInfo]) -> int:
        """The partition for a record that does not fit into the current batch."""


class Sticky:
    def __init__(self) -> None:
        self._current: dict[str, int] = {}

    def current(self, topic: str, partitions: Mapping[int, PartitionInfo]) -> int:
        found = self._current.get(topic)
        if found is None:
            found = self._current[topic] = random.randrange(len(partitions))
        return found

    def moved(self, topic: str, partition: int, partitions: Mapping[int, PartitionInfo]) -> int:
        current = self._current.get(topic, partition)
        # Another thread may have moved on already.
        if current == partition:
            current = self._current[topic] = with_leader(partition + 1, partitions)
        return current


class RoundRobin:
    def __init__(self) -> None:
        self._counters: dict[str, itertools.count[int]] = {}

    def current(self, topic: str, partitions: Mapping[int, PartitionInfo]) -> int:
        counter = self._counters.get(topic)
        if counter is None:
            counter = self._counters.setdefault(topic, itertools.count(random.randrange(len(partitions))))
        return with_leader(next(counter), partitions)

    def moved(self, topic: str, partition: int, partitions: Mapping[int, PartitionInfo]) -> int:
        return partition


def with_leader(turn: int, partitions: Mapping[int, PartitionInfo]) -> int:
    """The partition of this turn, or the next one that has a leader."""
    count = len(partitions)
    for step in range(count):
        choice = (turn + step) % count
        if partitions[choice].leader >= 0:
            return choice
    return turn % count


def spread_of(name: PartitionerName | Partitioner) -> Spread:
    return RoundRobin() if name == "round_robin" else Sticky()


def checked(topic: str, partition: Any, partitions: Mapping[int, PartitionInfo]) -> int:
    """Return a partition that the caller chose, if the topic has it."""
    if partition not in partitions:
        raise TopicNotFound(
            f"topic {topic!r} has partitions 0 to {len(partitions) - 1}, not {partition}",
            topic=topic,
            partition=partition if isinstance(partition, int) else None,
            advice="Add partitions with `ottla topic alter`",
        )
    return int(partition)
