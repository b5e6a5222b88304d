"""InitProducerId (22): an id for an idempotent producer, fresh each time, from a block that no other run hands out (C5).

A transactional id keeps its producer id and gets the next epoch, which fences whoever had the one before; a transaction of that one
is aborted first (CONCURRENT_TRANSACTIONS meanwhile). Errors: INVALID_REQUEST (also for an id that is too long), POLICY_VIOLATION (a
new id, and this broker holds as many as it can), INVALID_TRANSACTION_TIMEOUT, PRODUCER_FENCED (before
version 4 INVALID_PRODUCER_EPOCH), TRANSACTIONAL_ID_AUTHORIZATION_FAILED and UNSUPPORTED_VERSION for the two-phase commit of version 6
(KIP-939), COORDINATOR_LOAD_IN_PROGRESS while no block of ids can be had, and those of a coordinator that is elsewhere or not ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Result, serves
from ottla.broker.api.shared.group_requests import CoordinatorReply, milliseconds
from ottla.broker.api.shared.txn_requests import find_shard
from ottla.model.errors import ErrorCode, Refusal
from ottla.transactions.formats import NO_EPOCH, NO_ID
from ottla.transactions.init_producer_id import Init, refused

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


@serves(22)
def init_producer_id(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    if request.transactional_id == "":
        return refused(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return _init_transactional(broker, call, request)
    reply = CoordinatorReply(broker, call, refused)

    def given(producer_id: int | None) -> None:
        if producer_id is None:
            # As on Kafka: every client asks again.
            reply.refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        else:
            reply.answer({"error_code": 0, "producer_id": producer_id, "producer_epoch": 0})

    broker.producer_ids.give(given)
    return reply.outcome


def _init_transactional(broker: Broker, call: Call, request: Any) -> Result:
    try:
        shard = find_shard(broker, request.transactional_id)
    except Refusal as refusal:
        return refused(refusal.code)
    asked = Init(
        request.transactional_id, milliseconds(request.transaction_timeout), getattr(request, "producer_id", NO_ID),
        getattr(request, "producer_epoch", NO_EPOCH), getattr(request, "enable2_pc", False),
        getattr(request, "keep_prepared_txn", False), call.version,
    )  # fmt: skip
    reply = CoordinatorReply(broker, call, refused)
    shard.init_producer_id.init(asked, reply)
    return reply.outcome
