"""Connections: limits, idle and stalled connections, errors, no leftovers of closed connections."""

import errno
import socket
import struct
import threading
import time
from typing import Any

import pytest

from ottla.security.broker_handshake import MECHANISM, NONCE_BYTES, Credentials
from ottla.security.cluster_secret import SECRET_BYTES, ClusterSecret
from tests.peer import API_VERSIONS, CREATE_TOPICS, FETCH, METADATA, PATIENCE_S, Peer, fetch_fields
from tests.runtime.embedded_core import eventually, on_loop
from tests.security.prover import Prover


def test_the_address_is_a_number(start: Any) -> None:
    broker = start()
    assert broker.address.startswith("127.0.0.1:")
    with Peer(broker.address) as peer:
        [node] = peer.ask(METADATA, topics=[]).brokers
        assert f"{node.host}:{node.port}" == broker.address


def test_a_closed_connection_leaves_nothing_behind(start: Any) -> None:
    broker = start()
    with Peer(broker.address) as peer:
        peer.create("t", 2)
        with Peer(broker.address) as reader, Peer(broker.address) as session:
            reader.send(FETCH, 12, **fetch_fields("t", 0, max_wait=100_000))
            fields = fetch_fields("t", 0, partition=1, max_wait=100_000)
            session.send(FETCH, 12, **fields, session_id=0, session_epoch=0)
            replicas = lambda core: core.partitions.by_name["t"].replicas.values()  # noqa: E731
            eventually(broker, lambda core: all(replica.watchers for replica in replicas(core)))
        eventually(broker, lambda core: not any(replica.watchers for replica in replicas(core)))
        assert on_loop(broker, lambda core: core.fetch_sessions.by_id) == {}
        assert peer.ask(API_VERSIONS, 0).api_keys


def test_deadlines_of_closed_fetches_are_freed(start: Any) -> None:
    """An empty bucket pins the memory around it: 40,000 closed fetches would keep 150 MB."""
    # The sweep runs every half second.
    broker = start(connections_max_idle_ms="2000")
    weeks_ms = 2**31 - 1
    with Peer(broker.address) as peer:
        peer.create("t")
        far = on_loop(broker, lambda core: core.now_ms) + weeks_ms // 2
        deadlines = lambda core: [1 for number in core.timers._buckets if number << 3 > far]  # noqa: E731
        with Peer(broker.address) as reader:
            reader.send(FETCH, 12, **fetch_fields("t", 0, max_wait=weeks_ms))
            eventually(broker, deadlines)
        eventually(broker, lambda core: not deadlines(core))
        assert peer.produce("t", b"x") == 0


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
    broker = start(connections_max_idle_ms="1500")
    with Peer(broker.address) as peer:
        peer.create("t", max_message_bytes="4000000")
        for _ in range(10):
            peer.produce("t", bytes(3_000_000))
    with Peer(broker.address, receive_buffer_bytes=4096) as slow:
        slow.send(FETCH, 12, **fetch_fields("t", 0))
        eventually(broker, lambda core: core.partitions.by_name["t"] is not None and not connections(broker))


def test_a_request_that_stalls_is_closed_soon_after_its_time_out(start: Any) -> None:
    """The sweep interval follows a short socket.request.timeout.ms."""
    broker = start(socket_request_timeout_ms="400")
    with Peer(broker.address) as stalled:
        began_s = time.monotonic()
        stalled.socket.sendall(struct.pack(">i", 1000) + bytes(10))
        assert stalled.is_closed()
        assert time.monotonic() - began_s < 4


def connections(broker: Any) -> int:
    return len(broker._node._runner.connections.transports)


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
    """Connections beyond the rate wait in the backlog and are accepted a second later, not refused."""
    broker = start(max_connection_creation_rate="5")
    peers = [Peer(broker.address) for _ in range(8)]
    for peer in peers:
        assert peer.ask(API_VERSIONS, 0).api_keys
        peer.socket.close()


class Exhausted:
    """A listener without free descriptors."""

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
    runner = broker._node._runner
    exhausted = Exhausted(runner.connections.listeners[0])
    on_loop(broker, lambda _core: runner.connections.accept(exhausted))
    # Nothing is accepted during the pause; new connections wait and are served afterwards.
    with Peer(broker.address) as peer:
        on_loop(broker, lambda _core: None)
        assert connections(broker) == 0
        assert peer.ask(API_VERSIONS, 0).api_keys
    assert exhausted.asked == 1
    assert any("Too many open files" in text for text in said)


def test_a_flood_of_bad_requests_is_not_a_flood_of_words(start: Any) -> None:
    said: list[str] = []
    broker = start(said.append)
    for _ in range(50):
        with Peer(broker.address) as bad:
            bad.socket.sendall(b"\xff\xff\xff\xff")
            assert bad.is_closed()
    assert 1 <= len([text for text in said if "closed" in text]) <= 2


def test_the_same_fault_with_other_numbers_is_logged_once_and_the_rest_counted(start: Any) -> None:
    said: list[str] = []
    # The sweep, which logs the count, runs four times per idle time.
    broker = start(said.append, connections_max_idle_ms="2000")
    for number in range(1, 40):
        with Peer(broker.address) as bad:
            bad.socket.sendall((-number).to_bytes(4, "big", signed=True))
            assert bad.is_closed()
    with Peer(broker.address) as waiting:
        # It is closed as idle, which is after some sweeps.
        assert waiting.is_closed()
    refused = [text for text in said if "bytes, allowed are 1 to" in text]
    counted = [int(text.split()[0]) for text in said if "more connections were closed" in text]
    assert 1 <= len(refused) <= 10
    assert len(refused) + sum(counted) == 39


