"""JoinGroup (11): a member comes to a group, or comes again for the next generation. The answer waits for all others.

From version 4 on a new member is first told its id (MEMBER_ID_REQUIRED). In a consumer group (KIP-848), which may have members of
this protocol, the answer comes at once, and nobody leads. Errors: INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT, INVALID_REQUEST (a
string or the metadata is too long to be stored), UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, INCONSISTENT_GROUP_PROTOCOL,
GROUP_MAX_SIZE_REACHED (also if the group's record would be too large with this member, or the broker holds as much as it can),
REBALANCE_IN_PROGRESS (the member has asked again, or the group has become a consumer group), UNKNOWN_SERVER_ERROR (too large to be
written), and those of a coordinator that is elsewhere or not ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, Result, serves
from ottla.broker.api.shared.group_requests import CoordinatorReply, find_shard, milliseconds
from ottla.groups.classic import Join
from ottla.model.errors import ErrorCode, Refusal

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


@serves(11, by_client=True)
def join_group(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    def refusal(code: ErrorCode) -> Response:
        return {
            "error_code": code, "member_id": request.member_id, "generation_id": -1, "leader": "", "members": [],
            "protocol_name": None if call.version >= 7 else "",
        }  # fmt: skip

    session_timeout_ms = milliseconds(request.session_timeout)
    rebalance_timeout_ms = (
        milliseconds(request.rebalance_timeout) if call.version >= 1 else session_timeout_ms
    )
    try:
        shard = find_shard(broker, request.group_id, writes=True)
    except Refusal as refused:
        return refusal(refused.code)
    instance_id = getattr(request, "group_instance_id", None)
    reply = CoordinatorReply(broker, call, refusal)
    shard.classic.join(
        Join(
            group_id=request.group_id,
            member_id=request.member_id,
            instance_id=instance_id,
            client_id=call.client_id,
            client_host=f"/{call.connection.peer.rpartition(':')[0]}",
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms if rebalance_timeout_ms >= 0 else session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
            needs_known_id=call.version >= 4,
            can_skip_assignment=call.version >= 9,
        ),
        reply,
        now_ms,
    )
    return reply.outcome
