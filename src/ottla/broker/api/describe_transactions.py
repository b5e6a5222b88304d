"""DescribeTransactions (65): the state of transactional ids, and the partitions of their transactions (KIP-664).

Errors by id: TRANSACTIONAL_ID_NOT_FOUND, INVALID_REQUEST for an empty one, and those of a coordinator that is elsewhere or not ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, Result, serves
from ottla.broker.api.shared.group_requests import CombinedReply
from ottla.broker.api.shared.txn_requests import find_shard
from ottla.model.errors import ErrorCode, Refusal
from ottla.ports.coordination import Decision

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work


@serves(65)
def describe_transactions(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    asked = list(dict.fromkeys(request.transactional_ids))
    return broker.slices.answer(call, _described(broker, call, asked))


def _described(broker: Broker, call: Call, asked: list[str]) -> Work:
    combined = CombinedReply(broker, call, len(asked), lambda rows: {"transaction_states": rows})
    for at, transactional_id in enumerate(asked):

        def refusal(code: ErrorCode, transactional_id: str = transactional_id) -> Response:
            return _row({"error_code": code, "transactional_id": transactional_id})

        row = combined.row(at, refusal)
        try:
            shard = find_shard(broker, transactional_id, writes=False)
        except Refusal as refused:
            row.refuse(refused.code)
            yield 1
            continue
        answer = _row(shard.describe(transactional_id))
        shard.host.schedule(Decision(answers=[(row, answer)], is_read=True))
        yield 1 + len(answer["topics"])
    return combined.outcome


def _row(described: dict[str, Any]) -> dict[str, Any]:
    """What the shard tells, under the names of the schema."""
    return {
        "transaction_state": "", "producer_id": -1, "producer_epoch": -1, "topics": [], **described,
        "transaction_timeout": described.get("transaction_timeout_ms", 0),
        "transaction_start_time": described.get("transaction_start_time_ms", -1),
    }  # fmt: skip
