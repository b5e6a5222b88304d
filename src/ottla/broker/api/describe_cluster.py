"""DescribeCluster (60): the brokers, the controller and the cluster's id.

Fenced brokers are not served by, so they are named only if version 2 asks for them. Without a controller its id is -1.

Error: UNSUPPORTED_ENDPOINT_TYPE for anything but broker endpoints (1), since controllers have none of their own here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.metadata import CLUSTER_OPERATIONS
from ottla.broker.api.shared.api_table import Response, serves
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


@serves(60)
def describe_cluster(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    if request.endpoint_type != _BROKERS:
        known = request.endpoint_type == _CONTROLLERS
        return {
            "error_code": ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if known
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            "error_message": "only broker endpoints can be described here",
            "cluster_id": broker.image.cluster_id,
            "brokers": (),
        }
    image = broker.image
    are_fenced_asked = call.version >= 2 and request.include_fenced_brokers
    asked = request.include_cluster_authorized_operations
    return {
        "error_code": 0,
        "endpoint_type": _BROKERS,
        "cluster_id": image.cluster_id,
        "controller_id": broker.lifecycle.controller_id,
        "brokers": [
            {
                "broker_id": node.node_id,
                "host": node.host,
                "port": node.port,
                "rack": node.rack,
                "is_fenced": node.fenced,
            }
            for node in image.brokers.values()
            if are_fenced_asked or not node.fenced
        ],
        "cluster_authorized_operations": CLUSTER_OPERATIONS if asked else -(2**31),
    }
