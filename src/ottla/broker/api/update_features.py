"""UpdateFeatures (57): levels of cluster-wide features, of which this cluster has none.

ApiVersions names no feature, so there is none to raise or lower: every update is refused, with validate_only too, and a
request without any succeeds. Up to version 1 each feature has its own result; from version 2 on the whole request has
one. Errors: INVALID_UPDATE_VERSION for a feature, INVALID_REQUEST for one that has no name or is named twice.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ottla.broker.api.table import Response, serves
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.connection import Call
    from ottla.broker.core import Broker


@serves(57, by_controller=True)
def update_features(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    times = Counter(update.feature for update in request.feature_updates)
    results = [_refusal(name, count) for name, count in times.items()]
    if call.version < 2 or not results:
        return {"error_code": 0, "results": results}
    return {"error_code": results[0]["error_code"], "error_message": results[0]["error_message"]}


def _refusal(name: str, times: int) -> dict[str, Any]:
    if not name or times > 1:
        code = ErrorCode.INVALID_REQUEST
        message = f"feature '{name}' is named {times} times" if name else "a feature has an empty name"
    else:
        code = ErrorCode.INVALID_UPDATE_VERSION
        message = f"feature '{name}' is not supported: this cluster has no features with levels"
    return {"feature": name, "error_code": code, "error_message": message}
