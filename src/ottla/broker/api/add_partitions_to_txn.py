"""AddPartitionsToTxn (24): partitions become part of a transaction, which begins with the first.

Up to version 3 a producer adds them itself. From version 4 on leaders of partitions do it for it, or just ask (`verify_only`), for
many transactions at once (KIP-890); only a proven broker may, others get CLUSTER_AUTHORIZATION_FAILED. Every partition has its error: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED (before version 2
INVALID_PRODUCER_EPOCH), CONCURRENT_TRANSACTIONS, UNKNOWN_TOPIC_OR_PARTITION, TOPIC_AUTHORIZATION_FAILED (a producer and a topic of
the brokers' own) and OPERATION_NOT_ATTEMPTED for the others beside such, TRANSACTION_ABORTABLE (before version 5 INVALID_TXN_STATE), POLICY_VIOLATION (too many partitions), INVALID_REQUEST, and those of a coordinator that is elsewhere or not ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.shared.api_table import Response, Result, serves
from ottla.broker.api.shared.cluster_action import is_broker
from ottla.broker.api.shared.group_requests import CombinedReply
from ottla.broker.api.shared.txn_requests import find_shard, places_of, results_of
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import ROWS_PER_WRITE_MAX
from ottla.model.steps import STEP_COST
from ottla.transactions.add_partitions import BY_LEADERS_SINCE, Add

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work
    from ottla.ports.coordination import Reply

#: Partitions that are added in the turn in which the request was read.
_AT_ONCE_MAX: Final = 2_000


@serves(24, rows_max=ROWS_PER_WRITE_MAX)
def add_partitions_to_txn(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    version = call.version
    if version >= BY_LEADERS_SINCE:
        if not is_broker(broker, call):
            return {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "results_by_transaction": ()}
        asked = [
            Add(
                each.transactional_id, each.producer_id, each.producer_epoch, frozenset(places_of(each.topics)),
                version, each.verify_only,
            )
            for each in request.transactions
        ]  # fmt: skip
    else:
        asked = [
            Add(
                request.v3_and_below_transactional_id, request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch, frozenset(places_of(request.v3_and_below_topics)), version,
            )
        ]  # fmt: skip

    def finish(rows: list[Mapping[str, Any]]) -> Response:
        results = [results_of(row["partitions"]) for row in rows]
        if version < BY_LEADERS_SINCE:
            return {"results_by_topic_v3_and_below": results[0]}
        return {
            "error_code": 0,
            "results_by_transaction": [
                {"transactional_id": each.transactional_id, "topic_results": result}
                for each, result in zip(asked, results, strict=True)
            ],
        }

    combined = CombinedReply(broker, call, len(asked), finish)
    if sum(len(each.partitions) for each in asked) > _AT_ONCE_MAX:
        return broker.slices.answer(call, _add_later(broker, asked, combined))
    return _add_all(broker, asked, combined)


def _add_later(broker: Broker, asked: list[Add], combined: CombinedReply) -> Work:
    # Reading a long request takes as long as what follows: not both in one turn.
    yield 2 * STEP_COST
    return _add_all(broker, asked, combined)


def _add_all(broker: Broker, asked: list[Add], combined: CombinedReply) -> Result:
    for at, each in enumerate(asked):

        def refusal(code: ErrorCode, each: Add = each) -> Response:
            return {"partitions": dict.fromkeys(each.partitions, int(code))}

        _add(broker, each, combined.row(at, refusal))
    return combined.outcome


def _add(broker: Broker, request: Add, reply: Reply) -> None:
    try:
        shard = find_shard(broker, request.transactional_id)
    except Refusal as refused:
        reply.refuse(refused.code)
    else:
        shard.add_partitions.add(request, reply)
