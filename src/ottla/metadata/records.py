"""The records of the metadata log: all state of the cluster except messages.

A record is a named tuple. In the store it is one JSON object with its kind, so that a person can read a
journal or a znode. Fields are only ever added, with a default; `decode` ignores unknown names.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, TypeAlias


class Cluster(NamedTuple):
    """The first record of every cluster."""

    cluster_id: str


class Topic(NamedTuple):
    name: str
    topic_id: bytes


class Partition(NamedTuple):
    """A partition: its replicas, its ISR and its leader.

    `leader_epoch` grows with each election, `partition_epoch` with each change. Without a leader, `leader` is
    -1.
    """

    topic_id: bytes
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    #: During a reassignment: the new ones of `replicas`, and those to remove once the new ones are in sync.
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    #: Replicas that left the ISR at or below `min.insync.replicas`: they have all committed records (R7,
    #: KIP-966).
    eligible: tuple[int, ...] = ()
    #: The last leader, while there is none.
    last_leader: int = -1


class NewPartitions(NamedTuple):
    """Partitions of one topic that are created together, numbered from `first` on, with only their replicas.

    All replicas are in sync and the first one leads, except those on `away` brokers. It is one small record,
    because a topic of ten thousand partitions must fit into one append of the store.
    """

    topic_id: bytes
    first: int
    replicas: tuple[tuple[int, ...], ...]
    #: Brokers that were not live or about to stop; no partition has only such replicas.
    away: tuple[int, ...] = ()

    def partitions(self) -> list[Partition]:
        if not self.away:
            return [
                Partition(self.topic_id, self.first + at, each, each, each[0])
                for at, each in enumerate(self.replicas)
            ]
        made = []
        for at, each in enumerate(self.replicas):
            isr = tuple(node for node in each if node not in self.away)
            made.append(Partition(self.topic_id, self.first + at, each, isr, isr[0]))
        return made


class TopicRemoved(NamedTuple):
    topic_id: bytes


class Config(NamedTuple):
    """One setting of one resource; None resets it to the default. Resource types are the protocol's
    numbers."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


class BrokerRegistration(NamedTuple):
    """A broker and its current epoch. A fenced broker neither leads nor joins an ISR (R5)."""

    node_id: int
    epoch: int
    host: str
    port: int
    rack: str | None = None
    fenced: bool = False
    #: In controlled shutdown: it leads nothing and joins no ISR, but is still running.
    stopping: bool = False
    #: The ids of its log directories.
    directories: tuple[str, ...] = ()


class BrokerRemoved(NamedTuple):
    """An unregistered broker."""

    node_id: int


class ProducerIds(NamedTuple):
    """Ids below this were assigned in blocks; the next block starts here."""

    next_id: int


class Position(NamedTuple):
    """The last record of a snapshot: the number of log records that it replaces.

    So all brokers have the same `Image.end`, whether they read the log or a snapshot.
    """

    end: int


Record: TypeAlias = (
    Cluster
    | Topic
    | Partition
    | NewPartitions
    | TopicRemoved
    | Config
    | BrokerRegistration
    | BrokerRemoved
    | ProducerIds
    | Position
)

_KINDS: dict[str, type[Any]] = {
    "cluster": Cluster,
    "topic": Topic,
    "partition": Partition,
    "partitions": NewPartitions,
    "topic-removed": TopicRemoved,
    "config": Config,
    "broker": BrokerRegistration,
    "broker-removed": BrokerRemoved,
    "producer-ids": ProducerIds,
    "position": Position,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def encode(record: Record) -> bytes:
    fields: dict[str, Any] = {"kind": _NAMES[type(record)]}
    defaults = record._field_defaults
    for name, value in zip(record._fields, record, strict=True):
        if name not in defaults or value != defaults[name]:
            fields[name] = value.hex() if isinstance(value, bytes) else value
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(data: bytes) -> Record | None:
    """The record, or None if its kind is unknown here (a newer version wrote it)."""
    fields = json.loads(data)
    kind = _KINDS.get(fields.pop("kind"))
    if kind is None:
        return None
    values = {name: fields[name] for name in kind._fields if name in fields}
    if "topic_id" in values:
        values["topic_id"] = bytes.fromhex(values["topic_id"])
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple(tuple(each) if isinstance(each, list) else each for each in value)
    record: Record = kind(**values)
    return record
