import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from secrets import token_bytes
from typing import Any

import pytest

from ottla.config.broker import BrokerConfig
from ottla.ports.effects import REFUSED
from ottla.runtime.clock import Clock
from ottla.runtime.peers import Peers
from ottla.security.broker_handshake import NONCE_BYTES, Credentials, HandshakeInitiator
from ottla.security.cluster_secret import SECRET_BYTES, ClusterSecret
from ottla.server.embedded import Broker
from ottla.wire.decode import decode_response
from ottla.wire.encode import request_encoder
from tests.crash.broker_process import batch_of
from tests.peer import API_VERSIONS, FETCH, METADATA, PATIENCE_S, PRODUCE, Peer, fetch_fields


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), PATIENCE_S))

    return run


class Asker:
    """A broker as its peers see it: it sends requests and records the results."""

    def __init__(self, credentials: Credentials | None = None, **settings: str) -> None:
        names = {name.replace("_", "."): value for name, value in settings.items()}
        self.config = BrokerConfig.from_properties({"log.dirs": "unused", **names})
        self.turns: list[int] = []
        #: The results in order: (name of the request, response or None, error).
        self.came: list[tuple[Any, Any, str | None]] = []
        self.said: list[str] = []
        self._news = asyncio.Event()
        self.peers = Peers(
            asyncio.get_running_loop(),
            Clock(),
            self,
            self._turn,
            self._failed,
            self.said.append,
            client_id="broker-7",
            prove_to=lambda node: (
                None
                if credentials is None
                else HandshakeInitiator(credentials, node, token_bytes(NONCE_BYTES))
            ),
        )

    def _failed(self, what: str, error: Exception) -> None:
        self.said.append(f"{what}: {error!r}")

    def _turn(self, _now_ms: int) -> None:
        self.turns.append(len(self.came))
        self.peers.flush()

    def ask(
        self, address: tuple[str, int], key: int, version: int, name: Any = None, lane: int = 0, **fields: Any
    ) -> None:
        def done(answer: memoryview | None, error: str | None) -> None:
            if answer is not None:
                assert answer.readonly
            decoded = None if answer is None else decode_response(key, version, answer, 0)
            self.came.append((name, decoded, error))
            self._news.set()

        self.peers.ask((1, *address), lane, key, version, request_encoder(key, version)(fields), done)

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(config={"log.flush.policy": "page-cache"}) as running:
        yield running


def place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


@on_a_loop
async def test_answers_come_in_order_from_headers_of_both_kinds(broker: Broker) -> None:
    asker = Asker()
    there = place(broker.address)
    # Flexible in both headers, in neither, and only in the request header.
    asker.ask(there, METADATA, 12, "flexible", topics=[])
    asker.ask(there, METADATA, 4, "old", topics=[], allow_auto_topic_creation=False)
    asker.ask(there, API_VERSIONS, 3, "mixed", client_software_name="o", client_software_version="1")
    assert asker.came == []
    asker.peers.flush()
    await asker.until(lambda: len(asker.came) == 3)
    assert [name for name, _answer, _error in asker.came] == ["flexible", "old", "mixed"]
    assert [error for _name, _answer, error in asker.came] == [None] * 3
    assert asker.came[0][1].brokers[0].port == asker.came[1][1].brokers[0].port == there[1]
    assert any(api.api_key == API_VERSIONS for api in asker.came[2][1].api_keys)
    # They left in one send and were answered in one batch or few, each followed by a turn.
    assert asker.turns[-1] == 3
    asker.peers.stop()


@on_a_loop
async def test_a_name_is_looked_up(broker: Broker) -> None:
    asker = Asker()
    asker.ask(("localhost", place(broker.address)[1]), METADATA, 12, topics=[])
    asker.peers.flush()
    await asker.until(lambda: asker.came)
    assert asker.came[0][2] is None
    asker.peers.stop()


@on_a_loop
async def test_large_answers_come_in_pieces_and_small_ones_behind_them(broker: Broker) -> None:
    with Peer(broker.address) as peer:
        peer.create("large", 1)
        for _ in range(3):
            peer.produce("large", bytes(900_000))
    asker = Asker()
    there = place(broker.address)
    for number in range(3):
        asker.ask(there, FETCH, 12, number, **fetch_fields("large", 0, max_bytes=1 << 24))
        asker.ask(there, METADATA, 12, topics=[])
    asker.peers.flush()
    await asker.until(lambda: len(asker.came) == 6)
    assert [error for _name, _answer, error in asker.came] == [None] * 6
    fetched = [answer for _name, answer, _error in asker.came[::2]]
    assert all(len(answer.responses[0].partitions[0].records) > 2_700_000 for answer in fetched)
    asker.peers.stop()


