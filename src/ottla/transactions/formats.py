"""The records of `__transaction_state`, in Kafka's own formats, readable for Kafka's tools and brokers.

    key      int16 0 | transactional id: int16 length, UTF-8
    value    int16 version | producer id int64 | epoch int16 | timeout int32 | state int8 |
             partitions: nullable [topic string, numbers [int32]] | last update int64 | start int64
             Version 1, the one that is written, is flexible and ends with tagged fields:
             0  previous producer id int64
             1  next producer id int64
             2  transaction version of the client int16
             3  next producer epoch int16: two-phase commit (KIP-939), not supported; read and ignored
             28532  last epoch int16: ottla's own, see below

A record without a value is a tombstone. `decode` returns None for unknown kinds and newer versions.

The last epoch is the epoch that a producer had when it requested its next one (KIP-360). Kafka keeps it in
memory only: after a change of the coordinator, it fences a retry of that request. Rule R15 wants the retry
answered, so the record that the request leads to has the last epoch. Kafka ignores the unknown tag.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from ottla.records.layout import Array, Field, Malformed, Struct, fields, read, write

#: (topic, number)
Place: TypeAlias = tuple[str, int]

NO_ID: Final = -1
NO_EPOCH: Final = -1
#: The largest epoch. Clients never get it: it is reserved to fence a producer with the epoch below.
EPOCH_MAX: Final = 2**15 - 1


class State(Enum):
    """The number in the record, and the name in DescribeTransactions."""

    EMPTY = (0, "Empty")
    ONGOING = (1, "Ongoing")
    PREPARE_COMMIT = (2, "PrepareCommit")
    PREPARE_ABORT = (3, "PrepareAbort")
    COMPLETE_COMMIT = (4, "CompleteCommit")
    COMPLETE_ABORT = (5, "CompleteAbort")
    DEAD = (6, "Dead")
    #: In-memory state of Kafka between the decision to fence a producer and the abort: one step here.
    PREPARE_EPOCH_FENCE = (7, "PrepareEpochFence")

    @property
    def number(self) -> int:
        return self.value[0]

    @property
    def title(self) -> str:
        return self.value[1]


class Entry(NamedTuple):
    """The value of a record: the complete state of a transactional id."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State
    updated_ms: int
    #: The start of the transaction; -1 before the first one.
    started_ms: int = -1
    partitions: frozenset[Place] = frozenset()
    #: The producer id before this record.
    previous_producer_id: int = NO_ID
    #: The producer id after this transaction, if the epochs of the current one are used up.
    next_producer_id: int = NO_ID
    #: 2 if the end of the transaction raises the epoch (KIP-890), else 0.
    client_version: int = 0
    last_epoch: int = NO_EPOCH


class Record(NamedTuple):
    transactional_id: str
    entry: Entry | None


_KIND: Final = 0
_WRITTEN: Final = 1
_NEWEST: Final = 1
_KEY: Final = Struct(fields(("transactional_id", "string")))
_PARTITIONS: Final = Struct(fields(("topic", "string"), ("partition_ids", Array("int32"))), flexible=1)
_VALUE: Final = Struct(
    fields(
        ("producer_id", "int64"),
        Field("previous_producer_id", "int64", since=1, tag=0, default=NO_ID),
        Field("next_producer_id", "int64", since=1, tag=1, default=NO_ID),
        ("producer_epoch", "int16"),
        ("timeout_ms", "int32"),
        ("state", "int8"),
        ("partitions", Array(_PARTITIONS, nullable=True)),
        ("updated_ms", "int64"),
        ("started_ms", "int64"),
        Field("client_version", "int16", since=1, tag=2, default=0),
        Field("next_producer_epoch", "int16", since=1, tag=3, default=NO_EPOCH),
        Field("last_epoch", "int16", since=1, tag=28532, default=NO_EPOCH),
    ),
    flexible=1,
)
_STATES: Final = {state.number: state for state in State}
_INT16: Final = struct.Struct(">h")


def encode(record: Record) -> tuple[bytes, bytes | None]:
    """Key and value in the log. Raises Malformed if the record cannot be written, as with too long
    strings."""
    transactional_id, entry = record
    key = _INT16.pack(_KIND) + write(_KEY, 0, {"transactional_id": transactional_id})
    if entry is None:
        return key, None
    row: dict[str, Any] = {**entry._asdict(), "state": entry.state.number}
    row["partitions"] = None if entry.state is State.EMPTY else _by_topic(entry.partitions)
    return key, _INT16.pack(_WRITTEN) + write(_VALUE, _WRITTEN, row)


def decode(key: bytes | None, value: bytes | None) -> Record | None:
    """The record; None if its kind or version is unknown. Raises Malformed if it is damaged."""
    if key is None or len(key) < 2:
        raise Malformed("a record without a key")
    if _INT16.unpack_from(key)[0] != _KIND:
        return None
    transactional_id: str = read(_KEY, 0, key, 2)["transactional_id"]
    if value is None:
        return Record(transactional_id, None)
    if len(value) < 2:
        raise Malformed("a value without its version")
    version = _INT16.unpack_from(value)[0]
    if not 0 <= version <= _NEWEST:
        return None
    row = read(_VALUE, version, value, 2)
    state = _STATES.get(row["state"])
    if state is None or state in (State.DEAD, State.PREPARE_EPOCH_FENCE):
        raise Malformed(f"state number {row['state']} is never written")
    del row["next_producer_epoch"]
    row["state"] = state
    row["partitions"] = frozenset(
        (topic["topic"], number) for topic in row["partitions"] or () for number in topic["partition_ids"]
    )
    return Record(transactional_id, Entry(**row))


def _by_topic(partitions: frozenset[Place]) -> list[dict[str, Any]]:
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    return [{"topic": topic, "partition_ids": numbers} for topic, numbers in by_topic.items()]
