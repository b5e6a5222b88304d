"""Requests that brokers send to each other: only a proven broker may send them (Kafka's ClusterAction on the cluster).

A connection is a broker's after the handshake (`security/broker_handshake.py`), which `sasl_authenticate.py` runs. This is the one
place that decides; an authorizer will be asked here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


def is_broker(broker: Broker, call: Call, node_id: int | None = None) -> bool:
    """Whether a broker sent this call, and this one if a broker id is given. A refused call is logged once for its host."""
    proven = call.connection.broker_id
    if proven is not None and (node_id is None or node_id == proven):
        return True
    host = call.connection.peer.rpartition(":")[0]
    broker.say_once(
        f"refused a request between brokers (API {call.entry.key}) from {host}: the connection has not proven that it is "
        "the broker it claims to be. If a broker of this cluster runs there, restart it with the same version as this one"
    )
    return False
