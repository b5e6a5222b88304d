"""Decoding of Fetch responses in a client: records are views of the received bytes, not copies.

From version 12 on the common case, without tagged fields, is read here in one pass:

    throttle ms int32 | error int16 | session int32 | topics: id 16 bytes (12: name) | partitions:
    index int32, error int16, high watermark int64, last stable offset int64, log start int64 |
    aborted: producer int64, first offset int64 | preferred replica int32 | records | tags

Responses with tagged fields (moved leaders, diverging logs) and older versions use the general reader.
`read_fetch_response` returns a `FetchAnswer` or raises MalformedMessage, nothing else.
"""

from __future__ import annotations

from struct import Struct, error
from typing import Any, Final, NamedTuple

from ottla.wire.decode import decode_response
from ottla.wire.guard import MalformedMessage, read_uvarint

#: The last version with topic names; later ones have topic ids.
FETCH_BY_NAME: Final = 12
_FLEXIBLE: Final = 12

_START: Final = Struct(">ihi")
_PARTITION: Final = Struct(">ihqqq")
_ABORTED: Final = Struct(">qqx")
_INT32: Final = Struct(">i")
_ID_BYTES: Final = 16


class FetchedPartition(NamedTuple):
    """The response for one partition. `aborted` has (first offset, producer id), `current_leader` (id,
    epoch).
    """

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]
    preferred_read_replica: int
    records: memoryview | bytes | None
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None


class FetchedTopic(NamedTuple):
    """By name up to version 12, then by id."""

    name: str
    topic_id: bytes
    partitions: list[FetchedPartition]


class FetchAnswer(NamedTuple):
    throttle_ms: int
    error_code: int
    session_id: int
    topics: list[FetchedTopic]
    #: Addresses of the brokers in `current_leader`: (host, port, rack) by id.
    nodes: dict[int, tuple[str, int, str | None]]


class _Tagged(Exception):
    """A tagged field is set."""


def read_fetch_response(api_key: int, version: int, body: memoryview, offset: int) -> FetchAnswer:
    """The response whose body starts at `offset`."""
    if version >= _FLEXIBLE:
        try:
            return _read(version, body, offset)
        except _Tagged:
            pass
        except (error, IndexError, UnicodeError) as failure:
            raise MalformedMessage(f"a fetch response that does not end: {failure}") from None
    return _from_entity(decode_response(api_key, version, body, offset))


def _read(version: int, body: memoryview, at: int) -> FetchAnswer:
    throttle_ms, error_code, session_id = _START.unpack_from(body, at)
    topics: list[FetchedTopic] = []
    count, at = read_uvarint(body, at + _START.size)
    for _ in range(count - 1):
        name, topic_id = "", b""
        if version > FETCH_BY_NAME:
            topic_id = bytes(body[at : at + _ID_BYTES])
            at += _ID_BYTES
        else:
            length, at = read_uvarint(body, at)
            name = str(body[at : at + length - 1], "utf-8")
            at += length - 1
        partitions: list[FetchedPartition] = []
        partition_count, at = read_uvarint(body, at)
        for _ in range(partition_count - 1):
            partition, at = _read_partition(body, at)
            partitions.append(partition)
        at = _untagged(body, at)
        topics.append(FetchedTopic(name, topic_id, partitions))
    _untagged(body, at)
    return FetchAnswer(throttle_ms, error_code, session_id, topics, {})


def _read_partition(body: memoryview, at: int) -> tuple[FetchedPartition, int]:
    index, code, high_watermark, last_stable, log_start = _PARTITION.unpack_from(body, at)
    aborted_count, at = read_uvarint(body, at + _PARTITION.size)
    aborted: list[tuple[int, int]] = []
    for _ in range(aborted_count - 1):
        producer_id, first_offset = _ABORTED.unpack_from(body, at)
        at = _untagged(body, at + _ABORTED.size - 1)
        aborted.append((first_offset, producer_id))
    preferred = _INT32.unpack_from(body, at)[0]
    length, at = read_uvarint(body, at + _INT32.size)
    records = body[at : at + length - 1] if length else None
    # A wrong length fails here: the byte after the records is read.
    at = _untagged(body, at + max(length - 1, 0))
    return (
        FetchedPartition(index, code, high_watermark, last_stable, log_start, aborted, preferred, records),
        at,
    )


def _untagged(body: memoryview, at: int) -> int:
    if body[at]:
        raise _Tagged
    return at + 1


def _from_entity(response: Any) -> FetchAnswer:
    topics = []
    for topic in response.responses:
        topic_id = getattr(topic, "topic_id", None)
        partitions = [_partition_of(row) for row in topic.partitions]
        topics.append(
            FetchedTopic(str(getattr(topic, "topic", "")), topic_id.bytes if topic_id else b"", partitions)
        )
    return FetchAnswer(
        # kio returns a time as timedelta.
        int(response.throttle_time.total_seconds() * 1000),
        int(getattr(response, "error_code", 0)),
        int(getattr(response, "session_id", 0)),
        topics,
        {
            int(node.node_id): (str(node.host), int(node.port), node.rack)
            for node in getattr(response, "node_endpoints", ())
        },
    )


def _partition_of(row: Any) -> FetchedPartition:
    diverging, leader = getattr(row, "diverging_epoch", None), getattr(row, "current_leader", None)
    return FetchedPartition(
        int(row.partition_index),
        int(row.error_code),
        int(row.high_watermark),
        int(row.last_stable_offset),
        int(getattr(row, "log_start_offset", -1)),
        [(int(one.first_offset), int(one.producer_id)) for one in row.aborted_transactions or ()],
        int(getattr(row, "preferred_read_replica", -1)),
        row.records,
        (int(diverging.epoch), int(diverging.end_offset))
        if diverging and diverging.end_offset >= 0
        else None,
        (int(leader.leader_id), int(leader.leader_epoch)) if leader and leader.leader_id >= 0 else None,
    )
