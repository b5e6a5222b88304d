"""DescribeGroups (15): the state of classic groups and their members.

A group that is not there is Dead; from version 6 on it also has GROUP_ID_NOT_FOUND. Errors by group: INVALID_GROUP_ID and those of a
coordinator that is elsewhere or not ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.shared.api_table import Response, Result, serves
from ottla.broker.api.shared.group_requests import CombinedReply, find_shard
from ottla.model.errors import ErrorCode, Refusal
from ottla.ports.coordination import Decision

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work

NOT_ASKED: Final = -(2**31)
#: Finding a group takes longer than a row of other answers.
_ROW_COST: Final = 2
#: READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS, as bits of the protocol's operation numbers.
GROUP_OPERATIONS: Final = sum(1 << operation for operation in (3, 6, 8, 10, 11))


@serves(15)
def describe_groups(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    asks = call.version >= 3 and request.include_authorized_operations
    operations = {"authorized_operations": GROUP_OPERATIONS if asks else NOT_ASKED}
    return broker.slices.answer(
        call, _described(broker, call, list(dict.fromkeys(request.groups)), operations)
    )


def _described(broker: Broker, call: Call, groups: list[str], operations: dict[str, int]) -> Work:
    # A group that is named more than once is described once.
    combined = CombinedReply(broker, call, len(groups), lambda rows: {"groups": rows})
    for at, group_id in enumerate(groups):

        def refusal(code: ErrorCode, group_id: str = group_id) -> Response:
            return _nothing(group_id, "", code) | operations

        row = combined.row(at, refusal)
        try:
            shard = find_shard(broker, group_id, may_be_empty=True)
        except Refusal as refused:
            row.refuse(refused.code)
            yield _ROW_COST
            continue
        found = shard.describe(group_id)
        if found is None:
            found = _nothing(group_id, "Dead", ErrorCode.NONE)
            if call.version >= 6:
                found["error_code"] = ErrorCode.GROUP_ID_NOT_FOUND
                is_other = group_id in shard.groups
                found["error_message"] = (
                    f"Group {group_id} {'is not a classic group' if is_other else 'not found'}."
                )
        shard.host.schedule(Decision(answers=[(row, found | operations)], is_read=True))
        yield _ROW_COST + len(found["members"])
    return combined.outcome


def _nothing(group_id: str, state: str, code: ErrorCode) -> dict[str, Any]:
    return {
        "error_code": code, "group_id": group_id, "group_state": state, "protocol_type": "", "protocol_data": "",
        "members": [],
    }  # fmt: skip