def test_answers_before_the_garbage_still_arrive(start: Any) -> None:
    broker = start()
    with Peer(broker.address) as peer:
        peer.socket.sendall(peer.frame(API_VERSIONS, 0) + b"\xff\xff\xff\xff")
        assert peer.receive().api_keys
        assert peer.is_closed()


def test_a_pipeline_deeper_than_the_line_is_answered_in_full(start: Any) -> None:
    """Reading pauses while too many requests wait, and resumes when they are answered."""
    broker = start()
    with Peer(broker.address) as reader, Peer(broker.address) as peer:
        peer.create("t")
        frames = [reader.frame(FETCH, 12, **fetch_fields("t", 0, max_wait=60_000))]
        frames += [reader.frame(METADATA, 12, topics=[]) for _ in range(20_000)]
        sender = threading.Thread(target=reader.socket.sendall, args=(b"".join(frames),), daemon=True)
        sender.start()
        eventually(broker, lambda core: bool(core.partitions.by_name["t"].replicas[0].watchers))
        waiting = on_loop(
            broker,
            lambda _core: max(len(t.connection.waiting) for t in broker._node._runner.connections.transports),
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
        eventually(broker, lambda core: len(core.partitions.by_name["t"].replicas[0].watchers) == 300)
        peer.produce("t", b"x")
        for reader in readers:
            assert reader.receive().responses[0].partitions[0].high_watermark == 1
            reader.socket.close()
    eventually(broker, lambda core: core.partitions.by_name["t"].replicas[0].watchers == {})


def test_stopping_closes_the_clients(start: Any) -> None:
    broker = start()
    with Peer(broker.address) as peer:
        peer.create("t")
        peer.send(FETCH, 12, **fetch_fields("t", 0, max_wait=60_000))
        eventually(broker, lambda core: bool(core.partitions.by_name["t"].replicas[0].watchers))
        broker.close()
        assert peer.is_closed()
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", int(broker.address.rpartition(":")[2])), PATIENCE_S)


def test_a_rate_that_is_raised_while_a_listener_rests(start: Any) -> None:
    broker = start(max_connection_creation_rate="2")
    with Peer(broker.address) as peer, Peer(broker.address):
        assert peer.ask(API_VERSIONS, 0).api_keys
        with Peer(broker.address) as late:
            eventually(broker, lambda _core: broker._node._runner.connections.is_paused)
            config = {"name": "max.connection.creation.rate", "config_operation": 0, "value": "1000"}
            resource = {"resource_type": 4, "resource_name": "", "configs": [config]}
            assert peer.ask(44, resources=[resource]).responses[0].error_code.value == 0
            assert late.ask(API_VERSIONS, 0).api_keys


def test_nothing_behind_a_bad_request_is_looked_at(start: Any) -> None:
    broker = start()
    with Peer(broker.address) as peer, Peer(broker.address) as bad:
        new = {"name": "t", "num_partitions": 1, "replication_factor": 1}
        bad.socket.sendall(b"\0\0\0\1x" + bad.frame(CREATE_TOPICS, topics=[new]))
        assert bad.is_closed()
        assert peer.ask(METADATA, topics=None).topics == ()


SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36


def authenticate(peer: Peer, me: Credentials, accepting_id: int) -> int:
    """Authenticate as a broker; returns the error code of the last response."""
    prover = Prover(me, accepting_id, bytes(NONCE_BYTES))
    assert peer.ask(SASL_HANDSHAKE, 1, mechanism=MECHANISM).error_code.value == 0
    challenge = bytes(peer.ask(SASL_AUTHENTICATE, 2, auth_bytes=prover.hello).auth_bytes)
    answer = peer.ask(SASL_AUTHENTICATE, 2, auth_bytes=prover.proof(challenge))
    return int(answer.error_code.value)


SECRET = ClusterSecret(b"s" * SECRET_BYTES)


def test_a_proven_broker_is_no_client_and_a_failed_proof_makes_its_address_wait(start: Any) -> None:
    broker = start()
    runner = broker._node._runner
    node_id = on_loop(broker, lambda core: core.config.node_id)
    cluster_id = on_loop(broker, lambda core: core.cluster_id)

    on_loop(broker, lambda core: setattr(core, "credentials", Credentials(SECRET, cluster_id, node_id)))
    with Peer(broker.address) as other:
        assert authenticate(other, Credentials(SECRET, cluster_id, 7), node_id) == 0
        assert on_loop(broker, lambda _core: runner.connections.brokers) == 1
        assert on_loop(broker, lambda _core: [each.is_broker for each in runner.connections.transports]) == [
            True
        ]
    eventually(broker, lambda _core: not runner.connections.transports)
    assert runner.connections.brokers == 0
    wrong = Credentials(ClusterSecret(b"w" * SECRET_BYTES), cluster_id, 7)
    with Peer(broker.address) as forged:
        assert authenticate(forged, wrong, node_id) == 58
        assert forged.is_closed()
    assert len(runner.connections._admission._failures) == 1
