"""OffsetDelete (47): forget committed offsets of topics that the group does not read.

Errors by partition: GROUP_SUBSCRIBED_TO_TOPIC, UNKNOWN_TOPIC_OR_PARTITION; for all: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP (members that
are no consumers), INVALID_GROUP_ID and those of a coordinator that is elsewhere or not ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, Result, serves
from ottla.broker.api.shared.group_requests import CoordinatorReply, find_shard
from ottla.groups.formats import Encoded, encode
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import ROWS_PER_WRITE_MAX
from ottla.model.steps import STEP_COST
from ottla.ports.coordination import Decision

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work
    from ottla.groups.shard import Shard


@serves(47, rows_max=ROWS_PER_WRITE_MAX)
def offset_delete(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    try:
        shard = find_shard(broker, request.group_id, writes=True)
    except Refusal as refused:
        return _refusal(refused.code)
    return broker.slices.answer(call, _deleted(broker, call, request, shard))


def _deleted(broker: Broker, call: Call, request: Any, shard: Shard) -> Work:
    """The offsets are looked at in slices, and forgotten in one go."""
    reply = CoordinatorReply(broker, call, _refusal)
    group_id = request.group_id
    good: dict[tuple[str, int], None] = {}
    rows: list[dict[str, Any]] = []
    for asked in request.topics:
        topic = broker.image.topics.get(asked.name)
        count = 0 if topic is None else len(topic.partitions)
        code = shard.check_delete(group_id, asked.name, reply)
        if code is None:
            return reply.outcome
        outcomes: list[dict[str, Any]] = []
        for at in range(0, len(asked.partitions), STEP_COST):
            for each in asked.partitions[at : at + STEP_COST]:
                number, outcome = each.partition_index, code
                if not 0 <= number < count:
                    outcome = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif not outcome:
                    good[asked.name, number] = None
                outcomes.append({"partition_index": number, "error_code": outcome})
            yield len(outcomes) - at
        rows.append({"name": asked.name, "partitions": outcomes})
    if not request.topics and shard.check_delete(group_id, "", reply) is None:
        return reply.outcome
    places = list(good)
    encoded: list[Encoded] = []
    for at in range(0, len(places), STEP_COST):
        chunk = shard.offsets.tombstones(group_id, places[at : at + STEP_COST])
        encoded += [Encoded(*encode(record)) for record in chunk]
        if len(places) > STEP_COST:
            yield STEP_COST
    try:
        # Others may have had their turns meanwhile.
        if find_shard(broker, group_id, writes=True) is not shard:
            raise Refusal(ErrorCode.NOT_COORDINATOR)
    except Refusal as refused:
        return _refusal(refused.code)
    response = {"error_code": 0, "topics": rows}
    for name, number in places:
        shard.offsets.replay(group_id, name, number, None)
    shard.host.schedule(Decision(encoded, [(reply, response)], is_read=True, is_replayed=True))
    return reply.outcome


def _refusal(code: ErrorCode) -> Response:
    return {"error_code": code, "topics": []}
