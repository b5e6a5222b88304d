"""LeaveGroup (13): members leave; from version 3 on many at once, and static ones by their instance alone, for administrators. Of a
consumer group (KIP-848) members of either protocol.

The answer waits until what follows from it is written and counts: afterwards the members are gone whoever coordinates.
Errors, by member from version 3 on: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID; for all: INVALID_GROUP_ID and those of a coordinator
that is elsewhere or not ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, Result, serves
from ottla.broker.api.shared.group_requests import CoordinatorReply, find_shard
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import ROWS_PER_WRITE_MAX
from ottla.ports.coordination import Decision

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


@serves(13, rows_max=ROWS_PER_WRITE_MAX)
def leave_group(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    try:
        shard = find_shard(broker, request.group_id, writes=True)
    except Refusal as refused:
        return _refusal(refused.code)
    reply = CoordinatorReply(broker, call, _refusal)
    if call.version < 3:
        [code] = shard.classic.leave(request.group_id, [(request.member_id, None)], now_ms)
        response: dict[str, Any] = {"error_code": code}
    else:
        leaving = [(member.member_id, member.group_instance_id) for member in request.members]
        codes = shard.classic.leave(request.group_id, leaving, now_ms)
        response = {
            "error_code": 0,
            "members": [
                {"member_id": member_id, "group_instance_id": instance_id, "error_code": code}
                for (member_id, instance_id), code in zip(leaving, codes, strict=True)
            ],
        }
    shard.host.schedule(Decision(answers=[(reply, response)], is_read=True))
    return reply.outcome


def _refusal(code: ErrorCode) -> Response:
    return {"error_code": code, "members": []}
