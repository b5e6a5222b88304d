"""OAUTHBEARER (RFC 7628): a bearer token, and extensions, in one message.

    client-first   n,,^Aauth=Bearer TOKEN^A[KEY=VALUE^A…]^A
    server         nothing: accepted;  or JSON with "status": refused, which the client confirms with ^A

The user's token provider is called for each authentication, and may cache its token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.client.sasl.exchange import ExchangeFailed

_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
_KEY: Final = re.compile(r"[A-Za-z]+")
_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")


@dataclass(frozen=True, slots=True)
class OAuthToken:
    """A token and its SASL extensions (KIP-342). The repr does not show the token."""

    value: str = field(repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict)


Token = str | OAuthToken
#: Called in a thread, so it may block. A coroutine function is awaited on the client's event loop.
TokenProvider = Callable[[], Token | Awaitable[Token]]


class OAuthBearer:
    """One exchange with one token. An invalid token raises `ExchangeFailed`, which does not quote it."""

    def __init__(self, token: Token) -> None:
        given = OAuthToken(token) if isinstance(token, str) else token
        if not isinstance(given, OAuthToken):
            raise ExchangeFailed(
                f"the token provider returned a {type(given).__name__}, not a str or an OAuthToken"
            )
        if not _TOKEN.fullmatch(given.value):
            raise ExchangeFailed(
                "the token provider returned a token with characters that no bearer token has"
            )
        fields = [f"auth=Bearer {given.value}"]
        for key, value in given.extensions.items():
            if key == "auth" or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
                raise ExchangeFailed(f"the SASL extension {key!r} has a name or a value that cannot be sent")
            fields.append(f"{key}={value}")
        self._message = ("n,,\x01" + "".join(f"{each}\x01" for each in fields) + "\x01").encode()
        self.refusal: str | None = None

    def first(self) -> bytes:
        return self._message

    def answer(self, challenge: bytes) -> bytes | None:
        if not challenge:
            return None
        # The server ends the exchange after this answer. Its own error text comes then; otherwise this one is
        # used.
        self.refusal = _refusal(challenge)
        return b"\x01"


def _refusal(challenge: bytes) -> str:
    try:
        answer = json.loads(challenge)
    except ValueError:
        return "the token was refused"
    if not isinstance(answer, dict):
        return "the token was refused"
    words = [str(answer.get("status", "the token was refused"))]
    words += [f"{name} {answer[name]}" for name in ("scope", "openid-configuration") if answer.get(name)]
    return ", ".join(words)[:300]
