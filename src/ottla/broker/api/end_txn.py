"""EndTxn (26): commit or abort a transaction. The answer leaves when that is decided for good; the markers follow.

From version 5 on it raises the producer's epoch, and says what it is now (KIP-890). Errors: INVALID_TXN_STATE,
INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED (before version 2 INVALID_PRODUCER_EPOCH; also for a commit after the coordinator has
aborted), CONCURRENT_TRANSACTIONS, INVALID_REQUEST, and
those of a coordinator that is elsewhere or not ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.grouping import Answering
from ottla.broker.api.table import Response, serves
from ottla.broker.api.transacting import find_shard
from ottla.model.errors import Refusal
from ottla.transactions.ending import End
from ottla.transactions.initializing import refused

if TYPE_CHECKING:
    from ottla.broker.connection import Call
    from ottla.broker.core import Broker


@serves(26)
def end_txn(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    try:
        shard = find_shard(broker, request.transactional_id)
    except Refusal as refusal:
        return refused(refusal.code)
    reply = Answering(broker, call, refused)
    asked = End(
        request.transactional_id, request.producer_id, request.producer_epoch, request.committed, call.version
    )
    shard.ending.end(asked, reply)
    return reply.outcome
