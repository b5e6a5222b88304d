"""ConsumerGroupDescribe (69): the state of consumer groups (KIP-848), their members, what these have and shall have.

Version 1 tells of each member which protocol it speaks. Errors by group: GROUP_ID_NOT_FOUND (also for a classic group),
INVALID_GROUP_ID and those of a coordinator that is elsewhere or not ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.describe_groups import GROUP_OPERATIONS, NOT_ASKED
from ottla.broker.api.shared.api_table import Result, serves
from ottla.broker.api.shared.group_requests import CombinedReply, check_still_here, find_shard
from ottla.model.errors import ErrorCode, Refusal
from ottla.ports.coordination import Decision

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work

#: Finding a group or describing a member takes longer than a row of other answers.
_ROW_COST: Final = 3


@serves(69)
def consumer_group_describe(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    operations = {
        "authorized_operations": GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    }
    return broker.slices.answer(
        call, _described(broker, call, list(dict.fromkeys(request.group_ids)), operations)
    )


def _described(broker: Broker, call: Call, groups: list[str], operations: dict[str, int]) -> Work:
    # A group that is named more than once is described once.
    combined = CombinedReply(broker, call, len(groups), lambda rows: {"groups": rows})
    for at, group_id in enumerate(groups):

        def refusal(code: ErrorCode, group_id: str = group_id, message: str | None = None) -> dict[str, Any]:
            return operations | {
                "error_code": code, "error_message": message, "group_id": group_id, "group_state": "", "group_epoch": 0,
                "assignment_epoch": 0, "assignor_name": "", "members": [],
            }  # fmt: skip

        row = combined.row(at, refusal)
        try:
            shard = find_shard(broker, group_id)
        except Refusal as refused:
            row.refuse(refused.code)
            yield _ROW_COST
            continue
        group = shard.consumer_group(group_id)
        if group is not None:
            found = (yield from shard.consumer.describe(group)) | operations
        else:
            what = "is not a consumer group" if group_id in shard.groups else "not found"
            found = refusal(ErrorCode.GROUP_ID_NOT_FOUND, message=f"Group {group_id} {what}.")
        try:
            check_still_here(broker, shard, group_id)
        except Refusal as refused:
            row.refuse(refused.code)
            continue
        shard.host.schedule(Decision(answers=[(row, found)], is_read=True))
        yield _ROW_COST
    return combined.outcome
