"""Which partition a record goes to: the one that was asked for, the one of its key, or the next in turn.

Keys go where every Kafka client sends them (murmur2). Records without one are spread: `sticky` fills one partition's batch and then goes
on to the next (KIP-480), `round_robin` changes with each record, both from a random start. A callable decides for
all records that name no partition. Partitions without a leader are passed over while others have one. Called by `send`, in any thread.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ottla.client.errors import TopicNotFound
from ottla.client.metadata import PartitionInfo, TopicPartition
from ottla.client.producer.settings import PartitionerName

#: (topic, key as given, key as bytes, value as given, the topic's partitions) -> one of them
Partitioner: TypeAlias = Callable[[str, Any, bytes | None, Any, tuple[int, ...]], int]
#: (topic, its partitions, size of the record) -> one of them, for a record without a key
Spread: TypeAlias = Callable[[str, Mapping[int, PartitionInfo], int], int]
HasRoom: TypeAlias = Callable[[TopicPartition, int], bool]


class Sticky:
    def __init__(self, has_room: HasRoom) -> None:
        self._has_room = has_room
        self._current: dict[str, int] = {}

    def __call__(self, topic: str, partitions: Mapping[int, PartitionInfo], size_bytes: int) -> int:
        current = self._current.get(topic)
        if current is None:
            current = random.randrange(len(partitions))
        elif self._has_room(TopicPartition(topic, current), size_bytes):
            return current
        else:
            current += 1
        choice = self._current[topic] = with_leader(current, partitions)
        return choice


class RoundRobin:
    def __init__(self) -> None:
        self._counters: dict[str, itertools.count[int]] = {}

    def __call__(self, topic: str, partitions: Mapping[int, PartitionInfo], _size_bytes: int) -> int:
        counter = self._counters.get(topic)
        if counter is None:
            counter = self._counters.setdefault(topic, itertools.count(random.randrange(len(partitions))))
        return with_leader(next(counter), partitions)


def with_leader(turn: int, partitions: Mapping[int, PartitionInfo]) -> int:
    """The partition whose turn it is, or the next one that has a leader."""
    count = len(partitions)
    for step in range(count):
        choice = (turn + step) % count
        if partitions[choice].leader >= 0:
            return choice
    return turn % count


def spread_of(name: PartitionerName | Partitioner, has_room: HasRoom) -> Spread:
    return RoundRobin() if name == "round_robin" else Sticky(has_room)


def checked(topic: str, partition: Any, partitions: Mapping[int, PartitionInfo]) -> int:
    """A partition that somebody chose, if the topic has it."""
    if partition not in partitions:
        raise TopicNotFound(
            f"topic {topic!r} has partitions 0 to {len(partitions) - 1}, not {partition}",
            topic=topic,
            partition=partition if isinstance(partition, int) else None,
            advice="Add partitions with `ottla topic alter`",
        )
    return int(partition)
