"""The records of the metadata log: everything the cluster must remember except messages.

A record is a small named tuple. In the store it is one JSON object with its kind, so that a person can read a journal
or a znode. Fields are only ever added, with a default; `decode` ignores names it does not know.
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
    topic_id: bytes
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0


class TopicRemoved(NamedTuple):
    topic_id: bytes


class Config(NamedTuple):
    """One setting of one resource; None takes it back to its default. Resource types are the protocol's numbers."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


class Broker(NamedTuple):
    node_id: int
    epoch: int
    host: str
    port: int
    rack: str | None = None


class ProducerIds(NamedTuple):
    """Ids below this were handed out in blocks; the next block begins here."""

    next_id: int


Record: TypeAlias = Cluster | Topic | Partition | TopicRemoved | Config | Broker | ProducerIds

_KINDS: dict[str, type[Any]] = {
    "cluster": Cluster,
    "topic": Topic,
    "partition": Partition,
    "topic-removed": TopicRemoved,
    "config": Config,
    "broker": Broker,
    "producer-ids": ProducerIds,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def encode(record: Record) -> bytes:
    fields: dict[str, Any] = {"kind": _NAMES[type(record)]}
    for name, value in record._asdict().items():
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
    for name in ("replicas", "isr"):
        if name in values:
            values[name] = tuple(values[name])
    record: Record = kind(**values)
    return record
