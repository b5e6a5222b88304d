"""Offset lookups: ListOffsets to each partition's leader, retried after a leader has moved.

The protocol's special timestamps stand for the ends of a log. Used by consumer and admin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from ottla.client.cluster import Cluster, backoff_ms
from ottla.client.errors import KafkaError, refused
from ottla.client.metadata import Node, TopicPartition
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
#: The first offset on the leader's own disk, and the last one in tiered storage (KIP-405, KIP-1005).
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
METADATA_TIMEOUT_MS = 30_000


class OffsetAndTime(NamedTuple):
    """An offset and the timestamp of its record; -1 where there is no such record."""

    offset: int
    timestamp_ms: int


async def list_offsets(
    cluster: Cluster,
    times: Mapping[TopicPartition, int],
    *,
    attempts_max: int = 8,
    isolation_level: int = READ_UNCOMMITTED,
) -> dict[TopicPartition, OffsetAndTime]:
    """Return for each partition the offset of a time in ms, or of `EARLIEST`, `LATEST` or `MAX_TIMESTAMP`.

    With `isolation_level` 1 (read_committed) the latest offset is the last stable offset.
    """
    found: dict[TopicPartition, OffsetAndTime] = {}
    left = dict(times)
    await cluster.check_partitions(left, METADATA_TIMEOUT_MS)
    for attempt in range(1, attempts_max + 1):
        errors: list[KafkaError] = []
        by_leader: dict[Node, list[TopicPartition]] = {}
        for tp in left:
            leader = cluster.metadata.leader(*tp)
            if leader is None:
                errors.append(
                    refused(
                        ErrorCode.LEADER_NOT_AVAILABLE,
                        f"offsets of {tp}",
                        topic=tp.topic,
                        partition=tp.partition,
                    )
                )
            else:
                by_leader.setdefault(leader, []).append(tp)
        answers = await asyncio.gather(
            *(
                _ask(cluster, node, {tp: left[tp] for tp in tps}, isolation_level)
                for node, tps in by_leader.items()
            ),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, KafkaError):
                errors.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                good, bad = answer
                found.update(good)
                errors += bad
        left = {tp: time for tp, time in left.items() if tp not in found}
        if not left:
            break
        final = next((error for error in errors if not error.retriable), None)
        if final is not None or attempt == attempts_max:
            raise final or errors[0]
        await asyncio.sleep(backoff_ms(cluster.settings, attempt) / 1000)
        await cluster.refresh({tp.topic for tp in left})
    return found


async def _ask(
    cluster: Cluster, node: Node, times: Mapping[TopicPartition, int], isolation_level: int
) -> tuple[dict[TopicPartition, OffsetAndTime], list[KafkaError]]:
    connection = await cluster.connection(node)
    topics: dict[str, list[dict[str, Any]]] = {}
    for tp, timestamp_ms in times.items():
        known = cluster.metadata.partition(*tp)
        row = {
            "partition_index": tp.partition,
            "current_leader_epoch": -1 if known is None else known.leader_epoch,
            "timestamp": timestamp_ms,
        }
        topics.setdefault(tp.topic, []).append(row)
    body = {
        "replica_id": -1,
        "isolation_level": isolation_level,
        "topics": [{"name": topic, "partitions": rows} for topic, rows in topics.items()],
        "timeout": cluster.settings.request_timeout_ms,
    }
    response = await connection.request(ApiKey.LIST_OFFSETS, body)
    good: dict[TopicPartition, OffsetAndTime] = {}
    bad: list[KafkaError] = []
    for topic in response.topics:
        for part in topic.partitions:
            tp = TopicPartition(str(topic.name), int(part.partition_index))
            if part.error_code:
                bad.append(
                    refused(
                        int(part.error_code),
                        f"offsets of {tp}",
                        broker=connection.address,
                        topic=tp.topic,
                        partition=tp.partition,
                    )
                )
            else:
                good[tp] = OffsetAndTime(int(part.offset), int(part.timestamp))
    return good, bad
