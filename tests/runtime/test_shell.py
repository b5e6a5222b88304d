"""Connections as a whole: limits, idleness, errors, what is left behind when one goes."""

import errno
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.broker.api.table import APIS
from ottla.server.embedded import Broker
from tests.peer import API_VERSIONS, FETCH, METADATA, PATIENCE_S, Peer, fetch_fields


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    running: list[Any] = []

    def make(say: Callable[[str], None] = lambda _text: None, **settings: str) -> Any:
        names = {name.replace("_", "."): value for name, value in settings.items()}
        running.append(Broker(config={"log.flush.policy": "page-cache", **names}, say=say))
        return running[-1]

    yield make
    for broker in running:
        broker.close()


def on_loop(broker: Any, question: Callable[[Any], Any]) -> Any:
    """Ask the core something on its own thread, between two turns."""
    answer: list[Any] = []
    done = threading.Event()

    def ask() -> None:
        answer.append(question(broker._node._broker))
        done.set()

    broker._loop.call_soon_threadsafe(ask)
    assert done.wait(PATIENCE_S)
    return answer[0]


def eventually(broker: Any, question: Callable[[Any], bool]) -> None:
    """Until the core says so; each question is a turn of its loop, so this waits without sleeping."""
    for _ in range(20_000):
        if on_loop(broker, question):
            return
    pytest.fail("it did not come to pass")


def test_the_address_is_a_number(start: Any) -> None:
    broker = start()
    assert broker.address.startswith("127.0.0.1:")
    with Peer(broker.address) as peer:
        [node] = peer.ask(METADATA, topics=[]).brokers
        assert f"{node.host}:{node.port}" == broker.address


def test_a_connection_that_goes_leaves_nothing_behind(start: Any) -> None:
    broker = start()
    with Peer(broker.address) as peer:
        peer.create("t", 2)
        with Peer(broker.address) as reader, Peer(broker.address) as session:
            reader.send(FETCH, 12, **fetch_fields("t", 0, max_wait=100_000))
            fields = fetch_fields("t", 0, partition=1, max_wait=100_000)
            session.send(FETCH, 12, **fields, session_id=0, session_epoch=0)
            leaders = lambda core: core.hosting.by_name["t"].leaders.values()  # noqa: E731
            eventually(broker, lambda core: all(leader.watchers for leader in leaders(core)))
        eventually(broker, lambda core: not any(leader.watchers for leader in leaders(core)))
        assert on_loop(broker, lambda core: core.fetch_sessions.by_id) == {}
        assert peer.ask(API_VERSIONS, 0).api_keys


def test_idle_connections_are_closed_and_waiting_ones_are_not(start: Any) -> None:
    broker = start(connections_max_idle_ms="200")
    with Peer(broker.address) as busy, Peer(broker.address) as idle:
        busy.create("t")
        busy.send(FETCH, 12, **fetch_fields("t", 0, max_wait=60_000))
        assert idle.is_closed()
        with Peer(broker.address) as other:
            other.produce("t", b"x")
        assert busy.receive().responses[0].partitions[0].high_watermark == 1


def test_a_client_that_never_reads_is_closed_in_the_end(start: Any) -> None:
    broker = start(connections_max_idle_ms="300")
    with Peer(broker.address) as peer:
        peer.create("t", max_message_bytes="4000000")
        for _ in range(10):
            peer.produce("t", bytes(3_000_000))
    with Peer(broker.address, receive_buffer_bytes=4096) as slow:
        slow.send(FETCH, 12, **fetch_fields("t", 0))
        eventually(broker, lambda core: core.hosting.by_name["t"] is not None and not connections(broker))


def connections(broker: Any) -> int:
    return len(broker._node._shell._transports)


def test_connections_per_address(start: Any) -> None:
    broker = start(max_connections_per_ip="3")
    peers = [Peer(broker.address) for _ in range(3)]
    for peer in peers:
        assert peer.ask(API_VERSIONS, 0).api_keys
    with Peer(broker.address) as refused:
        assert refused.is_closed()
    peers.pop().socket.close()
    eventually(broker, lambda _core: connections(broker) == 2)
    with Peer(broker.address) as welcome:
        assert welcome.ask(API_VERSIONS, 0).api_keys
    for peer in peers:
        peer.socket.close()


def test_connections_altogether(start: Any) -> None:
    said: list[str] = []
    broker = start(said.append, max_connections="2")
    with Peer(broker.address) as first, Peer(broker.address) as second:
        assert first.ask(API_VERSIONS, 0).api_keys and second.ask(API_VERSIONS, 0).api_keys
        for _ in range(5):
            with Peer(broker.address) as third:
                assert third.is_closed()
        assert first.ask(API_VERSIONS, 0).api_keys
    assert len([text for text in said if "max.connections" in text]) == 1


