"""The handshake messages of a dialing broker one by one, for tests that send them differently than a broker."""

from typing import Any

from ottla.model.api_key import ApiKey
from ottla.security.broker_handshake import Credentials, HandshakeInitiator, Request
from ottla.wire.decode import decode_request
from ottla.wire.encode import response_encoder


class Prover:
    def __init__(self, me: Credentials, accepting_id: int, nonce: bytes) -> None:
        self._dialing = HandshakeInitiator(me, accepting_id, nonce)
        body = response_encoder(ApiKey.SASL_HANDSHAKE, 1)({"error_code": 0, "mechanisms": []})
        self.hello = _message(self._dialing.answered(memoryview(body)))

    def answered(self, auth_bytes: bytes, code: int = 0, text: str | None = None) -> Request | None:
        """The next message after this response; None when the handshake is done."""
        fields: dict[str, Any] = {
            "error_code": code, "error_message": text, "auth_bytes": auth_bytes, "session_lifetime": 0,
        }  # fmt: skip
        return self._dialing.answered(memoryview(response_encoder(ApiKey.SASL_AUTHENTICATE, 2)(fields)))

    def proof(self, challenge: bytes) -> bytes:
        return _message(self.answered(challenge))


def _message(request: Request | None) -> bytes:
    assert request is not None and request.key == ApiKey.SASL_AUTHENTICATE
    return bytes(decode_request(request.key, request.version, memoryview(request.body), 0).auth_bytes)
