"""ApiVersions (18): which APIs are served, in which versions: exactly those that registered themselves.

From version 3 on it names the one feature that clients go by: `transaction.version` 2, so that they let leaders add partitions to
transactions and have their epochs raised at each end (KIP-890).

An unknown version of this request is answered in version 0 with UNSUPPORTED_VERSION and the list, so that any client
can go on from there. Error: INVALID_REQUEST for a software name or version that is not one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ottla.broker.api.table import APIS, Response, serves
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.connection import Call
    from ottla.broker.core import Broker

#: By name: the level that it has, and always will.
FEATURES = {"transaction.version": 2}

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@serves(18)
def api_versions(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    if call.version >= 3:
        name, version = request.client_software_name, request.client_software_version
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
            return {"error_code": ErrorCode.INVALID_REQUEST}
    return {
        "error_code": 0,
        "api_keys": _served(),
        "supported_features": [
            {"name": name, "min_version": level, "max_version": level} for name, level in FEATURES.items()
        ],
        # It never changes: nothing is older than this.
        "finalized_features_epoch": 0,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, level in FEATURES.items()
        ],
    }


def unsupported() -> Response:
    return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": _served()}


def _served() -> list[dict[str, int]]:
    return [
        {"api_key": api.key, "min_version": api.oldest, "max_version": api.newest}
        for api in sorted(APIS.values(), key=lambda api: api.key)
    ]
