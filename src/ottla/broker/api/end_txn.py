"""EndTxn (26): commit or abort a transaction. The answer leaves when that is decided for good; the markers follow.

From version 5 on it raises the producer's epoch, and says what it is now (KIP-890). Errors: INVALID_TXN_STATE,
INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED (before version 2 INVALID_PRODUCER_EPOCH; also for a commit after the coordinator has
aborted), CONCURRENT_TRANSACTIONS, INVALID_REQUEST, and
those of a coordinator that is elsewhere or not ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Result, serves
from ottla.broker.api.shared.group_requests import CoordinatorReply
from ottla.broker.api.shared.txn_requests import find_shard
from ottla.model.errors import Refusal
from ottla.transactions.end_txn import End
from ottla.transactions.init_producer_id import refused

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


@serves(26)
def end_txn(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    try:
        shard = find_shard(broker, request.transactional_id)
    except Refusal as refusal:
        return refused(refusal.code)
    reply = CoordinatorReply(broker, call, refused)
    asked = End(
        request.transactional_id, request.producer_id, request.producer_epoch, request.committed, call.version
    )
    shard.end_txn.end(asked, reply)
    return reply.outcome
