"""AddOffsetsToTxn (25): the offsets of a group become part of a transaction; TxnOffsetCommit then writes them.

The topic of the offsets is created if it is not there: a client looks for the group's coordinator only after this. Errors: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED (before version 2 INVALID_PRODUCER_EPOCH), CONCURRENT_TRANSACTIONS,
INVALID_GROUP_ID, INVALID_REQUEST, and those of a coordinator that is elsewhere or not ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Result, serves
from ottla.broker.api.shared.group_requests import CoordinatorReply
from ottla.broker.api.shared.txn_requests import find_shard
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.strings import is_name
from ottla.transactions.add_partitions import Add

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.transactions.shard import Shard


@serves(25)
def add_offsets_to_txn(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    if not request.group_id or not is_name(request.group_id):
        return {"error_code": ErrorCode.INVALID_GROUP_ID}
    try:
        shard = find_shard(broker, request.transactional_id)
    except Refusal as refused:
        return {"error_code": refused.code}
    reply = CoordinatorReply(broker, call, lambda code: {"error_code": code})
    if broker.groups.topic in broker.image.topics:
        _add(call, request, shard, reply)
        return reply.outcome

    def created(_code: ErrorCode) -> None:
        try:
            _add(call, request, find_shard(broker, request.transactional_id), reply)
        except Refusal as refused:
            reply.refuse(refused.code)

    broker.groups.create_topic(created)
    return reply.outcome


def _add(call: Call, request: Any, shard: Shard, reply: CoordinatorReply) -> None:
    asked = Add(
        request.transactional_id, request.producer_id, request.producer_epoch, frozenset(), call.version
    )
    shard.add_partitions.add_offsets(asked, request.group_id, reply)
