"""Envelope (58): a client's request to another broker, handed on to the controller as it came, header and all (KIP-590).

The answer holds the enclosed request's answer, header and all. Only APIs that go by the controller can be in an envelope, and no
envelope in another. Errors: NOT_CONTROLLER (the controller has moved: whoever forwards asks the new one), INVALID_REQUEST
(not such an API, or no request), UNSUPPORTED_VERSION, CLUSTER_AUTHORIZATION_FAILED (the sender is not a proven broker).

The answer has one tagged field more than Kafka's, which a reader that does not know it passes over:

    response_data  compact bytes | error_code int16 | 1 tag: number 1000, 8 bytes: int64
                                                      how many records of the metadata log the controller's image had

The forwarding broker holds the answer until its own image has as many, so that the client's next request to it sees the change.
"""

from __future__ import annotations

import struct
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.broker.api.shared.api_table import APIS, NoResponse, Result, serves
from ottla.broker.api.shared.cluster_action import is_broker
from ottla.broker.requests.headers import FLEXIBLE_RESPONSE_HEADER
from ottla.model.errors import ErrorCode
from ottla.wire.encode import uvarint
from ottla.wire.guard import MalformedMessage, read_uvarint

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call

KEY: Final = 58
_API: Final = struct.Struct(">hh")
_ERROR: Final = struct.Struct(">h")
_END: Final = struct.Struct(">q")
_END_TAG: Final = 1000
_TAGS_MAX: Final = 100


class Answer(NamedTuple):
    """What an envelope brought back: the enclosed answer, or an error code; and the controller's place in the log."""

    data: bytes | None
    error_code: int
    end: int


@serves(KEY, request_bytes_max=None)
def envelope(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    if not is_broker(broker, call):
        return {"error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    if not broker.controller_driver.is_active:
        return {"error_code": ErrorCode.NOT_CONTROLLER}
    frame = request.request_data
    if len(frame) < _API.size:
        return {"error_code": ErrorCode.INVALID_REQUEST}
    key, version = _API.unpack_from(frame)
    api = APIS.get(key)
    if api is None or not api.by_controller:
        return {"error_code": ErrorCode.INVALID_REQUEST}
    if not api.oldest <= version <= api.newest:
        return {"error_code": ErrorCode.UNSUPPORTED_VERSION}
    answered = False

    def done(data: bytes | None, _error: str | None) -> None:
        nonlocal answered
        answered = True
        call.abandon = None
        code = 0 if data is not None else ErrorCode.INVALID_REQUEST
        broker.reply(call, [_answer(call, data, code, broker.image.end)])

    inner = broker.controller_channel.serve(
        f"{_text(request.client_host_address)} through {call.connection.peer}", frame, done
    )
    if answered:
        return NoResponse.DONE
    call.abandon = lambda: broker.disconnected(inner)
    return NoResponse.LATER


def _text(address: bytes) -> str:
    try:
        return str(ip_address(address))
    except ValueError:
        return "a client"


def _answer(call: Call, data: bytes | None, code: int, end: int) -> bytes:
    body = call.entry.encode({"response_data": data, "error_code": code})
    # Its own tagged section is always empty: the last byte.
    marked = body[:-1] + b"\x01" + uvarint(_END_TAG) + uvarint(_END.size) + _END.pack(end)
    return FLEXIBLE_RESPONSE_HEADER.pack(len(marked) + 5, call.correlation_id, 0) + marked


def read_answer(body: memoryview) -> Answer:
    """The body of an Envelope's answer."""
    try:
        size, at = read_uvarint(body, 0)
        data = bytes(body[at : at + size - 1]) if size else None
        if data is not None:
            if len(data) != size - 1:
                raise MalformedMessage("an envelope's answer is cut off")
            at += size - 1
        code = _ERROR.unpack_from(body, at)[0]
        count, at = read_uvarint(body, at + _ERROR.size)
        end = 0
        for _ in range(min(count, _TAGS_MAX)):
            tag, at = read_uvarint(body, at)
            size, at = read_uvarint(body, at)
            if tag == _END_TAG and size == _END.size:
                end = _END.unpack_from(body, at)[0]
            at += size
    except (struct.error, IndexError) as error:
        raise MalformedMessage(f"an envelope's answer is cut off: {error}") from None
    return Answer(data, code, end)
