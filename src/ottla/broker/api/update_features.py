"""UpdateFeatures (57): levels of cluster-wide features; each feature has one level here, and only that one is accepted.

An update to the level that a feature has succeeds and changes nothing, with validate_only or without: `kafka-features upgrade
--release-version 4.0` succeeds. Any other level is refused. Up to version 1 each feature has its own result; from version 2 on the
whole request has one. Errors: INVALID_UPDATE_VERSION for a level or a feature that is not supported, INVALID_REQUEST for a feature
without a name or one that is named twice.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, serves
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.features import FEATURES
from ottla.model.limits import FEATURES_PER_UPDATE_MAX

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


@serves(57, rows_max=FEATURES_PER_UPDATE_MAX, by_controller=True, changes_metadata=False)
def update_features(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    times = Counter(update.feature for update in request.feature_updates)
    levels = {update.feature: update.max_version_level for update in request.feature_updates}
    results = [_result(name, count, levels[name]) for name, count in times.items()]
    failed = [row for row in results if row["error_code"]]
    if call.version < 2 or not failed:
        return {"error_code": 0, "results": results}
    # Kafka's own words: its tool prints them once for each feature that was asked for.
    message = f"The update failed for all features since the following feature had an error: {failed[0]['error_message']}"
    return {"error_code": failed[0]["error_code"], "error_message": message}


def _result(name: str, times: int, level: int) -> dict[str, Any]:
    row = {"feature": name, "error_code": 0, "error_message": None}
    try:
        _check(name, times, level)
    except Refusal as refusal:
        row.update(error_code=refusal.code, error_message=refusal.message)
    return row


def _check(name: str, times: int, level: int) -> None:
    if not name:
        raise Refusal(ErrorCode.INVALID_REQUEST, "a feature has an empty name")
    if times > 1:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"feature '{name}' is named {times} times")
    known = FEATURES.get(name)
    if known is None:
        raise Refusal(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {level} for feature '{name}': it is not supported. "
            "`kafka-features describe` lists the features that are",
        )
    if level != known.level:
        raise Refusal(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Invalid update version {level} for feature '{name}': only level {known.level} is supported ({known.meaning})",
        )
