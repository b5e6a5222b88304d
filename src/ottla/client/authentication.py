"""Authentication on an open connection: SaslHandshake, then the mechanism's messages in SaslAuthenticate
(KIP-152).

`authenticate` also reauthenticates before the session ends (KIP-368). Password hashing and the user's token
provider run in a thread, so that they do not block the event loop. Only `BrokerConnection` calls it.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla.client.errors import AuthenticationFailed, BrokerUnreachable, refused
from ottla.client.sasl.exchange import Exchange, ExchangeFailed
from ottla.client.sasl.oauthbearer import OAuthBearer
from ottla.client.sasl.plain import Plain
from ottla.client.sasl.scram import Scram
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.client.settings import ClientConfig

#: No mechanism needs more rounds; a server that sends more is refused.
ROUNDS_MAX = 8

#: Sends a request at once, even while others are held back, and returns its response.
Ask = Callable[[int, dict[str, Any]], "asyncio.Future[Any]"]


async def authenticate(ask: Ask, address: str, settings: ClientConfig) -> float | None:
    """Authenticate, or raise `AuthenticationFailed`. Return the session lifetime in seconds; None for no
    limit.
    """
    mechanism = settings.sasl_mechanism
    assert mechanism is not None
    answer = await ask(ApiKey.SASL_HANDSHAKE, {"mechanism": mechanism})
    if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationFailed(
            f"the listener {address} has no SASL", code=ErrorCode.ILLEGAL_SASL_STATE, broker=address,
            advice="Use the port of its SASL listener, or security_protocol PLAINTEXT or SSL",
        )  # fmt: skip
    if answer.error_code:
        offered = ", ".join(map(str, answer.mechanisms))
        message = f"{address} does not offer {mechanism}" + (f", but {offered}" if offered else "")
        raise AuthenticationFailed(
            message, code=ErrorCode(int(answer.error_code)), broker=address,
            advice="Choose another sasl_mechanism, or enable it on the broker (sasl.enabled.mechanisms)",
        )  # fmt: skip
    try:
        exchange = await _exchange(address, settings)
        return await _converse(ask, exchange, address, settings)
    except ExchangeFailed as error:
        raise AuthenticationFailed(
            f"{mechanism} with {address}{_as_whom(settings)}: {error}",
            broker=address,
            advice=_advice(settings),
        ) from error


async def _converse(ask: Ask, exchange: Exchange, address: str, settings: ClientConfig) -> float | None:
    message: bytes | None = exchange.first()
    for _ in range(ROUNDS_MAX):
        answer = await ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": message})
        if answer.error_code:
            _refuse(answer, exchange, address, settings)
        message = await asyncio.to_thread(exchange.answer, bytes(answer.auth_bytes))
        if message is None:
            lifetime = getattr(answer, "session_lifetime", None)
            seconds = 0.0 if lifetime is None else float(lifetime.total_seconds())
            return seconds if seconds > 0 else None
    raise ExchangeFailed("the SASL exchange does not end")


def _refuse(answer: Any, exchange: Exchange, address: str, settings: ClientConfig) -> None:
    text = answer.error_message
    if isinstance(exchange, OAuthBearer) and exchange.refusal:
        text = f"{text or 'refused'} ({exchange.refusal})"
    error = refused(
        int(answer.error_code),
        f"{settings.sasl_mechanism} with {address}{_as_whom(settings)}",
        message=text,
        broker=address,
    )
    error.advice = _advice(settings)
    raise error


async def _exchange(address: str, settings: ClientConfig) -> Exchange:
    mechanism = settings.sasl_mechanism
    if mechanism == "OAUTHBEARER":
        return OAuthBearer(await _token(address, settings))
    username, password = settings.sasl_username, settings.sasl_password
    assert username is not None and password is not None
    if mechanism == "PLAIN":
        return Plain(username, password)
    digest = "sha512" if mechanism == "SCRAM-SHA-512" else "sha256"
    return Scram(digest, username, password, secrets.token_urlsafe(24))


async def _token(address: str, settings: ClientConfig) -> Any:
    provider = settings.sasl_oauth_token_provider
    assert provider is not None
    try:
        if inspect.iscoroutinefunction(provider):
            return await provider()
        given = await asyncio.to_thread(provider)
        return await given if inspect.isawaitable(given) else given
    except OSError as error:
        # The token server may be down for a while, like a broker: retrying helps.
        raise BrokerUnreachable(
            f"no token for {address}: the token provider failed ({error})", broker=address,
            advice="Check that the token server is reachable",
        ) from error  # fmt: skip
    except Exception as error:
        raise AuthenticationFailed(
            f"no token for {address}: the token provider raised {type(error).__name__}", broker=address,
            advice="See its exception in __cause__",
        ) from error  # fmt: skip


def _as_whom(settings: ClientConfig) -> str:
    return f" as {settings.sasl_username!r}" if settings.sasl_username else ""


def _advice(settings: ClientConfig) -> str:
    if settings.sasl_mechanism == "OAUTHBEARER":
        return "Check the token's issuer, audience, scope and expiry"
    return "Check sasl_username and sasl_password, and that the user exists for this mechanism"
