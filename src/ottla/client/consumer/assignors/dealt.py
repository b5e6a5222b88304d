"""Assignors without memory: `range` and `roundrobin`, with the same results as Kafka's (without racks)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from ottla.client.consumer.assignors.assignor import Assignor, Shares, Subscribers, in_order, wanted_topics
from ottla.client.metadata import TopicPartition


class RangeAssignor(Assignor):
    """A range of partition numbers per topic and member: equal numbers of several topics go to one member."""

    name = "range"
    cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Subscribers) -> Shares:
        shares: Shares = {name: [] for name in members}
        order = in_order(members)
        for topic in wanted_topics(partitions, members):
            names = [name for name in order if topic in members[name].topics]
            least, extra = divmod(partitions[topic], len(names))
            at = 0
            for position, name in enumerate(names):
                end = at + least + (position < extra)
                shares[name] += [TopicPartition(topic, number) for number in range(at, end)]
                at = end
        return shares


class RoundRobinAssignor(Assignor):
    """The partitions of all topics in turn, to the members that subscribe to them."""

    name = "roundrobin"
    cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Subscribers) -> Shares:
        shares: Shares = {name: [] for name in members}
        turn = deque(in_order(members))
        for topic in wanted_topics(partitions, members):
            for number in range(partitions[topic]):
                while topic not in members[turn[0]].topics:
                    turn.rotate(-1)
                shares[turn[0]].append(TopicPartition(topic, number))
                turn.rotate(-1)
        return shares
