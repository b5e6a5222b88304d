"""The handshake between brokers: both ends of a connection prove that they know the cluster secret and their
broker id.

It uses Kafka's SASL requests with a mechanism of its own, so that TLS and other mechanisms can replace it:

    dialing broker                                        accepting broker
    SaslHandshake "OTTLA-BROKER"                     →
                                                     ←    no error
    SaslAuthenticate: 1, own id, accepting id, nonce →
                                                     ←    1, own nonce
    SaslAuthenticate: 1, HMAC("dialing", transcript) →
                                                     ←    1, HMAC("accepting", transcript)

The transcript is the cluster id, both broker ids and both nonces. So a proof is valid on one connection,
between two given brokers, in one direction:

- A replayed proof has the wrong nonce of the other end.
- A reflected proof has the wrong label, and a broker accepts no connection from itself.
- A proof for one broker is invalid at another broker.
- The dialing broker proves first: a client without the secret receives nothing that was derived from it.

The handshake authenticates a connection, not its bytes. An attacker who can change packets can still take
over a connection; only TLS prevents that.
"""

from __future__ import annotations

import hmac
import struct
from typing import Any, Final, NamedTuple

from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from ottla.security.cluster_secret import ClusterSecret
from ottla.wire.decode import MalformedMessage, decode_response
from ottla.wire.encode import request_encoder

MECHANISM: Final = "OTTLA-BROKER"
NONCE_BYTES: Final = 32

_HANDSHAKE_VERSION: Final = 1
_AUTHENTICATE_VERSION: Final = 2

_FORMAT: Final = 1
_HELLO: Final = struct.Struct(f">Bii{NONCE_BYTES}s")
#: A nonce or a proof: both have 32 bytes.
_VALUE: Final = struct.Struct(">B32s")
_IDS: Final = struct.Struct(">Bhii")
_DIALING: Final = b"ottla broker handshake: dialing\0"
_ACCEPTING: Final = b"ottla broker handshake: accepting\0"


class NotProven(Exception):
    """The other end failed to prove that it is the expected broker; the message has the reason."""


class Credentials(NamedTuple):
    """The secret and the identity of a broker."""

    secret: ClusterSecret
    cluster_id: str
    node_id: int


class Request(NamedTuple):
    key: int
    version: int
    body: bytes


class HandshakeInitiator:
    """The end that connects. Send `first`, then pass each response to `answered`, which returns the next
    request.
    """

    def __init__(self, me: Credentials, accepting_id: int, nonce: bytes) -> None:
        self._me = me
        self._accepting_id = accepting_id
        self._nonce = nonce
        self._expected: bytes | None = None
        self._key = ApiKey.SASL_HANDSHAKE

    def first(self) -> Request:
        body = request_encoder(ApiKey.SASL_HANDSHAKE, _HANDSHAKE_VERSION)({"mechanism": MECHANISM})
        return Request(ApiKey.SASL_HANDSHAKE, _HANDSHAKE_VERSION, body)

    def answered(self, body: memoryview) -> Request | None:
        """The next request; None when both ends are authenticated. Raises NotProven."""
        if self._key == ApiKey.SASL_HANDSHAKE:
            self._read(ApiKey.SASL_HANDSHAKE, _HANDSHAKE_VERSION, body)
            self._key = ApiKey.SASL_AUTHENTICATE
            return _authenticate(_HELLO.pack(_FORMAT, self._me.node_id, self._accepting_id, self._nonce))
        value = _value(self._read(ApiKey.SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, body).auth_bytes)
        if self._expected is None:
            transcript = _transcript(
                self._me.cluster_id, self._me.node_id, self._accepting_id, self._nonce, value
            )
            self._expected = self._me.secret.mac(_ACCEPTING + transcript)
            return _authenticate(_VALUE.pack(_FORMAT, self._me.secret.mac(_DIALING + transcript)))
        if not hmac.compare_digest(value, self._expected):
            raise NotProven("it does not know the cluster secret")
        return None

    def _read(self, key: int, version: int, body: memoryview) -> Any:
        try:
            answer = decode_response(key, version, body, 0)
        except MalformedMessage as error:
            raise NotProven(f"its response cannot be read: {error}") from None
        if answer.error_code:
            code = ErrorCode(int(answer.error_code))
            why = (
                getattr(answer, "error_message", None) or "it does not support the handshake between brokers"
            )
            raise NotProven(f"{why} ({code.name})")
        return answer


class HandshakeAcceptor:
    """The end that accepts. Pass each message of the other end to `answer`, in order."""

    def __init__(self, me: Credentials, nonce: bytes) -> None:
        self._me = me
        self._nonce = nonce
        self._transcript: bytes | None = None
        #: The broker id that the other end claims; -1: none yet.
        self.claimed_id = -1
        #: Whether the other end has proven it.
        self.is_proven = False

    def answer(self, message: bytes) -> bytes:
        """The response. Raises NotProven; nothing is accepted after that."""
        if self._transcript is None:
            return self._challenge(message)
        transcript, expected = self._transcript, self._me.secret.mac(_DIALING + self._transcript)
        if not hmac.compare_digest(_value(message), expected):
            raise NotProven(
                "the proof is wrong: it was made with another cluster secret, or for another connection"
            )
        self.is_proven = True
        return _VALUE.pack(_FORMAT, self._me.secret.mac(_ACCEPTING + transcript))

    def _challenge(self, message: bytes) -> bytes:
        if len(message) != _HELLO.size or message[0] != _FORMAT:
            raise NotProven("the first message of the handshake has another format")
        _, dialing_id, accepting_id, nonce = _HELLO.unpack(message)
        me = self._me
        self.claimed_id = dialing_id
        if accepting_id != me.node_id:
            raise NotProven(f"this is broker {me.node_id}, not broker {accepting_id}")
        if dialing_id == me.node_id or dialing_id < 0:
            raise NotProven(f"broker {dialing_id} does not connect to broker {me.node_id}")
        self._transcript = _transcript(me.cluster_id, dialing_id, accepting_id, nonce, self._nonce)
        return _VALUE.pack(_FORMAT, self._nonce)


def _authenticate(message: bytes) -> Request:
    body = request_encoder(ApiKey.SASL_AUTHENTICATE, _AUTHENTICATE_VERSION)({"auth_bytes": message})
    return Request(ApiKey.SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, body)


def _value(message: bytes) -> bytes:
    if len(message) != _VALUE.size or message[0] != _FORMAT:
        raise NotProven("a message of the handshake has another format")
    value: bytes = _VALUE.unpack(message)[1]
    return value


def _transcript(
    cluster_id: str, dialing_id: int, accepting_id: int, dialing_nonce: bytes, accepting_nonce: bytes
) -> bytes:
    cluster = cluster_id.encode()
    return (
        _IDS.pack(_FORMAT, len(cluster), dialing_id, accepting_id) + cluster + dialing_nonce + accepting_nonce
    )
