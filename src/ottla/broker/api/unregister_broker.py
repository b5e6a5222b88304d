"""UnregisterBroker (64): forget a broker that will not come back. Its replicas stay where they are until they are reassigned.

Errors: BROKER_ID_NOT_REGISTERED; INVALID_REQUEST for one that is running: it would be back at once; NOT_CONTROLLER,
REQUEST_TIMED_OUT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, Result, serves
from ottla.broker.api.shared.controller_decisions import answer_committed
from ottla.broker.api.shared.proposals import TIMED_OUT, refused
from ottla.controller.broker_changes import broker_removed
from ottla.model.errors import ErrorCode, Refusal

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


@serves(64, by_controller=True)
def unregister_broker(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    if not broker.controller_driver.may_decide:
        return _failed(ErrorCode.NOT_CONTROLLER)
    running = {*broker.lifecycle.live, broker.config.node_id}
    try:
        records = broker_removed(broker.proposed, broker.config, request.broker_id, running)
    except Refusal as refusal:
        return refused(refusal)
    return answer_committed(
        broker, call, request, records, lambda: {"error_code": 0, "error_message": None}, _failed
    )


def _failed(code: ErrorCode) -> Response:
    is_timed_out = code is ErrorCode.REQUEST_TIMED_OUT
    return {
        "error_code": code,
        "error_message": TIMED_OUT if is_timed_out else "the metadata log could not be written here",
    }
