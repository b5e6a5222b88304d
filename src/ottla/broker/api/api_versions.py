"""ApiVersions (18): which APIs are served, in which versions: exactly those that registered themselves.

From version 3 on it lists the cluster-wide features (`model/features.py`). Clients use `transaction.version` 2: leaders add
partitions to transactions, and each end raises the producer's epoch (KIP-890). Tools read the others. Features at level 0 are listed
from version 4 on only, and not as finalized, as Kafka does: clients that ask version 3 fail on a supported minimum of 0.

An unknown version of this request is answered in version 0 with UNSUPPORTED_VERSION and the list, so that any client
can go on from there. Error: INVALID_REQUEST for a software name or version that is not one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import APIS, Response, serves
from ottla.model.errors import ErrorCode
from ottla.model.features import FEATURES

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call

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
            {"name": name, "min_version": feature.level, "max_version": feature.level}
            for name, feature in FEATURES.items()
            if feature.level or call.version >= 4
        ],
        # It never changes: nothing is older than this.
        "finalized_features_epoch": 0,
        "finalized_features": [
            {"name": name, "max_version_level": feature.level, "min_version_level": feature.level}
            for name, feature in FEATURES.items()
            if feature.level
        ],
    }


def unsupported() -> Response:
    return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": _served()}


def _served() -> list[dict[str, int]]:
    return [
        {"api_key": api.key, "min_version": api.oldest, "max_version": api.newest}
        for api in sorted(APIS.values(), key=lambda api: api.key)
    ]
