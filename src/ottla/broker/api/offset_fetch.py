"""OffsetFetch (9): how far groups have read, with the text they left; by partition, or all there is.

The answer tells only what counts, and everything that was committed before it was asked for. A partition without a committed offset
has -1 and no error. Version 8 asks about many groups, version 10 names topics by id. Errors by partition: UNSTABLE_OFFSET_COMMIT
(require_stable, while a transaction is open there), UNKNOWN_TOPIC_ID; by group (in version 1 by partition):
INVALID_GROUP_ID and those of a coordinator that is elsewhere or not ready.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, Result, serves
from ottla.broker.api.shared.group_requests import CombinedReply, check_still_here, find_shard
from ottla.groups.formats import NO_ID
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.steps import STEP_COST
from ottla.model.strings import cut
from ottla.ports.coordination import Decision

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work
    from ottla.groups.formats import Committed
    from ottla.groups.shard import Shard
    from ottla.metadata.image import TopicImage


@serves(9)
def offset_fetch(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    return broker.slices.answer(call, _all_fetched(broker, call, request, now_ms))


def _all_fetched(broker: Broker, call: Call, request: Any, now_ms: int) -> Work:
    version = call.version
    # Of a group that is named more than once the last counts, as in a map.
    groups = (
        list({group.group_id: group for group in request.groups}.values()) if version >= 8 else (request,)
    )
    require_stable = version >= 7 and request.require_stable

    def finish(rows: list[Any]) -> Response:
        return {"groups": rows} if version >= 8 else rows[0]

    combined = CombinedReply(broker, call, len(groups), finish)
    for at, group in enumerate(groups):

        def refusal(code: ErrorCode, group: Any = group) -> Response:
            return _refusal(version, group, code)

        row = combined.row(at, refusal)
        yield 1
        try:
            shard = find_shard(broker, group.group_id, may_be_empty=True)
            shard.check_fetch(
                group.group_id,
                getattr(group, "member_id", None),
                getattr(group, "member_epoch", -1),
                now_ms,
            )
        except Refusal as refused:
            row.refuse(refused.code)
            continue
        answer = yield from _fetched(broker, version, shard, group, require_stable)
        try:
            check_still_here(broker, shard, group.group_id, may_be_empty=True)
        except Refusal as refused:
            row.refuse(refused.code)
            continue
        shard.host.schedule(Decision(answers=[(row, answer)], is_read=True))
    return combined.outcome


def _fetched(
    broker: Broker, version: int, shard: Shard, group: Any, require_stable: bool
) -> Generator[int, None, dict[str, Any]]:
    group_id, known = group.group_id, shard.offsets.of(group.group_id)
    topics: list[dict[str, Any]] = []
    by_id, by_name = broker.image.topics_by_id, broker.image.topics
    if group.topics is None:
        asked: dict[str, list[int]] = {}
        for at, ((name, number), value) in enumerate(list(known.items())):
            if _counts(value, by_name.get(name)) is not None:
                asked.setdefault(name, []).append(number)
            if at % STEP_COST == STEP_COST - 1:
                yield STEP_COST // 4
        wanted = [(name, by_name.get(name), numbers) for name, numbers in asked.items()]
        if version >= 10:
            # A topic without an id cannot be told of.
            wanted = [each for each in wanted if each[1] is not None]
    elif version >= 10:
        wanted = []
        for each in group.topics:
            topic = by_id.get(each.topic_id.bytes if each.topic_id is not None else b"")
            if topic is None:
                rows = [
                    _partition(number, None, ErrorCode.UNKNOWN_TOPIC_ID) for number in each.partition_indexes
                ]
                topics.append({"topic_id": each.topic_id and each.topic_id.bytes, "partitions": rows})
            else:
                wanted.append((topic.name, topic, each.partition_indexes))
    else:
        wanted = [(each.name, by_name.get(each.name), each.partition_indexes) for each in group.topics]
    for name, topic, numbers in wanted:
        rows = [
            _partition(number, None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            if require_stable and shard.offsets.is_unstable(group_id, name, number)
            else _partition(number, _counts(known.get((name, number)), by_name.get(name)))
            for number in numbers
        ]
        topics.append({"name": name, "topic_id": topic and topic.topic_id, "partitions": rows})
        yield len(rows)
    return {"group_id": group_id, "error_code": 0, "topics": topics}


def _counts(value: Committed | None, topic: TopicImage | None) -> Committed | None:
    """What was committed, unless of a topic that had this name before: that says nothing about the present one."""
    if value is None or topic is None or value.topic_id in (topic.topic_id, NO_ID):
        return value
    return None


def _partition(number: int, value: Committed | None, code: ErrorCode = ErrorCode.NONE) -> Mapping[str, Any]:
    return {
        "partition_index": number,
        "committed_offset": -1 if value is None else value.offset,
        "committed_leader_epoch": -1 if value is None else value.leader_epoch,
        # Another broker may have stored a text that is too long for older versions.
        "metadata": "" if value is None else cut(value.metadata),
        "error_code": code,
    }


def _refusal(version: int, group: Any, code: ErrorCode) -> dict[str, Any]:
    topics = group.topics if version < 2 else ()
    return {
        "group_id": group.group_id,
        "error_code": code,
        "topics": [
            {
                "name": topic.name,
                "partitions": [_partition(number, None, code) for number in topic.partition_indexes],
            }
            for topic in topics
        ],
    }
