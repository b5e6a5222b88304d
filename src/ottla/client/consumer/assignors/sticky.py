"""Assignors with a memory: `sticky` and `cooperative-sticky`. Shares as even as the subscriptions allow, with the fewest moves.

The shares are those of the broker's own assignor (`model/assignors.py`). Members tell what they have: in the eager protocol, where
they have given everything up before they join, in their user data, as Kafka's sticky assignor writes it; in the cooperative one in
their subscription. A claim of a newer generation beats an older one: that member was away while others got its partitions.
Two claims of one generation cannot both be true, and count for nothing.
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
    """A topic as `uniform` sees it; racks stay unknown."""

    racks: tuple[frozenset[str], ...]


class StickyAssignor(Assignor):
    """Everybody gives everything up and gets most of it back."""

    name = "sticky"
    cooperative = False

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes:
        return write_partitions(owned, generation)

    def claims(self, member: Subscriber) -> tuple[frozenset[TopicPartition], int]:
        """What a member says it had, and in which generation."""
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
    """Members keep what they have; what moves is given up first, and handed over in the next rebalance."""

    name = "cooperative-sticky"
    cooperative = True

    def user_data(self, owned: Iterable[TopicPartition], generation: int) -> bytes:
        return _GENERATION.pack(generation)

    def claims(self, member: Subscriber) -> tuple[frozenset[TopicPartition], int]:
        generation = member.generation
        if generation < 0 and len(member.user_data) >= _GENERATION.size:
            # Members whose subscriptions have no generation of their own yet say it here.
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
    """Of all that members say they had, what each is believed."""
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
