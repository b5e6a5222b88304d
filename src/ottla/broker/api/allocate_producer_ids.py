"""AllocateProducerIds (67): a block of producer ids for one broker, that nobody else gets (KIP-730). Not forwarded.

The block is in the metadata log before it is answered, so no later controller gives it again (C5). Errors: NOT_CONTROLLER,
STALE_BROKER_EPOCH, CLUSTER_AUTHORIZATION_FAILED
(the connection is not that broker's).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, Result, serves
from ottla.broker.api.shared.controller_decisions import answer_committed, asked_in_vain
from ottla.metadata import records as r
from ottla.model.errors import ErrorCode
from ottla.model.limits import PRODUCER_ID_BLOCK

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


@serves(67)
def allocate_producer_ids(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    problem = asked_in_vain(broker, call, request.broker_id, request.broker_epoch)
    if problem is not None:
        return _failed(problem)
    start = broker.proposed.next_producer_id
    answer = {"error_code": 0, "producer_id_start": start, "producer_id_len": PRODUCER_ID_BLOCK}
    records = [r.ProducerIds(start + PRODUCER_ID_BLOCK)]
    return answer_committed(broker, call, request, records, lambda: answer, _failed)


def _failed(code: ErrorCode) -> Response:
    return {"error_code": code, "producer_id_start": -1, "producer_id_len": 0}
