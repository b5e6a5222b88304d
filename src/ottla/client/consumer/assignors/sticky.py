"""Sticky assignors: `sticky` and `cooperative-sticky`. Balanced assignments with the fewest moves.

The assignments are those of the broker's own assignor (`model/assignors.py`). Members report what they own:
in the eager protocol in their user data, in the format of Kafka's sticky assignor, because they have revoked
everything before they join; in the cooperative one in their subscription. A claim of a newer generation beats
an older one: that member was away while others got its partitions. Two claims of one generation contradict
each other, and both are ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.client.consumer.assignors.assignor import (
    Assignor,
    Shares,
    Subscriber,
    Subscribers,
    in_order,
    wanted_topics,
)
from ottla.client.metadata import TopicPartition
from ottla.model.assignors import Reader, uniform
from ottla.records.consumer_protocol import read_partitions, write_partitions
from ottla.records.layout import Malformed

_GENERATION = struct.Struct(">i")


class _Topic(NamedTuple):
    """A topic for `uniform`, without racks."""

    racks: tuple[frozenset[str], ...]


class StickyAssignor(Assignor):
    """All members revoke everything and get most of it back."""

    name = "sticky"
    cooperative = False

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes:
        return write_partitions(owned, generation)

    def claims(self, member: Subscriber) -> tuple[frozenset[TopicPartition], int]:
        """The partitions that a member reports, and their generation."""
        try:
            places, generation = read_partitions(member.user_data)
        except Malformed:
            return frozenset(), -1
        return frozenset(TopicPartition(*place) for place in places), generation

    def assign(self, partitions: Mapping[str, int], members: Subscribers) -> Shares:
        topics = wanted_topics(partitions, members)
        had = _believed({name: self.claims(member) for name, member in members.items()})
        exists = {TopicPartition(topic, number) for topic in topics for number in range(partitions[topic])}
        readers = [
            Reader(
                name, None, None, frozenset(topic.encode() for topic in member.topics & set(topics)),
                frozenset(
                    (tp.topic.encode(), tp.partition) for tp in had[name] & exists if tp.topic in member.topics
                ),
            )
            for name, member in ((name, members[name]) for name in in_order(members))
        ]  # fmt: skip
        views = {topic.encode(): _Topic((frozenset(),) * partitions[topic]) for topic in topics}
        return {
            name: sorted(TopicPartition(topic.decode(), number) for topic, number in places)
            for name, places in uniform(readers, views).items()
        }


class CooperativeStickyAssignor(StickyAssignor):
    """Members keep their partitions. Partitions that move are revoked first and assigned in the next
    rebalance.
    """

    name = "cooperative-sticky"
    cooperative = True

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes:
        return _GENERATION.pack(generation)

    def claims(self, member: Subscriber) -> tuple[frozenset[TopicPartition], int]:
        generation = member.generation
        if generation < 0 and len(member.user_data) >= _GENERATION.size:
            # Older subscription versions have no generation field: it is in the user data.
            generation = _GENERATION.unpack_from(member.user_data)[0]
        return member.owned, generation

    def assign(self, partitions: Mapping[str, int], members: Subscribers) -> Shares:
        shares = super().assign(partitions, members)
        owners: dict[TopicPartition, set[str]] = {}
        for name, member in members.items():
            for tp in member.owned:
                owners.setdefault(tp, set()).add(name)
        nobody: set[str] = set()
        return {
            name: [tp for tp in share if owners.get(tp, nobody) <= {name}] for name, share in shares.items()
        }


def _believed(
    claims: Mapping[str, tuple[frozenset[TopicPartition], int]],
) -> dict[str, set[TopicPartition]]:
    """Resolve the members' claims."""
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    for name, (owned, generation) in claims.items():
        for tp in owned:
            known = best.get(tp)
            if known is None or known[0] < generation:
                best[tp] = (generation, name)
            elif known[0] == generation:
                best[tp] = (generation, None)
    had: dict[str, set[TopicPartition]] = {name: set() for name in claims}
    for tp, (_, winner) in best.items():
        if winner is not None:
            had[winner].add(tp)
    return had
