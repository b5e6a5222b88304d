"""SaslHandshake (17): which SASL mechanism a connection wants to authenticate with.

The listener is PLAINTEXT, so clients do not authenticate: ILLEGAL_SASL_STATE and no mechanisms, as Kafka answers there. Brokers
of a cluster authenticate with a mechanism of their own, `OTTLA-BROKER` (`security/broker_handshake.py`), from version 1 on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, serves
from ottla.model.errors import ErrorCode
from ottla.security.broker_handshake import MECHANISM, NONCE_BYTES, HandshakeAcceptor

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


@serves(17)
def sasl_handshake(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    connection, credentials = call.connection, broker.credentials
    if (
        request.mechanism != MECHANISM
        or credentials is None
        or call.version == 0
        or connection.broker_id is not None
        or connection.handshake is not None
    ):
        return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": ()}
    connection.handshake = HandshakeAcceptor(credentials, broker.entropy.token(NONCE_BYTES))
    return {"error_code": 0, "mechanisms": (MECHANISM,)}
