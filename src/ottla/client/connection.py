"""One TCP connection to one broker: bytes of `wire.frames.ClientConnection` on an asyncio transport.

A connection negotiates API versions once, then carries any number of requests; answers come in the order of the
requests. `send` writes at once and gives a future, so that callers need no task a request. A request that is not
answered in time closes the connection: later answers could no longer be trusted to come. All of it runs on one event
loop; only `Cluster` opens connections.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import ottla
from ottla.client.errors import (
    BrokerUnreachable,
    ConnectionLost,
    KafkaError,
    NotKafka,
    RequestTimedOut,
    UnsupportedVersion,
)
from ottla.client.settings import Client, address_text
from ottla.model.errors import ErrorCode
from ottla.wire import decode, encode, schema
from ottla.wire.frames import ClientConnection

API_VERSIONS = 18
RESPONSE_BYTES_MAX = 1 << 30
#: How an answer in version 0 begins when the broker does not know the version it was asked in (KIP-511).
UNSUPPORTED_VERSION_BYTES = b"\x00\x23"

Body = dict[str, Any]


class BrokerConnection(asyncio.Protocol):
    """An open connection. `versions` maps an API key to the range that the broker serves."""

    def __init__(self, address: str, settings: Client) -> None:
        self.address = address
        self.versions: dict[int, tuple[int, int]] = {}
        #: The features that the cluster has switched on (KIP-584), at which level.
        self.features: dict[str, int] = {}
        self.settings = settings
        self._frames = ClientConnection(settings.client_id, RESPONSE_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, tuple[asyncio.Future[Any], int, int, asyncio.TimerHandle | None]] = {}
        self._lost: KafkaError | None = None
        self._loop = asyncio.get_running_loop()
        self._chosen: dict[int, int] = {}

    @classmethod
    async def open(cls, host: str, port: int, settings: Client) -> BrokerConnection:
        """Connect and negotiate versions, or raise `BrokerUnreachable` saying why."""
        address = address_text(host, port)
        connection = cls(address, settings)
        timeout_s = settings.socket_connection_setup_timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                await connection._loop.create_connection(lambda: connection, host, port)
        except (OSError, TimeoutError) as error:
            raise unreachable(address, error, timeout_s) from error
        try:
            await connection._negotiate()
        except ConnectionLost as error:
            raise BrokerUnreachable(
                f"{address} took the connection and closed it during the first request",
                broker=address,
                advice="The listener may expect TLS or SASL, or belong to another program",
            ) from error
        except BaseException:
            connection.close()
            raise
        return connection

    async def _negotiate(self) -> None:
        ours = schema.version_range(API_VERSIONS)
        assert ours is not None
        version = ours[1]
        body: Body = {"client_software_name": "ottla", "client_software_version": ottla.__version__}
        answer = await self._request_versions(version, body)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION and version:
            # KIP-511: the broker answers in version 0 and lists what it has of this API.
            theirs = next((row.max_version for row in answer.api_keys if row.api_key == API_VERSIONS), 0)
            answer = await self._request_versions(min(version, max(theirs, 0)), body)
        if answer.error_code:
            raise UnsupportedVersion(
                f"{self.address} does not tell its API versions",
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
            API_VERSIONS, version, encode.request_encoder(API_VERSIONS, version)(body), None
        )

    # Requests

    @property
    def open_now(self) -> bool:
        return self._lost is None

    @property
    def pending(self) -> int:
        return len(self._pending)

    def serves(self, api_key: int) -> bool:
        return api_key in self.versions

    def version_for(self, api_key: int, version_max: int | None = None) -> int:
        """The newest version that both sides (and `version_max`) know."""
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
                advice="The broker is older than this feature, or has it switched off",
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
        """Write a request now; the future gives the decoded response or a `KafkaError`."""
        version = self.version_for(api_key, version_max)
        return self._write(api_key, version, encode.request_encoder(api_key, version)(body), timeout_ms)

    def post(self, api_key: int, body: Body, *, version_max: int | None = None) -> None:
        """Write a request that gets no response (Produce with acks=0)."""
        version = self.version_for(api_key, version_max)
        if self._lost is not None:
            raise self._lost
        assert self._transport is not None
        encoded = encode.request_encoder(api_key, version)(body)
        self._transport.write(self._frames.request(api_key, version, encoded, is_answered=False)[1])

    async def request(
        self, api_key: int, body: Body, *, version_max: int | None = None, timeout_ms: int | None = None
    ) -> Any:
        return await self.send(api_key, body, version_max=version_max, timeout_ms=timeout_ms)

    def _write(self, api_key: int, version: int, body: bytes, timeout_ms: int | None) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._lost is not None:
            future.set_exception(self._lost)
            return future
        assert self._transport is not None
        correlation_id, frame = self._frames.request(api_key, version, body)
        seconds = (timeout_ms or self.settings.request_timeout_ms) / 1000
        timer = self._loop.call_later(seconds, self._timed_out, correlation_id, seconds)
        self._pending[correlation_id] = (future, api_key, version, timer)
        self._transport.write(frame)
        return future

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

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._size_buffers(transport.get_extra_info("socket"))

    def _size_buffers(self, connected: Any) -> None:
        for name, option in (
            ("send_buffer_bytes", socket.SO_SNDBUF),
            ("receive_buffer_bytes", socket.SO_RCVBUF),
        ):
            size_bytes = getattr(self.settings, name, 0)
            if size_bytes and connected is not None:
                connected.setsockopt(socket.SOL_SOCKET, option, size_bytes)

    def data_received(self, data: bytes) -> None:
        try:
            for correlation_id, body in self._frames.feed(data):
                future, api_key, version, timer = self._pending.pop(correlation_id)
                if timer is not None:
                    timer.cancel()
                if api_key == API_VERSIONS and version and bytes(body[:2]) == UNSUPPORTED_VERSION_BYTES:
                    version = 0
                response = decode.decode_response(api_key, version, body, 0)
                if not future.done():
                    future.set_result(response)
        except Exception as error:
            failure = NotKafka(
                f"{self.address} answered with bytes that are not the Kafka protocol ({error})",
                broker=self.address,
                advice="Check that the port is a Kafka listener without TLS",
            )
            failure.__cause__ = error
            self._fail(failure)

    def connection_lost(self, error: Exception | None) -> None:
        reason = f": {error}" if error else ""
        self._fail(ConnectionLost(f"the connection to {self.address} broke{reason}", broker=self.address))

    def _fail(self, error: KafkaError) -> None:
        if self._lost is None:
            self._lost = error
        pending, self._pending = self._pending, {}
        for future, _, _, timer in pending.values():
            if timer is not None:
                timer.cancel()
            if not future.done():
                future.set_exception(error)
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Let what is written leave, then close; whoever still waits gets `ConnectionLost`."""
        if self._lost is None:
            self._lost = ConnectionLost(
                f"the connection to {self.address} was closed by this client", broker=self.address
            )
        if self._transport is not None:
            self._transport.close()


def unreachable(address: str, error: OSError | TimeoutError, timeout_s: float) -> BrokerUnreachable:
    """Say in words why a connection could not be made, and what to try."""
    if isinstance(error, socket.gaierror):
        reason, advice = (
            "the host name does not resolve",
            "Check the spelling, or use an address such as 127.0.0.1",
        )
    elif isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(error):
        # A name with several addresses fails with one OSError that quotes each failure.
        reason = "connection refused"
        advice = (
            "Nothing listens there: start a broker with `ottla up`, or give another address with --bootstrap"
        )
    elif isinstance(error, TimeoutError):
        reason, advice = (
            f"no answer within {timeout_s:g} s",
            "A firewall may drop the packets, or the host is down",
        )
    else:
        reason, advice = error.strerror or str(error), "Check the address and the network"
    return BrokerUnreachable(f"cannot reach broker {address}: {reason}", broker=address, advice=advice)
