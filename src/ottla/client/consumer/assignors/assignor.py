"""The interface of assignors, built-in and custom.

Pure: partitions and members in, assignments out. The leader of a classic group calls it
(`membership/classic.py`); every member calls it for the user data of its subscription.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol, TypeAlias

from ottla.client.metadata import TopicPartition


class Subscriber(NamedTuple):
    """A member as an assignor sees it: its topics, and the partitions that it reports as owned."""

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    #: The generation of the owned partitions; -1 if unknown.
    generation: int = -1
    instance_id: str | None = None
    rack: str | None = None
    user_data: bytes = b""


Subscribers: TypeAlias = Mapping[str, Subscriber]
Shares: TypeAlias = dict[str, list[TopicPartition]]


class Assignor(Protocol):
    """Subclass it, set a `name` that is unique in the group, and implement `assign`.

    With `cooperative`, members keep their partitions during a rebalance (KIP-429). Then a partition that a
    member owns must not be assigned to another one before its owner has given it up and joined again.
    """

    name: str
    cooperative: bool = False

    def assign(
        self, partitions: Mapping[str, int], members: Subscribers
    ) -> Mapping[str, Iterable[TopicPartition]]:
        """The assignment by member id; `partitions` is the number of partitions by topic."""
        ...

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes:
        """The user data of a member's subscription; `owned` is its last assignment, of that generation."""
        return b""


def in_order(members: Subscribers) -> list[str]:
    """Member ids in Kafka's order: static members by group instance id, then the others."""
    return sorted(
        members, key=lambda name: (members[name].instance_id is None, members[name].instance_id or name)
    )


def wanted_topics(partitions: Mapping[str, int], members: Subscribers) -> list[str]:
    """The existing topics with a subscriber, sorted."""
    return sorted({topic for member in members.values() for topic in member.topics} & partitions.keys())
