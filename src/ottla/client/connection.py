"""One connection to one broker: `wire.frames.ClientConnection` on an asyncio transport, with TLS and SASL.

Setup has stages (TCP, TLS, ApiVersions, SASL) that share `socket_connection_setup_timeout_ms`. After that the
connection carries any number of requests, and responses come in the order of requests. `send` writes at once
and returns a future, so callers need no task per request. A request timeout closes the connection, because
later responses cannot be matched. If the broker limits the session lifetime, the first request after nine
tenths of it waits for reauthentication (KIP-368). Everything runs on one event loop; only `Cluster` opens
connections.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Mapping
from typing import Any, Final

import ottla
from ottla.client.authentication import authenticate
from ottla.client.connect import dial, unreachable
from ottla.client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ConnectionLost,
    KafkaError,
    NotKafka,
    RequestTimedOut,
    UnsupportedVersion,
)
from ottla.client.receive_buffer import ReceiveBuffer
from ottla.client.security import tls_failure
from ottla.client.settings import ClientConfig, address_text
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode
from ottla.wire import decode, encode, schema
from ottla.wire.fetched import read_fetch_response
from ottla.wire.frames import ClientConnection

RESPONSE_BYTES_MAX = 1 << 30
#: The start of a version 0 response to a request in an unknown version (KIP-511).
UNSUPPORTED_VERSION_BYTES = b"\x00\x23"
#: The start of an answer of listeners that are not Kafka.
TLS_ALERT: Final = b"\x15\x03"
#: How long a peer may take for the TLS close.
TLS_GOODBYE_S: Final = 1.0

#: Responses with their own reader, because the general one would copy much.
READERS: Mapping[int, Any] = {ApiKey.FETCH: read_fetch_response}

Body = dict[str, Any]


class BrokerConnection(asyncio.BufferedProtocol):
    """An open connection. `versions` maps an API key to the versions that the broker serves."""

    def __init__(self, address: str, settings: ClientConfig) -> None:
        self.address = address
        self.versions: dict[int, tuple[int, int]] = {}
        #: The finalized features of the cluster (KIP-584), by level.
        self.features: dict[str, int] = {}
        self.settings = settings
        self._frames = ClientConnection(settings.client_id, RESPONSE_BYTES_MAX)
        self._arriving = ReceiveBuffer()
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, tuple[asyncio.Future[Any], int, int, asyncio.TimerHandle | None]] = {}
        self._lost: KafkaError | None = None
        self._loop = asyncio.get_running_loop()
        self._chosen: dict[int, int] = {}
        #: The current stage of the setup.
        self._stage = ""
        #: When the session must be reauthenticated; None without a limit.
        self._authenticate_at_s: float | None = None
        #: Requests that wait for reauthentication; None while there is none.
        self._held: list[tuple[asyncio.Future[Any] | None, int, int, bytes, int | None]] | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._gone = self._loop.create_future()

    @classmethod
    async def open(
        cls, host: str, port: int, settings: ClientConfig, tls: ssl.SSLContext | None = None
    ) -> BrokerConnection:
        """Connect, negotiate and authenticate, or raise a `KafkaError` with the stage and the reason."""
        connection = cls(address_text(host, port), settings)
        timeout_s = settings.socket_connection_setup_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                await connection._set_up(host, port, tls, timeout_s)
        except BaseException as error:
            connection.abort()
            explained = connection._explain(error, timeout_s)
            if explained is None:
                raise
            raise explained from error
        return connection

    async def _set_up(self, host: str, port: int, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self._stage = "TCP"
        sock = await dial(host, port, self.settings, timeout_s)
        if tls is None:
            await self._loop.create_connection(lambda: self, sock=sock)
        else:
            self._stage = "TLS"
            await self._loop.create_connection(
                lambda: self, sock=sock, ssl=tls, server_hostname=host, ssl_shutdown_timeout=TLS_GOODBYE_S
            )
        self._stage = "ApiVersions"
        await self._negotiate()
        if self.settings.security_protocol.startswith("SASL"):
            self._stage = "SASL"
            if not self.serves(ApiKey.SASL_HANDSHAKE):
                raise AuthenticationFailed(
                    f"{self.address} does not support SASL", broker=self.address,
                    advice="Set security_protocol to PLAINTEXT or SSL",
                )  # fmt: skip
            await self._authenticate()
        self._stage = "first request"

    def _explain(self, error: BaseException, timeout_s: float) -> KafkaError | None:
        """The error for a setup that failed at this stage; None if the original error is clear."""
        if isinstance(error, ConnectionLost):
            if isinstance(error.__cause__, ssl.SSLError):
                # In TLS 1.3 the client's handshake ends before the server checks its certificate.
                return self._tls_failure(error.__cause__)
            if self._stage == "SASL":
                return BrokerUnreachable(
                    f"{self.address} closed the connection during authentication", broker=self.address,
                    advice="The listener may expect another mechanism, or no SASL; see the broker's log",
                )  # fmt: skip
            return BrokerUnreachable(
                f"{self.address} accepted the connection and closed it during the first request", broker=self.address,
                advice="The listener may expect a client certificate (ssl_certfile), or belong to another program"
                if self.settings.security_protocol.endswith("SSL")
                else "The listener may expect TLS or SASL (security_protocol), or belong to another program",
            )  # fmt: skip
        if not isinstance(error, OSError):
            return None
        if self._stage == "TCP":
            return unreachable(self.address, error, timeout_s)
        if isinstance(error, TimeoutError):
            return RequestTimedOut(
                f"{self.address} accepted the connection and did not complete {self._stage} within {timeout_s:g} s",
                broker=self.address,
                advice="The broker may be overloaded or paused, or another program listens there",
            )
        return self._tls_failure(error)

    def _tls_failure(self, error: OSError) -> KafkaError:
        settings = self.settings
        has_certificate = settings.ssl_certfile is not None or settings.ssl_context is not None
        return tls_failure(self.address, error, has_certificate=has_certificate)

    async def _negotiate(self) -> None:
        ours = schema.version_range(ApiKey.API_VERSIONS)
        assert ours is not None
        version = ours[1]
        body: Body = {"client_software_name": "ottla", "client_software_version": ottla.__version__}
        answer = await self._request_versions(version, body)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION and version:
            # KIP-511: the broker answers in version 0 and lists its versions of this API.
            theirs = next(
                (row.max_version for row in answer.api_keys if row.api_key == ApiKey.API_VERSIONS), 0
            )
            answer = await self._request_versions(min(version, max(theirs, 0)), body)
        if answer.error_code:
            raise UnsupportedVersion(
                f"{self.address} does not answer ApiVersions",
                code=ErrorCode(int(answer.error_code)),
                broker=self.address,
            )
        self.versions = {
            int(row.api_key): (int(row.min_version), int(row.max_version)) for row in answer.api_keys
        }
        features = getattr(answer, "finalized_features", ())
        self.features = {str(row.name): int(row.max_version_level) for row in features}

    async def _request_versions(self, version: int, body: Body) -> Any:
        return await self._write(
            ApiKey.API_VERSIONS, version, encode.request_encoder(ApiKey.API_VERSIONS, version)(body), None
        )

    # Authentication

    async def _authenticate(self) -> None:
        def ask(api_key: int, body: Body) -> asyncio.Future[Any]:
            version = self.version_for(api_key)
            return self._write(api_key, version, encode.request_encoder(api_key, version)(body), None)

        session_s = await authenticate(ask, self.address, self.settings)
        self._authenticate_at_s = None
        if session_s is not None:
            # Not all connections of all clients at the same moment.
            self._authenticate_at_s = self._loop.time() + session_s * random.uniform(0.85, 0.95)

    def _must_hold(self) -> bool:
        """Whether the session is about to end: then reauthentication starts and requests wait for it."""
        if self._held is None:
            assert self._authenticate_at_s is not None
            if self._loop.time() < self._authenticate_at_s:
                return False
            self._held = []
            self._renewal = self._loop.create_task(self._authenticate_again())
        return True

    async def _authenticate_again(self) -> None:
        timeout_s = self.settings.socket_connection_setup_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                await self._authenticate()
        except TimeoutError:
            self._fail(
                RequestTimedOut(
                    f"{self.address} did not complete SASL reauthentication within {timeout_s:g} s", broker=self.address,
                    advice="The broker may be overloaded, paused or cut off",
                )
            )  # fmt: skip
        except Exception as error:
            # Requests that are held back must get the error, whatever it is.
            failure = error
            if not isinstance(failure, KafkaError):
                failure = KafkaError(
                    f"{self.address}: reauthentication failed ({error!r})", broker=self.address
                )
                failure.__cause__ = error
            self._fail(failure)
        else:
            held, self._held = self._held or [], None
            for future, api_key, version, body, timeout_ms in held:
                if future is not None:
                    self._write_for(future, api_key, version, body, timeout_ms)
                elif self._lost is None:
                    self._write_unanswered(api_key, version, body)

    # Requests

    @property
    def open_now(self) -> bool:
        return self._lost is None

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def requests(self) -> int:
        """A number that changes with every request."""
        return self._frames.next_correlation_id

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were written and not yet sent. This is the only limit for requests without responses
        (acks=0).
        """
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def serves(self, api_key: int) -> bool:
        return api_key in self.versions

    def version_for(self, api_key: int, version_max: int | None = None) -> int:
        """The newest version that both sides (and `version_max`) support."""
        if version_max is None:
            known = self._chosen.get(api_key)
            if known is not None:
                return known
        ours, theirs = schema.version_range(api_key), self.versions.get(api_key)
        if ours is None or theirs is None:
            raise UnsupportedVersion(
                f"{self.address} does not serve {schema.api_name(api_key)}",
                code=ErrorCode.UNSUPPORTED_VERSION,
                broker=self.address,
                advice="The broker is older than this feature, or the feature is disabled",
            )
        lowest, highest = max(ours[0], theirs[0]), min(ours[1], theirs[1])
        if version_max is not None:
            highest = min(highest, version_max)
        if lowest > highest:
            raise UnsupportedVersion(
                f"{self.address} serves {schema.api_name(api_key)} in versions {theirs[0]} to {theirs[1]}, "
                f"this client speaks {ours[0]} to {min(ours[1], version_max or ours[1])}",
                code=ErrorCode.UNSUPPORTED_VERSION,
                broker=self.address,
                advice="Upgrade the older of client and broker",
            )
        if version_max is None:
            self._chosen[api_key] = highest
        return highest

    def send(
        self, api_key: int, body: Body, *, version_max: int | None = None, timeout_ms: int | None = None
    ) -> asyncio.Future[Any]:
        """Write a request. The future returns the decoded response or raises a `KafkaError`."""
        version = self.version_for(api_key, version_max)
        encoded = encode.request_encoder(api_key, version)(body)
        if self._authenticate_at_s is not None and self._lost is None and self._must_hold():
            future: asyncio.Future[Any] = self._loop.create_future()
            assert self._held is not None
            self._held.append((future, api_key, version, encoded, timeout_ms))
            return future
        return self._write(api_key, version, encoded, timeout_ms)

    def post(self, api_key: int, body: Body, *, version_max: int | None = None) -> None:
        """Write a request without a response (Produce with acks=0)."""
        version = self.version_for(api_key, version_max)
        if self._lost is not None:
            raise self._lost
        encoded = encode.request_encoder(api_key, version)(body)
        if self._authenticate_at_s is not None and self._must_hold():
            assert self._held is not None
            self._held.append((None, api_key, version, encoded, None))
            return
        self._write_unanswered(api_key, version, encoded)

    async def request(
        self, api_key: int, body: Body, *, version_max: int | None = None, timeout_ms: int | None = None
    ) -> Any:
        return await self.send(api_key, body, version_max=version_max, timeout_ms=timeout_ms)

    def _write(self, api_key: int, version: int, body: bytes, timeout_ms: int | None) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._write_for(future, api_key, version, body, timeout_ms)
        return future

    def _write_for(
        self, future: asyncio.Future[Any], api_key: int, version: int, body: bytes, timeout_ms: int | None
    ) -> None:
        if self._lost is not None:
            future.set_exception(self._lost)
            return
        assert self._transport is not None
        correlation_id, frame = self._frames.request(api_key, version, body)
        seconds = (timeout_ms or self.settings.request_timeout_ms) / 1000
        timer = self._loop.call_later(seconds, self._timed_out, correlation_id, seconds)
        self._pending[correlation_id] = (future, api_key, version, timer)
        self._transport.write(frame)

    def _write_unanswered(self, api_key: int, version: int, body: bytes) -> None:
        assert self._transport is not None
        self._transport.write(self._frames.request(api_key, version, body, is_answered=False)[1])

    def _timed_out(self, correlation_id: int, seconds: float) -> None:
        waiting = self._pending.get(correlation_id)
        if waiting is None:
            return
        self._fail(
            RequestTimedOut(
                f"{self.address} did not answer {schema.api_name(waiting[1])} within {seconds:g} s",
                broker=self.address,
                advice="The broker may be overloaded, paused or cut off",
            )
        )

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if transport.get_extra_info("sslcontext") is None:
            self._arriving.attach(transport.get_extra_info("socket"))

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._arriving.room()

    def buffer_updated(self, count: int) -> None:
        data = self._arriving.filled(count)
        if data:
            self._received(data)
            self._arriving.expect(self._frames.missing_bytes)

    def _received(self, data: bytes | bytearray) -> None:
        if self._stage == "first request":
            self._stage = ""
        try:
            for correlation_id, body in self._frames.feed(data):
                future, api_key, version, timer = self._pending.pop(correlation_id)
                if timer is not None:
                    timer.cancel()
                if (
                    api_key == ApiKey.API_VERSIONS
                    and version
                    and bytes(body[:2]) == UNSUPPORTED_VERSION_BYTES
                ):
                    version = 0
                response = READERS.get(api_key, decode.decode_response)(api_key, version, body, 0)
                if not future.done():
                    future.set_result(response)
        except Exception as error:
            failure = self._not_kafka(data, error)
            failure.__cause__ = error
            self._fail(failure)

    def _not_kafka(self, data: bytes | bytearray, error: Exception) -> NotKafka:
        reason, advice = f"({error})", "Check that the port is a Kafka listener"
        if self._stage == "ApiVersions" and data.startswith(TLS_ALERT):
            reason, advice = "but TLS", "It is a TLS listener: use security_protocol='SSL' or 'SASL_SSL'"
        elif self._stage == "ApiVersions" and data.startswith(b"HTTP/"):
            reason, advice = "but HTTP", "A web server listens there: check the port"
        return NotKafka(
            f"{self.address} answered with bytes that are not the Kafka protocol {reason}",
            broker=self.address,
            advice=advice,
        )

    def connection_lost(self, error: Exception | None) -> None:
        # The transport is closed: aborting it too would make asyncio report the loss twice.
        self._transport = None
        reason = f": {error}" if error else ""
        advice = "The broker may have been stopped or restarted"
        if self._stage == "first request" and self._pending:
            # This is what a SASL listener does to a client without SASL.
            advice += ", or the listener expects another security_protocol"
        lost = ConnectionLost(
            f"the connection to {self.address} broke{reason}", broker=self.address, advice=advice
        )
        lost.__cause__ = error
        self._fail(lost)
        if not self._gone.done():
            self._gone.set_result(None)

    def _fail(self, error: KafkaError) -> None:
        if self._lost is None:
            self._lost = error
        pending, self._pending = self._pending, {}
        held, self._held = self._held or [], None
        for future, _, _, timer in pending.values():
            if timer is not None:
                timer.cancel()
            if not future.done():
                future.set_exception(error)
        for waiting, *_ in held:
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
        self.abort()

    def abort(self) -> None:
        """Drop the connection without waiting."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Send what is written, then close. Requests in flight fail with `ConnectionLost`."""
        if self._lost is None:
            self._lost = ConnectionLost(
                f"the connection to {self.address} was closed by this client", broker=self.address
            )
        if self._renewal is not None:
            self._renewal.cancel()
        if self._transport is not None:
            self._transport.close()

    async def wait_closed(self, timeout_s: float) -> None:
        """Wait until the socket is closed. A peer that does not read the rest in time loses it."""
        if self._transport is None:
            return
        await asyncio.wait([self._gone], timeout=timeout_s)
        if not self._gone.done():
            self.abort()
            await asyncio.wait([self._gone], timeout=timeout_s)