@on_a_loop
async def test_lanes_do_not_wait_for_each_other(broker: Broker) -> None:
    with Peer(broker.address) as peer:
        peer.create("lanes", 1)
    asker = Asker()
    there = place(broker.address)
    asker.ask(there, FETCH, 12, "slow", 0, **fetch_fields("lanes", 0, max_wait=100_000))
    asker.ask(there, METADATA, 12, "quick", 1, topics=[])
    asker.peers.flush()
    await asker.until(lambda: asker.came)
    assert asker.came[0][0] == "quick"
    asker.peers.stop()


@on_a_loop
async def test_a_port_without_a_listener_is_refused() -> None:
    with socket.socket() as taken:
        # Bound, so that no other process gets it, but not listening.
        taken.bind(("127.0.0.1", 0))
        asker = Asker()
        for name in range(2):
            asker.ask(taken.getsockname(), METADATA, 12, name, topics=[])
        asker.peers.flush()
        assert asker.came == []
        await asker.until(lambda: len(asker.came) == 2)
        assert asker.came == [(0, None, REFUSED), (1, None, REFUSED)]
        assert asker.turns == [2]


class Silent:
    """A server that calls a function on each connection after it has read something."""

    def __init__(self, act: Callable[[bytes, asyncio.StreamWriter], object]) -> None:
        self._act = act
        self.connections = 0
        self.heard, self.ended = asyncio.Event(), asyncio.Event()

    async def __aenter__(self) -> tuple[str, int]:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return host, port

    async def __aexit__(self, *exception: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while data := await reader.read(1 << 16):
            self.heard.set()
            self._act(data, writer)
        self.ended.set()
        writer.close()


@on_a_loop
async def test_all_requests_fail_with_their_connection_and_the_next_request_opens_another() -> None:
    asker = Asker()
    server = Silent(lambda _data, writer: writer.close())
    async with server as there:
        for name in range(2):
            asker.ask(there, METADATA, 12, name, topics=[])
        asker.peers.flush()
        await asker.until(lambda: len(asker.came) == 2)
        assert [name for name, _answer, _error in asker.came] == [0, 1]
        assert all(error and error != REFUSED for _name, _answer, error in asker.came)
        asker.ask(there, METADATA, 12, 2, topics=[])
        asker.peers.flush()
        await asker.until(lambda: len(asker.came) == 3)
        assert server.connections == 2
        asker.peers.stop()


@on_a_loop
async def test_an_answer_that_takes_too_long_ends_the_connection() -> None:
    asker = Asker(replica_socket_timeout_ms="100")
    server = Silent(lambda _data, _writer: None)
    async with server as there:
        for name in range(2):
            asker.ask(there, METADATA, 12, name, topics=[])
        asker.peers.flush()
        await asker.until(lambda: len(asker.came) == 2)
        assert [error for _name, _answer, error in asker.came] == [
            "no response within 100 ms (replica.socket.timeout.ms)"
        ] * 2
        await server.ended.wait()
        asker.peers.stop()


@pytest.mark.parametrize(
    "answer",
    [
        struct.pack(">ii", 4, 5),  # to a request that was not sent
        struct.pack(">i", -1),
        struct.pack(">iibb", 6, 0, 1, 1),  # a header whose tags do not end
    ],
)
@on_a_loop
async def test_an_invalid_response_ends_the_connection(answer: bytes) -> None:
    asker = Asker()
    async with Silent(lambda _data, writer: writer.write(answer)) as there:
        asker.ask(there, METADATA, 12, topics=[])
        asker.peers.flush()
        await asker.until(lambda: asker.came)
        assert "sent an invalid response" in str(asker.came[0][2])
        asker.peers.stop()


@on_a_loop
async def test_a_broker_that_has_moved_gets_new_connections(broker: Broker) -> None:
    asker = Asker()
    server = Silent(lambda _data, _writer: None)
    async with server as there:
        asker.ask(there, METADATA, 12, "before", topics=[])
        asker.peers.flush()
        await server.heard.wait()
        asker.ask(place(broker.address), METADATA, 12, "after", topics=[])
        asker.peers.flush()
        await asker.until(lambda: len(asker.came) == 2)
        errors = {name: error for name, _answer, error in asker.came}
        assert "has moved" in str(errors["before"])
        assert errors["after"] is None
        asker.peers.stop()


@on_a_loop
async def test_idle_connections_are_closed() -> None:
    asker = Asker(connections_max_idle_ms="50")
    server = Silent(lambda _data, writer: writer.write(struct.pack(">ii", 4, 0)))
    async with server as there:
        done: list[Any] = []
        asker.peers.ask((1, *there), 0, API_VERSIONS, 0, b"", lambda *came: done.append(came))
        asker.peers.flush()
        await server.ended.wait()
        assert len(done) == 1
        assert done[0][1] is None


@on_a_loop
async def test_a_mistake_with_one_answer_does_not_take_the_others(broker: Broker) -> None:
    asker = Asker()
    there = place(broker.address)

    def fails(_answer: memoryview | None, _error: str | None) -> None:
        raise ValueError("of the core's own")

    asker.peers.ask((1, *there), 0, METADATA, 12, request_encoder(METADATA, 12)({"topics": []}), fails)
    asker.ask(there, METADATA, 12, topics=[])
    asker.peers.flush()
    await asker.until(lambda: asker.came)
    assert asker.came[0][2] is None
    assert "of the core's own" in asker.said[0]
    asker.peers.stop()


@on_a_loop
async def test_requests_larger_than_the_socket_takes_leave_in_pieces(broker: Broker) -> None:
    with Peer(broker.address) as peer:
        peer.create("pieces", 1)
    asker = Asker()
    there = place(broker.address)
    batch = batch_of(bytes(900_000))
    for name in range(8):
        row = {"index": 0, "records": batch}
        asker.ask(
            there,
            PRODUCE,
            9,
            name,
            acks=-1,
            timeout=30_000,
            transactional_id=None,
            topic_data=[{"name": "pieces", "partition_data": [row]}],
        )
    asker.peers.flush()
    await asker.until(lambda: len(asker.came) == 8)
    assert [error for _name, _answer, error in asker.came] == [None] * 8
    rows = [answer.responses[0].partition_responses[0] for _name, answer, _error in asker.came]
    assert [row.base_offset for row in rows] == list(range(8))
    asker.peers.stop()


# --- the handshake between brokers --------------------------------------------------------------------------

SECRET, WRONG = (ClusterSecret(letter * SECRET_BYTES) for letter in (b"s", b"w"))


@pytest.fixture
def clustered() -> Iterator[Broker]:
    """Broker 1 of a cluster, as others see it."""
    with Broker(config={"log.flush.policy": "page-cache"}) as running:
        core = running._node._broker
        core.credentials = Credentials(SECRET, "cluster", 1)
        yield running


@on_a_loop
async def test_requests_leave_once_both_ends_have_proven_themselves(clustered: Broker) -> None:
    asker = Asker(Credentials(SECRET, "cluster", 7))
    there = place(clustered.address)
    for name in range(5):
        asker.ask(there, METADATA, 12, name, topics=[])
    asker.peers.flush()
    await asker.until(lambda: len(asker.came) == 5)
    asker.ask(there, METADATA, 12, 5, topics=[])
    # Only an authenticated broker gets this error.
    asker.ask(there, 67, 0, "ids", broker_id=7, broker_epoch=1)
    asker.peers.flush()
    await asker.until(lambda: len(asker.came) == 7)
    assert [name for name, _answer, _error in asker.came] == [0, 1, 2, 3, 4, 5, "ids"]
    assert [error for _name, _answer, error in asker.came] == [None] * 7
    stale_broker_epoch = 77
    assert asker.came[6][1].error_code == stale_broker_epoch
    assert asker.said == []
    asker.peers.stop()


@on_a_loop
async def test_without_the_secret_nothing_leaves_and_that_is_said_once(clustered: Broker) -> None:
    asker = Asker(Credentials(WRONG, "cluster", 7))
    for name in range(2):
        asker.ask(place(clustered.address), METADATA, 12, name, topics=[])
        asker.peers.flush()
        await asker.until(lambda name=name: len(asker.came) == name + 1)
    assert all(answer is None and "the proof is wrong" in error for _name, answer, error in asker.came)  # type: ignore[operator]
    assert len(asker.said) == 1 and "broker 1 at" in asker.said[0]
    asker.peers.stop()


@on_a_loop
async def test_nothing_is_sent_to_one_that_cannot_prove_itself(broker: Broker) -> None:
    """A broker without a cluster, at the former address of another broker."""
    asker = Asker(Credentials(SECRET, "cluster", 7))
    asker.ask(place(broker.address), METADATA, 12, topics=[])
    asker.peers.flush()
    await asker.until(lambda: asker.came)
    [(_name, answer, error)] = asker.came
    assert answer is None and error is not None and "ILLEGAL_SASL_STATE" in error
    asker.peers.stop()