def test_new_connections_a_second(start: Any) -> None:
    """More than the rate wait in the backlog and are served a second later, not refused."""
    broker = start(max_connection_creation_rate="5")
    peers = [Peer(broker.address) for _ in range(8)]
    for peer in peers:
        assert peer.ask(API_VERSIONS, 0).api_keys
        peer.socket.close()


class Exhausted:
    """A listener at a moment when no descriptor is left."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.asked = 0

    def fileno(self) -> int:
        return self._listener.fileno()

    def accept(self) -> Any:
        self.asked += 1
        raise OSError(errno.EMFILE, "Too many open files")


def test_no_descriptor_left_does_not_make_the_broker_spin(start: Any) -> None:
    said: list[str] = []
    broker = start(said.append)
    shell = broker._node._shell
    exhausted = Exhausted(shell._listeners[0])
    on_loop(broker, lambda _core: shell._accept(exhausted))
    # Nobody is accepted while it looks away; those who come meanwhile wait, and are served.
    with Peer(broker.address) as peer:
        on_loop(broker, lambda _core: None)
        assert connections(broker) == 0
        assert peer.ask(API_VERSIONS, 0).api_keys
    assert exhausted.asked == 1
    assert any("Too many open files" in text for text in said)


def test_an_error_inside_the_broker_ends_that_connection_and_is_told(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    broker = start(said.append)

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("broken on purpose")

    monkeypatch.setitem(APIS, API_VERSIONS, APIS[API_VERSIONS]._replace(handler=broken))
    with Peer(broker.address) as unlucky, Peer(broker.address) as other:
        unlucky.send(API_VERSIONS, 0)
        assert unlucky.is_closed()
        assert other.ask(METADATA, topics=[]).brokers
    assert any("Traceback" in text and "broken on purpose" in text for text in said)


def test_a_flood_of_bad_requests_is_not_a_flood_of_words(start: Any) -> None:
    said: list[str] = []
    broker = start(said.append)
    for _ in range(50):
        with Peer(broker.address) as bad:
            bad.socket.sendall(b"\xff\xff\xff\xff")
            assert bad.is_closed()
    assert 1 <= len([text for text in said if "closed" in text]) <= 2


def test_answers_before_the_garbage_still_arrive(start: Any) -> None:
    broker = start()
    with Peer(broker.address) as peer:
        peer.socket.sendall(peer.frame(API_VERSIONS, 0) + b"\xff\xff\xff\xff")
        assert peer.receive().api_keys
        assert peer.is_closed()


def test_a_pipeline_deeper_than_the_line_is_answered_in_full(start: Any) -> None:
    """Reading stops while too many requests wait, and goes on when they are answered."""
    broker = start()
    with Peer(broker.address) as reader, Peer(broker.address) as peer:
        peer.create("t")
        frames = [reader.frame(FETCH, 12, **fetch_fields("t", 0, max_wait=60_000))]
        frames += [reader.frame(METADATA, 12, topics=[]) for _ in range(20_000)]
        sender = threading.Thread(target=reader.socket.sendall, args=(b"".join(frames),), daemon=True)
        sender.start()
        eventually(broker, lambda core: bool(core.hosting.by_name["t"].leaders[0].watchers))
        waiting = on_loop(
            broker, lambda _core: max(len(t.connection.waiting) for t in broker._node._shell._transports)
        )
        assert waiting < 15_000
        peer.produce("t", b"x")
        for _ in range(20_001):
            reader.receive()
        sender.join()


def test_many_connections_at_once(start: Any) -> None:
    broker = start()
    with Peer(broker.address) as peer:
        peer.create("t")
        readers = [Peer(broker.address) for _ in range(300)]
        for reader in readers:
            reader.send(FETCH, 12, **fetch_fields("t", 0, max_wait=60_000))
        eventually(broker, lambda core: len(core.hosting.by_name["t"].leaders[0].watchers) == 300)
        peer.produce("t", b"x")
        for reader in readers:
            assert reader.receive().responses[0].partitions[0].high_watermark == 1
            reader.socket.close()
    eventually(broker, lambda core: core.hosting.by_name["t"].leaders[0].watchers == {})


def test_stopping_closes_the_clients(start: Any) -> None:
    broker = start()
    with Peer(broker.address) as peer:
        peer.create("t")
        peer.send(FETCH, 12, **fetch_fields("t", 0, max_wait=60_000))
        eventually(broker, lambda core: bool(core.hosting.by_name["t"].leaders[0].watchers))
        broker.close()
        assert peer.is_closed()
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", int(broker.address.rpartition(":")[2])), PATIENCE_S)
