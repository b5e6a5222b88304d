"""SCRAM (RFC 5802, RFC 7677): both sides prove that they know the password without sending it.

    client-first   n,,n=USER,r=NONCE
    server-first   r=NONCE+,s=SALT,i=ITERATIONS        the nonce must start with the client's
    client-final   c=biws,r=NONCE+,p=PROOF             biws is "n,,": no channel binding
    server-final   v=SIGNATURE  or  e=ERROR            the signature proves the password

The server chooses the number of hash iterations. Too few would make it easy to guess the password from a
recorded exchange; too many would keep the client busy. Both are refused. As in Kafka, SASLprep is not applied
to names and passwords.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import Final

from ottla.client.sasl.exchange import ExchangeFailed

#: RFC 7677 requires at least 4,096; brokers refuse credentials of more than 16,384. A million take about 0.5
#: s.
ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 1_000_000

_GS2_HEADER: Final = "n,,"
#: Server-first: no extension before the nonce, optional ones after it.
_SERVER_FIRST: Final = re.compile(
    r"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9+/=]+),i=([1-9][0-9]{0,9})(?:,.*)?"
)
_SERVER_FINAL: Final = re.compile(r"v=([A-Za-z0-9+/=]+)(?:,.*)?")


class Scram:
    """One exchange. `nonce` is printable, without a comma, and new each time."""

    def __init__(self, digest: str, username: str, password: str, nonce: str) -> None:
        self._digest = digest
        self._password = password.encode()
        self._nonce = nonce
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._client_first_bare = f"n={name},r={nonce}"
        self._signature: bytes | None = None
        self._over = False

    def first(self) -> bytes:
        return (_GS2_HEADER + self._client_first_bare).encode()

    def answer(self, challenge: bytes) -> bytes | None:
        if self._over:
            raise ExchangeFailed("the server sent a message after its last one")
        try:
            text = challenge.decode()
        except UnicodeDecodeError:
            raise ExchangeFailed("the server's message is not text") from None
        if self._signature is None:
            return self._final(text)
        self._over = True
        self._verify(text)
        return None

    def _final(self, server_first: str) -> bytes:
        if server_first.startswith("m="):
            raise ExchangeFailed("the server requires an extension that this client does not support")
        found = _SERVER_FIRST.fullmatch(server_first)
        if found is None:
            raise ExchangeFailed("the server's first message is not SCRAM")
        nonce, salt, iterations = found[1], _decode(found[2]), int(found[3])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ExchangeFailed(
                "the server's nonce does not continue the client's: the answer is not to this exchange"
            )
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise ExchangeFailed(
                f"the server requires {iterations} iterations; "
                f"{ITERATIONS_MIN} to {ITERATIONS_MAX} are accepted"
            )
        salted = hashlib.pbkdf2_hmac(self._digest, self._password, salt, iterations)
        binding = base64.b64encode(_GS2_HEADER.encode()).decode()
        without_proof = f"c={binding},r={nonce}"
        message = f"{self._client_first_bare},{server_first},{without_proof}".encode()
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._digest, client_key).digest()
        signature = self._hmac(stored_key, message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _verify(self, server_final: str) -> None:
        if server_final.startswith("e="):
            raise ExchangeFailed(f"the server says {server_final[2:].partition(',')[0]!r}")
        found = _SERVER_FINAL.fullmatch(server_final)
        if (
            found is None
            or self._signature is None
            or not hmac.compare_digest(_decode(found[1]), self._signature)
        ):
            raise ExchangeFailed("the server's signature is wrong: the server may be an impostor")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._digest)


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ExchangeFailed("the server's message is not SCRAM") from None
