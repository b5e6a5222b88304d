"""UpdateFeatures (57): levels of cluster-wide features, which are what they are here.

The features that ApiVersions names have one level each: an update to it succeeds, any other is refused, with validate_only too, and
a request without any succeeds. Up to version 1 each feature has its own result; from version 2 on the whole request has
one. Errors: INVALID_UPDATE_VERSION for a feature, INVALID_REQUEST for one that has no name or is named twice.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ottla.broker.api.api_versions import FEATURES
from ottla.broker.api.table import Response, serves
from ottla.model.errors import ErrorCode
from ottla.model.limits import ROWS_PER_WRITE_MAX

if TYPE_CHECKING:
    from ottla.broker.connection import Call
    from ottla.broker.core import Broker


@serves(57, rows_max=ROWS_PER_WRITE_MAX, by_controller=True)
def update_features(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    times = Counter(update.feature for update in request.feature_updates)
    levels = {update.feature: update.max_version_level for update in request.feature_updates}
    results = [_result(name, count, levels[name]) for name, count in times.items()]
    failed = [row for row in results if row["error_code"]]
    if call.version < 2 or not failed:
        return {"error_code": 0, "results": results}
    return {"error_code": failed[0]["error_code"], "error_message": failed[0]["error_message"]}


def _result(name: str, times: int, level: int) -> dict[str, Any]:
    if times == 1 and FEATURES.get(name) == level:
        return {"feature": name, "error_code": 0, "error_message": None}
    if not name or times > 1:
        code = ErrorCode.INVALID_REQUEST
        message = f"feature '{name}' is named {times} times" if name else "a feature has an empty name"
    else:
        code = ErrorCode.INVALID_UPDATE_VERSION
        known = FEATURES.get(name)
        message = f"feature '{name}' " + (
            "is not supported" if known is None else f"has level {known} and no other"
        )
    return {"feature": name, "error_code": code, "error_message": message}
