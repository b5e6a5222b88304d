"""SaslAuthenticate (36): the messages of a SASL mechanism, after SaslHandshake. Here: a broker proves which one it is.

Errors: ILLEGAL_SASL_STATE without a handshake. SASL_AUTHENTICATION_FAILED if the proof is wrong: the answer is delayed, and the
connection is closed after it, so that guesses cost time and a connection each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import NoResponse, Response, Result, serves
from ottla.model.errors import ErrorCode
from ottla.model.limits import FAILED_AUTHENTICATION_DELAY_MS, SASL_MESSAGE_BYTES_MAX
from ottla.model.timer_wheel import Later
from ottla.ports.effects import AUTHENTICATED, PAUSE
from ottla.security.broker_handshake import NotProven

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call


@serves(36, request_bytes_max=SASL_MESSAGE_BYTES_MAX)
def sasl_authenticate(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    connection = call.connection
    handshake = connection.handshake
    if handshake is None:
        return _failed(
            ErrorCode.ILLEGAL_SASL_STATE,
            "SaslAuthenticate needs a SaslHandshake before it; this listener is PLAINTEXT",
        )
    try:
        message = handshake.answer(bytes(request.auth_bytes))
    except NotProven as error:
        return _fail_later(broker, call, str(error), now_ms)
    if handshake.is_proven:
        connection.handshake = None
        connection.broker_id = handshake.claimed_id
        broker.outbox.append((AUTHENTICATED, connection, True))
    return {"error_code": 0, "error_message": None, "auth_bytes": message, "session_lifetime": 0}


def _fail_later(broker: Broker, call: Call, why: str, now_ms: int) -> Result:
    connection = call.connection
    host = connection.peer.rpartition(":")[0]
    broker.say_once(f"a connection from {host} failed to authenticate as a broker of this cluster: {why}")
    connection.handshake = None
    broker.outbox.append((AUTHENTICATED, connection, False))
    if not connection.paused:
        connection.paused = True
        broker.outbox.append((PAUSE, connection))

    def answer() -> None:
        call.abandon = None
        broker.answer(call, _failed(ErrorCode.SASL_AUTHENTICATION_FAILED, why))
        broker.close(connection, f"authentication as a broker failed: {why}")

    delayed = Later(answer)
    call.abandon = lambda: broker.timers.cancel(delayed)
    broker.timers.add(delayed, now_ms + FAILED_AUTHENTICATION_DELAY_MS)
    return NoResponse.LATER


def _failed(code: ErrorCode, message: str) -> Response:
    return {"error_code": code, "error_message": message, "auth_bytes": b"", "session_lifetime": 0}
