"""FindCoordinator (10): which broker coordinates a group or a transactional id.

Neither is served yet, and the answer says so: COORDINATOR_NOT_AVAILABLE with a message, for each key asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.table import Response, serves
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.connection import Call
    from ottla.broker.core import Broker

_NAMES = {0: "consumer groups", 1: "transactions", 2: "share groups"}


@serves(10)
def find_coordinator(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    nobody = {
        "error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE,
        "error_message": f"{_NAMES.get(request.key_type, 'coordinators of this type')} are not served yet",
        "node_id": -1, "host": "", "port": -1,
    }  # fmt: skip
    if call.version < 4:
        return nobody
    return {"coordinators": [nobody | {"key": key} for key in request.coordinator_keys]}
