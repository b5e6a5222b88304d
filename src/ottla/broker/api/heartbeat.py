"""Heartbeat (12): a member of the classic protocol is there, in a group of either kind. The answer tells whether it must join again.

Errors: INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS, NOT_COORDINATOR. While the
groups are loaded nobody is missed yet, so that a heartbeat then is a success, as on Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, serves
from ottla.broker.api.shared.group_requests import find_shard
from ottla.model.errors import ErrorCode, Refusal

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


@serves(12)
def heartbeat(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    try:
        shard = find_shard(broker, request.group_id)
    except Refusal as refused:
        is_loading = refused.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return {"error_code": 0 if is_loading else refused.code}
    code = shard.heartbeat(
        request.group_id,
        request.generation_id,
        request.member_id,
        request.group_instance_id if call.version >= 3 else None,
        now_ms,
    )
    return {"error_code": code}
