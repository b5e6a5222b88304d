"""ListConfigResources (74): the names of everything that may have settings, by type.

Types: 2 topic, 4 broker, 8 broker logger, 16 client metrics, 32 group; none in the request means all. Version 0 knows
client metrics alone. Groups are those that have settings of their own; of loggers and metrics there are none here.
Error: UNSUPPORTED_VERSION for a type that is none of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.shared.api_table import Response, serves
from ottla.metadata.image import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call

_CLIENT_METRICS: Final = 16
_TYPES: Final = (TOPIC_RESOURCE, BROKER_RESOURCE, 8, _CLIENT_METRICS, GROUP_RESOURCE)


@serves(74)
def list_config_resources(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    asked = set(request.resource_types or _TYPES) if call.version >= 1 else {_CLIENT_METRICS}
    if not asked.issubset(_TYPES):
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "config_resources": ()}
    names: list[tuple[int, str]] = []
    if TOPIC_RESOURCE in asked:
        names += [(TOPIC_RESOURCE, name) for name in broker.image.topics]
    if BROKER_RESOURCE in asked:
        names += [(BROKER_RESOURCE, str(node_id)) for node_id in broker.image.brokers]
    if GROUP_RESOURCE in asked:
        names += [resource for resource in broker.image.configs if resource[0] == GROUP_RESOURCE]
    return {
        "error_code": 0,
        "config_resources": [{"resource_type": kind, "resource_name": name} for kind, name in names],
    }
