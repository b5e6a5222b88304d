"""Group offset requests: committed offsets and lag, and changing or deleting committed offsets.

The functions implement the methods of the same names in `client/admin/core.py`. Several groups are requested
concurrently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ottla.client.admin.groups import ask_group
from ottla.client.admin.requests import by_topic, raise_all, refused_at
from ottla.client.connection import Body
from ottla.client.coordinators import MOVED
from ottla.client.errors import KafkaError, refused
from ottla.client.metadata import OffsetAndMetadata, TopicPartition
from ottla.client.offsets import LATEST, list_offsets
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster


#: The last versions that name topics instead of their ids.
_COMMIT_VERSION, _FETCH_VERSION = 9, 9
#: How many groups are requested at the same time.
_AT_ONCE: Final = 16

Committed = dict[TopicPartition, OffsetAndMetadata]


async def group_offsets(
    cluster: Cluster,
    group: str,
    *,
    stable: bool = False,
    partitions: Iterable[TopicPartition] | None = None,
) -> Committed:
    """The committed offsets of a group. `stable` waits for open transactions that change them (KIP-447)."""
    topics = (
        None
        if partitions is None
        else [
            {"name": name, "partition_indexes": list(rows)}
            for name, rows in by_topic(dict.fromkeys(partitions)).items()
        ]
    )
    body: Body = {
        "group_id": group, "topics": topics, "require_stable": stable,
        "groups": [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}],
    }  # fmt: skip

    def row_of(answer: Any) -> Any:
        return answer.groups[0] if hasattr(answer, "groups") else answer

    def rows_of(answer: Any) -> list[Any]:
        row = row_of(answer)
        return [row, *(each for topic in row.topics for each in topic.partitions)]

    answer, broker = await ask_group(
        cluster,
        group,
        ApiKey.OFFSET_FETCH,
        body,
        rows_of,
        _FETCH_VERSION,
        MOVED | {ErrorCode.UNSTABLE_OFFSET_COMMIT},
    )
    code = next((int(each.error_code) for each in rows_of(answer) if each.error_code), 0)
    if code:
        raise refused(code, f"offsets of group {group!r}", broker=broker)
    row = row_of(answer)
    return {
        TopicPartition(str(topic.name), int(each.partition_index)): OffsetAndMetadata(
            int(each.committed_offset), each.metadata or "", int(getattr(each, "committed_leader_epoch", -1))
        )
        for topic in row.topics
        for each in topic.partitions
        if each.committed_offset >= 0
    }


async def list_group_offsets(
    cluster: Cluster,
    groups: Iterable[str],
    *,
    stable: bool = False,
    partitions: Iterable[TopicPartition] | None = None,
) -> dict[str, Committed]:
    names = list(groups)
    wanted = None if partitions is None else list(partitions)
    turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(group: str) -> Committed:
        async with turns:
            return await group_offsets(cluster, group, stable=stable, partitions=wanted)

    answers = await asyncio.gather(*map(ask, names), return_exceptions=True)
    found: dict[str, Committed] = {}
    errors: dict[str, KafkaError] = {}
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, KafkaError):
            errors[name] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found[name] = answer
    raise_all(errors, len(names), "listing offsets")
    return found


async def group_lag(cluster: Cluster, groups: Iterable[str]) -> dict[str, dict[TopicPartition, int]]:
    committed = await list_group_offsets(cluster, groups)
    known = await cluster.refresh({place.topic for places in committed.values() for place in places})
    # Offsets of a deleted partition remain for a while, but it has no end offset.
    places = {
        place for places in committed.values() for place in places if known.partition(*place) is not None
    }
    ends = await list_offsets(cluster, dict.fromkeys(places, LATEST)) if places else {}
    return {
        group: {
            place: max(ends[place].offset - each.offset, 0)
            for place, each in offsets.items()
            if place in ends
        }
        for group, offsets in committed.items()
    }


async def set_group_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
) -> None:
    """Commit offsets for a group without members."""
    topics: dict[str, list[Body]] = {}
    for place, given in offsets.items():
        offset = OffsetAndMetadata(given) if isinstance(given, int) else given
        topics.setdefault(place.topic, []).append(
            {
                "partition_index": place.partition, "committed_offset": offset.offset,
                "committed_leader_epoch": offset.leader_epoch, "committed_metadata": offset.metadata,
            }
        )  # fmt: skip
    body: Body = {
        "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
        "retention_time": -1, "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
    }  # fmt: skip
    answer, broker = await ask_group(
        cluster, group, ApiKey.OFFSET_COMMIT, body,
        lambda answer: [each for topic in answer.topics for each in topic.partitions], _COMMIT_VERSION,
    )  # fmt: skip
    errors: dict[str, KafkaError] = {}
    for topic in answer.topics:
        for each in topic.partitions:
            if each.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                raise refused(
                    ErrorCode.NON_EMPTY_GROUP, f"setting offsets of group {group!r}",
                    message="the group has active members; stop them first", broker=broker,
                )  # fmt: skip
            if each.error_code:
                place = TopicPartition(str(topic.name), int(each.partition_index))
                errors[str(place)] = refused_at(int(each.error_code), "setting the offset of", place, broker)
    raise_all(errors, len(offsets), f"setting offsets of group {group!r}")


async def delete_group_offsets(cluster: Cluster, group: str, partitions: Iterable[TopicPartition]) -> None:
    wanted = dict.fromkeys(partitions)
    body: Body = {
        "group_id": group,
        "topics": [
            {"name": name, "partitions": [{"partition_index": number} for number in rows]}
            for name, rows in by_topic(wanted).items()
        ],
    }
    answer, broker = await ask_group(cluster, group, ApiKey.OFFSET_DELETE, body, lambda answer: [answer])
    if answer.error_code:
        raise refused(int(answer.error_code), f"deleting offsets of group {group!r}", broker=broker)
    errors: dict[str, KafkaError] = {}
    for topic in answer.topics:
        for row in topic.partitions:
            if row.error_code:
                place = TopicPartition(str(topic.name), int(row.partition_index))
                errors[str(place)] = refused_at(
                    int(row.error_code), f"deleting the offset of group {group!r} for", place, broker
                )
    raise_all(errors, len(wanted), f"deleting offsets of group {group!r}")
