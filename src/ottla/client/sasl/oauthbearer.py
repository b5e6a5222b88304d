"""OAUTHBEARER (RFC 7628): a bearer token, and extensions, in one message.

    client-first   n,,^Aauth=Bearer TOKEN^A[KEY=VALUE^A…]^A
    server         nothing: accepted;  or JSON with "status": refused, which the client confirms with ^A

Tokens come from a function of the user's, which is asked for each authentication: it keeps its token for as long as it likes.
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
    """A token and the SASL extensions (KIP-342) that go with it. Its repr does not show the token."""

    value: str = field(repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict)


Token = str | OAuthToken
#: Called in a thread of its own, so that it may block; a coroutine function is awaited on the client's event loop.
TokenProvider = Callable[[], Token | Awaitable[Token]]


class OAuthBearer:
    """One exchange with one token; a token that the protocol cannot carry raises `ExchangeFailed`, without quoting it."""

    def __init__(self, token: Token) -> None:
        given = OAuthToken(token) if isinstance(token, str) else token
        if not isinstance(given, OAuthToken):
            raise ExchangeFailed(
                f"the token provider gave a {type(given).__name__}, not a str or an OAuthToken"
            )
        if not _TOKEN.fullmatch(given.value):
            raise ExchangeFailed("the token provider gave a token with characters that no bearer token has")
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
        # The server fails the exchange when it has this answer; its own words follow then, or else these are told.
        self.refusal = _refusal(challenge)
        return b"\x01"


def _refusal(challenge: bytes) -> str:
    try:
        told = json.loads(challenge)
    except ValueError:
        return "the token was refused"
    if not isinstance(told, dict):
        return "the token was refused"
    words = [str(told.get("status", "the token was refused"))]
    words += [f"{name} {told[name]}" for name in ("scope", "openid-configuration") if told.get(name)]
    return ", ".join(words)[:300]
