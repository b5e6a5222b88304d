"""InitProducerId (22): an id for an idempotent producer, fresh each time, from a block that no other run hands out (C5).

Transactional ids get COORDINATOR_NOT_AVAILABLE: transactions are not served yet. An empty one is INVALID_REQUEST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.table import WAIT, Response, serves
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.connection import Call
    from ottla.broker.core import Broker


@serves(22)
def init_producer_id(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    if request.transactional_id == "":
        return _refused(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    producer_id = broker.producer_ids.take()
    if producer_id is not None:
        return _given(producer_id)

    def ready(error: str | None) -> None:
        fresh = broker.producer_ids.take() if error is None else None
        if fresh is None and error is None:
            # A block can be used up by those who waited before us.
            broker.producer_ids.more(ready)
        else:
            broker.answer(call, _refused(ErrorCode.KAFKA_STORAGE_ERROR) if fresh is None else _given(fresh))

    broker.producer_ids.more(ready)
    return WAIT


def _given(producer_id: int) -> Response:
    return {"error_code": 0, "producer_id": producer_id, "producer_epoch": 0}


def _refused(code: ErrorCode) -> Response:
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
