"""The cluster metadata of a client: brokers, topics by name and by id, leaders.

A `Metadata` is immutable, so any thread may read the current one. `merged` creates the next one from a
Metadata response. A response can be older than the known state, because brokers see elections at different
moments. So a partition's entry is only replaced by one of the same or a newer leader epoch, unless the topic
was re-created (KIP-320).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ottla.client.settings import address_text
from ottla.model.errors import ErrorCode


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndMetadata(NamedTuple):
    """A committed offset (the next one to read), with the metadata string of the commit."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class GroupMetadata(NamedTuple):
    """The member that commits, so that the group can refuse a former member."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None


@dataclass(frozen=True, slots=True)
class Node:
    id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        return address_text(self.host, self.port)

    def __str__(self) -> str:
        return f"broker {self.id} at {self.address}" + (f" in rack {self.rack}" if self.rack else "")


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()

    def __str__(self) -> str:
        leader = f"leader {self.leader}" if self.leader >= 0 else "no leader"
        replicas, in_sync = (", ".join(map(str, nodes)) for nodes in (self.replicas, self.isr))
        return f"{self.partition}: {leader}, replicas {replicas}, in sync {in_sync or 'none'}"


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    topic_id: bytes | None
    internal: bool
    partitions: Mapping[int, PartitionInfo]

    def __str__(self) -> str:
        head = f"topic {self.name}: {len(self.partitions)} partition(s)" + (
            ", internal" if self.internal else ""
        )
        return "\n".join([head, *(f"  {partition}" for partition in self.partitions.values())])


@dataclass(frozen=True, slots=True)
class Metadata:
    cluster_id: str | None = None
    controller_id: int = -1
    nodes: Mapping[int, Node] = field(default_factory=dict)
    topics: Mapping[str, TopicInfo] = field(default_factory=dict)
    names: Mapping[bytes, str] = field(default_factory=dict)
    errors: Mapping[str, ErrorCode] = field(default_factory=dict)

    def leader(self, topic: str, partition: int) -> Node | None:
        """The leader of a partition; None if it is unknown or there is none."""
        info = self.partition(topic, partition)
        return None if info is None else self.nodes.get(info.leader)

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        known = self.topics.get(topic)
        return None if known is None else known.partitions.get(partition)

    def partition_count(self, topic: str) -> int:
        known = self.topics.get(topic)
        return 0 if known is None else len(known.partitions)

    def topic_id(self, topic: str) -> bytes | None:
        known = self.topics.get(topic)
        return None if known is None else known.topic_id

    def without_brokers(self) -> Metadata:
        """The same metadata without brokers, so that the client bootstraps again."""
        return replace(self, nodes={}, controller_id=-1)

    def merged(self, response: Any, *, complete: bool) -> Metadata:
        """The next metadata. `complete`: the response lists every topic, so missing ones are deleted."""
        topics = {} if complete else dict(self.topics)
        errors = {} if complete else dict(self.errors)
        for row in response.topics:
            if row.name is None:
                continue
            name = str(row.name)
            code = int(row.error_code)
            # A topic that is being created may have no partitions in the response: it is not known yet.
            if code and not (code == ErrorCode.LEADER_NOT_AVAILABLE and row.partitions):
                errors[name] = known_code(code)
                topics.pop(name, None)
                continue
            errors.pop(name, None)
            topics[name] = self._newer(name, row)
        return Metadata(
            cluster_id=response.cluster_id or self.cluster_id,
            controller_id=int(response.controller_id),
            nodes={
                int(row.node_id): Node(int(row.node_id), str(row.host), int(row.port), row.rack)
                for row in response.brokers
            },
            topics=topics,
            names={topic.topic_id: name for name, topic in topics.items() if topic.topic_id is not None},
            errors=errors,
        )

    def with_leader(
        self, topic: str, partition: int, leader: int, leader_epoch: int, nodes: Mapping[int, Node]
    ) -> Metadata | None:
        """The metadata with the leader that a refused request returned (KIP-951); None if it is not newer."""
        known = self.topics.get(topic)
        before = None if known is None else known.partitions.get(partition)
        all_nodes = {**self.nodes, **nodes}
        if known is None or before is None or leader_epoch <= before.leader_epoch or leader not in all_nodes:
            return None
        moved = replace(before, leader=leader, leader_epoch=leader_epoch)
        info = replace(known, partitions={**known.partitions, partition: moved})
        return replace(self, nodes=all_nodes, topics={**self.topics, topic: info})

    def _newer(self, name: str, row: Any) -> TopicInfo:
        topic_id = row.topic_id.bytes if row.topic_id is not None else None
        before = self.topics.get(name)
        if before is not None and before.topic_id != topic_id:
            before = None
        partitions: dict[int, PartitionInfo] = {}
        for part in sorted(row.partitions, key=lambda part: int(part.partition_index)):
            index, epoch = int(part.partition_index), int(part.leader_epoch)
            old = None if before is None else before.partitions.get(index)
            if old is not None and -1 < epoch < old.leader_epoch:
                partitions[index] = old
                continue
            partitions[index] = PartitionInfo(
                index,
                int(part.leader_id),
                epoch,
                tuple(int(node) for node in part.replica_nodes),
                tuple(int(node) for node in part.isr_nodes),
                tuple(int(node) for node in part.offline_replicas),
            )
        return TopicInfo(name, topic_id, bool(row.is_internal), partitions)


def known_code(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
