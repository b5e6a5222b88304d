"""PLAIN (RFC 4616): the name and the password in one message. Only TLS keeps it secret."""

from __future__ import annotations


class Plain:
    """`message = [authzid] NUL authcid NUL passwd`; the identity to act as is always one's own."""

    def __init__(self, username: str, password: str) -> None:
        self._message = b"\0" + username.encode() + b"\0" + password.encode()

    def first(self) -> bytes:
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        return None
