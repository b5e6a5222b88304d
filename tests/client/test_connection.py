import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from ottla.client.connection import BrokerConnection
from ottla.client.errors import (
    BrokerUnreachable,
    ConnectionLost,
    NotKafka,
    RequestTimedOut,
    UnsupportedVersion,
)
from ottla.client.settings import ClientConfig

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def peer(handler: Handler) -> AsyncIterator[int]:
    """Something that listens and is no broker: for what a broker would not do."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def read_request(reader: asyncio.StreamReader) -> tuple[int, int, int]:
    """API key, version and correlation id."""
    size = struct.unpack(">i", await reader.readexactly(4))[0]
    key, version, correlation_id = struct.unpack_from(">hhi", await reader.readexactly(size))
    return key, version, correlation_id


def split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def test_requests_are_answered_in_order_and_versions_negotiated(ottla_address: str) -> None:
    async def body() -> None:
        connection = await BrokerConnection.open(*split(ottla_address), ClientConfig())
        assert connection.versions[0][1] >= 9
        answers = [connection.send(3, {"topics": ()}) for _ in range(20)]
        assert all([(await answer).brokers for answer in answers])
        assert connection.pending == 0
        with pytest.raises(UnsupportedVersion, match="this client speaks"):
            connection.version_for(3, -1)
        with pytest.raises(UnsupportedVersion, match="does not serve"):
            connection.version_for(9999)
        connection.close()

    asyncio.run(body())


def test_a_refused_connection_names_the_address_and_says_what_to_do(free_port: int) -> None:
    with pytest.raises(BrokerUnreachable, match=rf"127\.0\.0\.1:{free_port}: connection refused.*ottla up"):
        asyncio.run(BrokerConnection.open("127.0.0.1", free_port, ClientConfig()))


def test_a_refused_name_with_several_addresses_is_explained_too(free_port: int) -> None:
    with pytest.raises(BrokerUnreachable, match="connection refused"):
        asyncio.run(BrokerConnection.open("localhost", free_port, ClientConfig()))


def test_a_name_that_does_not_resolve_is_explained() -> None:
    with pytest.raises(BrokerUnreachable, match="does not resolve"):
        asyncio.run(BrokerConnection.open("no-such-host.invalid", 9092, ClientConfig()))


def test_a_peer_of_another_protocol_is_told() -> None:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()

    async def body() -> None:
        async with peer(web) as port:
            with pytest.raises(NotKafka, match="not the Kafka protocol"):
                await BrokerConnection.open("127.0.0.1", port, ClientConfig())

    asyncio.run(body())


def test_a_peer_that_hangs_up_at_once_is_explained() -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)

    async def body() -> None:
        async with peer(rude) as port:
            with pytest.raises(BrokerUnreachable, match="TLS"):
                await BrokerConnection.open("127.0.0.1", port, ClientConfig())

    asyncio.run(body())


def test_a_peer_that_never_answers_times_out() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def body() -> None:
        async with peer(silent) as port:
            with pytest.raises(RequestTimedOut, match=r"api_versions within 0\.05 s"):
                await BrokerConnection.open("127.0.0.1", port, ClientConfig(request_timeout_ms=50))

    asyncio.run(body())


def test_an_older_broker_is_asked_again_in_its_own_version() -> None:
    """KIP-511: the answer to an unknown version is in version 0, with error 35 and what the broker has."""
    asked: list[int] = []

    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for error in (35, 0):
            _, version, correlation_id = await read_request(reader)
            asked.append(version)
            body = struct.pack(">ihihhh", correlation_id, error, 1, 18, 0, 0)
            writer.write(struct.pack(">i", len(body)) + body)
        await reader.read()

    async def body() -> None:
        async with peer(old) as port:
            connection = await BrokerConnection.open("127.0.0.1", port, ClientConfig())
            assert connection.versions == {18: (0, 0)}
            connection.close()

    asyncio.run(body())
    assert asked[0] > 0 and asked[1] == 0


def test_a_lost_connection_fails_whoever_waits(ottla_address: str) -> None:
    async def body() -> None:
        connection = await BrokerConnection.open(*split(ottla_address), ClientConfig())
        assert connection._transport is not None
        answer = connection.send(3, {"topics": ()})
        connection._transport.abort()
        with pytest.raises(ConnectionLost, match=ottla_address):
            await answer
        assert not connection.open_now
        with pytest.raises(ConnectionLost):
            await connection.send(3, {"topics": ()})

    asyncio.run(body())
