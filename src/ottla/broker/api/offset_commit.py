"""OffsetCommit (8): a group notes how far it has read. The answer waits until that is written and counts.

A member commits in its generation; one of a consumer group may be behind its epoch, for partitions that it has had since (KIP-1251).
Who has none (generation -1) may commit while the group has no members. Errors by partition: UNKNOWN_TOPIC_OR_PARTITION,
UNKNOWN_TOPIC_ID (version 10 names topics by id), OFFSET_METADATA_TOO_LARGE; for all: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,
ILLEGAL_GENERATION, STALE_MEMBER_EPOCH, GROUP_ID_NOT_FOUND (version 9), REBALANCE_IN_PROGRESS, INVALID_GROUP_ID and those of a
coordinator that is elsewhere or not ready. While the groups are loaded it waits for them, for some seconds: librdkafka asks twice more
within a third of a second, and then its application has the error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.grouping import Answering, find_shard, milliseconds
from ottla.broker.api.table import SILENT, WAIT, Response, serves
from ottla.groups.shard import Commit
from ottla.model.errors import ErrorCode, Refusal

if TYPE_CHECKING:
    from ottla.broker.connection import Call
    from ottla.broker.core import Broker


@serves(8)
def offset_commit(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    def refusal(code: ErrorCode) -> Response:
        return _refusal(call, request, code)

    version = call.version
    group_id = request.group_id
    try:
        shard = find_shard(broker, group_id, writes=True, may_be_empty=True)
        good, rows = _sorted_out(broker, call, request)
        code = shard.check_commit(
            group_id, request.generation_id_or_member_epoch, request.member_id,
            request.group_instance_id if version >= 7 else None, now_ms, version=version, commits=good,
        )  # fmt: skip
    except Refusal as refused:
        code = refused.code
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:

            def again() -> None:
                response = offset_commit(broker, call, request, broker.now_ms)
                if response is not WAIT and response is not SILENT:
                    broker.answer(call, response)

            if broker.coordinating.wait_for_load(group_id, again):
                return WAIT
    if code:
        return refusal(code)
    response = {"topics": rows}
    if not good:
        return response
    retention_ms = -1
    if 2 <= version <= 4:
        retention_ms = milliseconds(request.retention_time)
    reply = Answering(broker, call, refusal)
    shard.commit(
        group_id, good, broker.wall_ms + retention_ms if retention_ms >= 0 else -1, (reply, response)
    )
    return reply.outcome


def _sorted_out(broker: Broker, call: Call, request: Any) -> tuple[list[Commit], list[dict[str, Any]]]:
    """What can be committed, and the rows of the answer."""
    topics, by_id, version = broker.image.topics, broker.image.topics_by_id, call.version
    metadata_max = broker.config.offset_metadata_max_bytes
    good: list[Commit] = []
    rows: list[dict[str, Any]] = []
    for asked in request.topics:
        if version >= 10:
            asked_id = asked.topic_id.bytes if asked.topic_id is not None else bytes(16)
            topic, unknown = by_id.get(asked_id), ErrorCode.UNKNOWN_TOPIC_ID
            row: dict[str, Any] = {"topic_id": asked_id}
        else:
            topic, unknown = topics.get(asked.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            row = {"name": asked.name}
        rows.append(row)
        partitions = row["partitions"] = []
        for each in asked.partitions:
            number, text = each.partition_index, each.committed_metadata or ""
            code = ErrorCode.NONE
            if topic is None:
                code = unknown
            elif not 0 <= number < len(topic.partitions):
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif len(text) > metadata_max:
                code = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                epoch = each.committed_leader_epoch if version >= 6 else -1
                good.append(Commit(topic.name, number, each.committed_offset, epoch, text, topic.topic_id))
            partitions.append({"partition_index": number, "error_code": code})
    return good, rows


def _refusal(call: Call, request: Any, code: ErrorCode) -> Response:
    return {
        "topics": [
            {
                **({"topic_id": topic.topic_id and topic.topic_id.bytes} if call.version >= 10 else {"name": topic.name}),
                "partitions": [
                    {"partition_index": each.partition_index, "error_code": code} for each in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }  # fmt: skip
