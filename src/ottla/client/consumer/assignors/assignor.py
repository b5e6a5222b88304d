"""What an assignor is: the protocol that ours and the user's own have in common.

Pure: partitions and members in, shares out. The leader of a classic group asks it (`membership/classic.py`); every member asks it for
the user data of its own subscription.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol, TypeAlias

from ottla.client.metadata import TopicPartition


class Subscriber(NamedTuple):
    """A member as an assignor sees it: what it wants, and what it says that it has."""

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    #: In which it got what it owns; -1 if it does not say.
    generation: int = -1
    instance_id: str | None = None
    rack: str | None = None
    user_data: bytes = b""


Subscribers: TypeAlias = Mapping[str, Subscriber]
Shares: TypeAlias = dict[str, list[TopicPartition]]


class Assignor(Protocol):
    """Derive from it, give it a `name` that no other assignor of the group has, and write `assign`.

    With `cooperative`, members keep what they have during a rebalance: then a partition that another member owns may not be
    assigned to anybody else, until that member has given it up and joins again (KIP-429).
    """

    name: str
    cooperative: bool = False

    def assign(
        self, partitions: Mapping[str, int], members: Subscribers
    ) -> Mapping[str, Iterable[TopicPartition]]:
        """The share of each member id; `partitions` is how many each topic has that exists."""
        ...

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes:
        """What a member tells the leader beside its topics: `owned` is what it was assigned last, in that generation."""
        return b""


def in_order(members: Subscribers) -> list[str]:
    """Member ids in Kafka's order: static members by their instance ids, then the others."""
    return sorted(
        members, key=lambda name: (members[name].instance_id is None, members[name].instance_id or name)
    )


def wanted_topics(partitions: Mapping[str, int], members: Subscribers) -> list[str]:
    """The topics that exist and that somebody reads, sorted."""
    return sorted({topic for member in members.values() for topic in member.topics} & partitions.keys())
