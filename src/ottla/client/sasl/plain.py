"""PLAIN (RFC 4616): user and password in one message. Only TLS keeps them secret."""

from __future__ import annotations


class Plain:
    """`message = [authzid] NUL authcid NUL passwd`. The authorization identity is always empty."""

    def __init__(self, username: str, password: str) -> None:
        self._message = b"\0" + username.encode() + b"\0" + password.encode()

    def first(self) -> bytes:
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        return None
