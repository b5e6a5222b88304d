"""BrokerHeartbeat (63): a broker says what it wants of the controller. From broker to controller; not forwarded.

That a broker lives is told by its registration in the cluster store, not by this; a broker asks when it wants to stop, or to be
fenced. With want_shut_down others lead what it led and it leaves the ISRs that have another member; once that is committed
should_shut_down is answered. It may be asked again and does what is left. A broker on its own has nothing to hand over and may
stop at once. is_fenced is what the committed image says of it, and is_caught_up whether it has seen all records that the
controller has. Errors: NOT_CONTROLLER, STALE_BROKER_EPOCH, CLUSTER_AUTHORIZATION_FAILED
(the connection is not that broker's).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, Result, serves
from ottla.broker.api.shared.controller_decisions import answer_committed, asked_in_vain
from ottla.controller.broker_changes import broker_gone, broker_stopping
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


@serves(63)
def broker_heartbeat(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    node_id = request.broker_id
    problem = asked_in_vain(broker, call, node_id, request.broker_epoch)
    if problem is not None:
        return _failed(problem)

    def answer() -> Response:
        known = broker.image.brokers.get(node_id)
        is_fenced = known is None or known.fenced
        return {
            "error_code": 0,
            "is_caught_up": request.current_metadata_offset >= broker.image.end,
            "is_fenced": is_fenced,
            "should_shut_down": request.want_shut_down or (known is not None and known.stopping),
        }

    if not broker.clustered or not (request.want_shut_down or request.want_fence):
        return answer()
    image = broker.proposed
    if request.want_fence or image.brokers[node_id].fenced:
        records = broker_gone(image, broker.config, node_id)
    else:
        records = broker_stopping(image, broker.config, node_id)
    return answer_committed(broker, call, request, records, answer, _failed)


def _failed(code: ErrorCode) -> Response:
    return {"error_code": code, "is_caught_up": False, "is_fenced": True, "should_shut_down": False}
