"""PushTelemetry (72): metrics of a client (KIP-714), which nobody subscribed to: they are taken and dropped.

They are never decompressed or parsed. Errors: INVALID_REQUEST without a client's id, UNKNOWN_SUBSCRIPTION_ID,
UNSUPPORTED_COMPRESSION_TYPE, TELEMETRY_TOO_LARGE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.get_telemetry_subscriptions import COMPRESSIONS, SUBSCRIPTION_ID, TELEMETRY_BYTES_MAX
from ottla.broker.api.shared.api_table import Response, serves
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call

_NOT_COMPRESSED: Final = 0


@serves(72)
def push_telemetry(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    return {"error_code": _verdict(request)}


def _verdict(request: Any) -> int:
    if request.client_instance_id is None:
        return ErrorCode.INVALID_REQUEST
    if request.subscription_id != SUBSCRIPTION_ID:
        return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    if request.compression_type not in (_NOT_COMPRESSED, *COMPRESSIONS):
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    if len(request.metrics) > TELEMETRY_BYTES_MAX:
        return ErrorCode.TELEMETRY_TOO_LARGE
    return 0
