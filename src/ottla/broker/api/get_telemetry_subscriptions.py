"""GetTelemetrySubscriptions (71): which of its own metrics a client shall push, and how (KIP-714).

None: the list is empty, so clients push nothing and ask again after the interval. A client that has no id yet gets one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.shared.api_table import Response, serves

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call

#: There is one subscription, the empty one. Not 0, so that a client which never asked does not have it by chance.
SUBSCRIPTION_ID: Final = 1
TELEMETRY_BYTES_MAX: Final = 1024 * 1024
#: zstd, lz4, gzip, snappy, the one that saves most first.
COMPRESSIONS: Final = (4, 3, 1, 2)
_PUSH_INTERVAL_MS: Final = 5 * 60 * 1000


@serves(71)
def get_telemetry_subscriptions(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    given = request.client_instance_id
    return {
        "error_code": 0,
        "client_instance_id": given.bytes if given is not None else broker.entropy.id_bytes(),
        "subscription_id": SUBSCRIPTION_ID,
        "accepted_compression_types": COMPRESSIONS,
        "push_interval": _PUSH_INTERVAL_MS,
        "telemetry_max_bytes": TELEMETRY_BYTES_MAX,
        "delta_temporality": True,
        "requested_metrics": (),
    }
