"""SyncGroup (14): a member asks for its assignment; the leader brings all. The answer waits for the leader's to be written. In a
consumer group (KIP-848) the broker has assigned.

Errors: INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL,
REBALANCE_IN_PROGRESS, UNKNOWN_SERVER_ERROR (an assignment too large to be written), and those of a coordinator that is elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, Result, serves
from ottla.broker.api.shared.group_requests import CoordinatorReply, find_shard
from ottla.groups.classic import Sync
from ottla.model.errors import ErrorCode, Refusal

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


@serves(14)
def sync_group(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    try:
        shard = find_shard(broker, request.group_id, writes=True)
    except Refusal as refused:
        return _refusal(refused.code)
    reply = CoordinatorReply(broker, call, _refusal)
    sync = Sync(
        group_id=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        protocol_type=getattr(request, "protocol_type", None),
        protocol_name=getattr(request, "protocol_name", None),
        assignments={each.member_id: each.assignment for each in request.assignments},
    )
    shard.classic.sync(sync, reply, now_ms)
    return reply.outcome


def _refusal(code: ErrorCode) -> Response:
    return {"error_code": code, "assignment": b""}
