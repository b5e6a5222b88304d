"""DeleteGroups (42): groups without members go, with their offsets. Members whose session is over are removed before.

Errors by group: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, INVALID_GROUP_ID and those of a coordinator that is elsewhere or not ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, Result, serves
from ottla.broker.api.shared.group_requests import CombinedReply, find_shard
from ottla.model.errors import ErrorCode, Refusal

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work


@serves(42)
def delete_groups(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    return broker.slices.answer(call, _deleted(broker, call, list(dict.fromkeys(request.groups_names))))


def _deleted(broker: Broker, call: Call, names: list[str]) -> Work:
    combined = CombinedReply(broker, call, len(names), lambda rows: {"results": rows})
    for at, group_id in enumerate(names):

        def refusal(code: ErrorCode, group_id: str = group_id) -> Response:
            return {"group_id": group_id, "error_code": code}

        row = combined.row(at, refusal)
        try:
            shard = find_shard(broker, group_id, writes=True, may_be_empty=True)
        except Refusal as refused:
            row.refuse(refused.code)
        else:
            if shard.has_many_offsets(group_id):
                shard.expire_sessions(group_id, broker.now_ms)
                yield from shard.delete_in_steps(group_id, row)
            else:
                shard.delete(group_id, row, broker.now_ms)
        yield 1
    return combined.outcome
