"""OffsetDelete (47): forget committed offsets of topics that the group does not read.

Errors by partition: GROUP_SUBSCRIBED_TO_TOPIC, UNKNOWN_TOPIC_OR_PARTITION; for all: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP (members that
are no consumers), INVALID_GROUP_ID and those of a coordinator that is elsewhere or not ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.grouping import Answering, find_shard
from ottla.broker.api.table import Response, serves
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import ROWS_PER_WRITE_MAX
from ottla.ports.coordination import Decision

if TYPE_CHECKING:
    from ottla.broker.connection import Call
    from ottla.broker.core import Broker


@serves(47, rows_max=ROWS_PER_WRITE_MAX)
def offset_delete(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    try:
        shard = find_shard(broker, request.group_id, writes=True)
    except Refusal as refused:
        return _refusal(refused.code)
    reply = Answering(broker, call, _refusal)
    places = [(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions]
    codes = shard.delete_offsets(request.group_id, places, reply)
    if codes is None:
        return reply.outcome
    outcome = dict(zip(places, codes, strict=True))
    for name, number in places:
        topic = broker.image.topics.get(name)
        if topic is None or not 0 <= number < len(topic.partitions):
            outcome[name, number] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    good = [place for place, code in outcome.items() if not code]
    response = {
        "error_code": 0,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": each.partition_index, "error_code": outcome[topic.name, each.partition_index]}
                    for each in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }  # fmt: skip
    shard.host.decided(
        Decision(shard.offsets.tombstones(request.group_id, good), [(reply, response)], is_read=True)
    )
    return reply.outcome


def _refusal(code: ErrorCode) -> Response:
    return {"error_code": code, "topics": []}
