"""One client's socket: requests in pieces, unread responses of a slow reader, garbage."""

import errno
import os
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.model.errors import ErrorCode
from ottla.ports.disk import DiskError
from ottla.runtime import transport
from ottla.runtime.disk_errors import ERRNO_CLASSES, ErrnoClass, errno_class
from ottla.server.embedded import Broker
from tests.peer import API_VERSIONS, FETCH, METADATA, PATIENCE_S, Peer, fetch_fields

SETTINGS = {"log.flush.policy": "page-cache"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Any]:
    with Broker(config=SETTINGS) as running:
        yield running


@pytest.fixture
def peer(broker: Any) -> Iterator[Peer]:
    with Peer(broker.address) as connected:
        yield connected


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name).replace("[", ".").replace("]", "")


# --- in -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 4, 5, 7, 1000])
def test_frames_that_come_in_pieces(peer: Peer, topic: str, size: int) -> None:
    peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.create(topic)
    data = b"".join(peer.frame(METADATA, version, topics=[{"name": topic}]) for version in (1, 9, 12))
    for at in range(0, len(data), size):
        peer.socket.sendall(data[at : at + size])
    assert [peer.receive().topics[0].name for _ in range(3)] == [topic] * 3


def test_many_frames_at_once(peer: Peer) -> None:
    peer.socket.sendall(b"".join(peer.frame(API_VERSIONS, 0) for _ in range(500)))
    assert all(peer.receive().api_keys for _ in range(500))


def test_frames_larger_than_any_buffer(peer: Peer, topic: str) -> None:
    peer.create(topic, max_message_bytes="20000000")
    values = [random.Random(size).randbytes(size) for size in (300_000, 1 << 20, 5_000_000, 262_140, 700_000)]
    for offset, value in enumerate(values):
        assert peer.produce(topic, value) == offset
    for offset, value in enumerate(values):
        assert peer.fetch(topic, offset)[0] == value


def test_a_large_frame_does_not_leak_into_the_next(peer: Peer, topic: str) -> None:
    """Buffers of requests in pieces are reused."""
    peer.create(topic, max_message_bytes="2000000")
    for number in range(10):
        peer.produce(topic, bytes([number]) * 600_000)
        assert peer.fetch(topic, number) == [bytes([number]) * 600_000]


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 104_857_601),
        b"GET / HTTP/1.1\r\nHost: example\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        struct.pack(">i", 5) + b"short",
        struct.pack(">ihhih", 10, 3, 12, 1, 100),
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
    ],
)
def test_garbage_closes_that_connection_alone(broker: Any, peer: Peer, garbage: bytes) -> None:
    with Peer(broker.address) as bad:
        bad.socket.sendall(garbage)
        assert bad.is_closed()
    assert peer.ask(API_VERSIONS, 0).api_keys


def test_a_frame_that_promises_much_and_sends_little_costs_little(peer: Peer, broker: Any) -> None:
    """A hundred connections that announce 100 MB each must not use 10 GB."""
    before = resident_bytes()
    peers = [Peer(broker.address) for _ in range(100)]
    for each in peers:
        each.socket.sendall(struct.pack(">i", 100_000_000) + bytes(100))
    assert peer.ask(API_VERSIONS, 0).api_keys
    assert resident_bytes() - before < 400 << 20
    for each in peers:
        each.socket.close()


def resident_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


def test_a_connection_cut_in_the_middle_of_a_frame(broker: Any, peer: Peer) -> None:
    for size in (2, 6, 20):
        with Peer(broker.address) as cut:
            cut.socket.sendall(cut.frame(METADATA, 12, topics=None)[:size])
    assert peer.ask(API_VERSIONS, 0).api_keys


# --- out ----------------------------------------------------------------------------------------------------


def test_answers_come_in_the_order_of_the_requests(broker: Any, peer: Peer, topic: str) -> None:
    peer.create(topic)
    with Peer(broker.address) as reader:
        reader.send(FETCH, 12, **fetch_fields(topic, 0, max_wait=20_000))
        reader.send(METADATA, 12, topics=[{"name": topic}])
        # When a later request on another connection is answered, the second request has arrived.
        peer.produce(topic, b"x")
        fetched, metadata = reader.receive(), reader.receive()
    assert fetched.responses[0].partitions[0].high_watermark == 1
    assert metadata.topics[0].name == topic


@pytest.mark.parametrize("size", [1000, 60_000, 70_000, 3_000_000])
def test_slices_of_every_size(peer: Peer, topic: str, size: int) -> None:
    """Small ones are read and joined, large ones go by sendfile."""
    peer.create(topic, max_message_bytes="4000000")
    values = [bytes([number]) * size for number in range(5)]
    for value in values:
        peer.produce(topic, value)
    assert peer.fetch(topic, 0) == values
    assert peer.fetch(topic, 3) == values[3:]


def test_a_slow_reader_blocks_no_other_client_and_uses_no_memory(broker: Any, peer: Peer, topic: str) -> None:
    """Nothing is read from disk for it: its requests stay in the kernel, unread."""
    peer.create(topic, max_message_bytes="4000000")
    for _ in range(8):
        peer.produce(topic, bytes(3_000_000))
    before = resident_bytes()
    with Peer(broker.address, receive_buffer_bytes=4096) as slow:
        frames = b"".join(slow.frame(FETCH, 12, **fetch_fields(topic, 0)) for _ in range(300))
        sender = threading.Thread(target=slow.socket.sendall, args=(frames,), daemon=True)
        sender.start()
        for _ in range(50):
            assert peer.ask(API_VERSIONS, 0).api_keys
        assert resident_bytes() - before < 64 << 20
        # It gets everything once it reads.
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        for _ in range(3):
            row = slow.receive().responses[0].partitions[0]
            assert len(row.records) > 24_000_000
        sender.join()


def test_a_reader_of_nothing_cannot_make_the_broker_keep_its_answers(
    broker: Any, peer: Peer, topic: str
) -> None:
    """Tiny requests with large answers, thousands of them in one packet."""
    peer.create(topic, 2000)
    size = len(peer_answer(broker, topic))
    assert size > 50_000
    with Peer(broker.address, receive_buffer_bytes=4096) as slow:
        request = slow.frame(METADATA, 1, topics=[{"name": topic}])
        many = request * 10_000
        sender = threading.Thread(target=send_quietly, args=(slow.socket, many), daemon=True)
        sender.start()
        for _ in range(50):
            assert peer.ask(API_VERSIONS, 0).api_keys
        # All responses would be more than half a gigabyte.
        assert on_loop(broker, lambda: queued_bytes(broker)) < 100 * size
        slow.socket.shutdown(socket.SHUT_RDWR)
        sender.join()


def on_loop(broker: Any, question: Callable[[], Any]) -> Any:
    """Call a function on the broker's own thread, between two turns."""
    answer: list[Any] = []
    done = threading.Event()

    def ask() -> None:
        answer.append(question())
        done.set()

    broker._loop.call_soon_threadsafe(ask)
    assert done.wait(PATIENCE_S)
    return answer[0]


def queued_bytes(broker: Any) -> int:
    return sum(
        len(part) for transport in broker._node._runner.connections.transports for part in transport.out
    )


def send_quietly(sock: socket.socket, data: bytes) -> None:
    try:
        sock.sendall(data)
    except OSError:
        return


def peer_answer(broker: Any, topic: str) -> bytes:
    with Peer(broker.address) as bare:
        bare.send(METADATA, 1, topics=[{"name": topic}])
        size = int.from_bytes(bare.socket.recv(4, socket.MSG_WAITALL), "big")
        return bare.socket.recv(size, socket.MSG_WAITALL)


def test_a_reader_that_disconnects_in_the_middle_of_a_response(broker: Any, peer: Peer, topic: str) -> None:
    peer.create(topic, max_message_bytes="4000000")
    for _ in range(5):
        peer.produce(topic, bytes(3_000_000))
    for _ in range(20):
        with Peer(broker.address, receive_buffer_bytes=4096) as leaving:
            leaving.send(FETCH, 12, **fetch_fields(topic, 0))
            leaving.socket.recv(100)
    assert len(peer.fetch(topic, 0)) == 5


def test_a_deleted_topic_is_sent_to_its_end(broker: Any, peer: Peer, topic: str) -> None:
    """A response in progress pins its file: deleting the topic does not truncate it."""
    peer.create(topic, max_message_bytes="4000000", file_delete_delay_ms="0")
    for _ in range(5):
        peer.produce(topic, b"x" * 3_000_000)
    with Peer(broker.address, receive_buffer_bytes=4096) as slow:
        slow.send(FETCH, 12, **fetch_fields(topic, 0))
        assert slow.socket.recv(4, socket.MSG_PEEK | socket.MSG_WAITALL)
        assert peer.ask(20, topics=[{"name": topic}]).responses[0].error_code.value == 0
        records = slow.receive().responses[0].partitions[0].records
    assert records.count(b"x") >= 15_000_000


def test_a_topic_deleted_while_its_answer_stands_in_line(broker: Any, peer: Peer, topic: str) -> None:
    """A queued response whose file is deleted ends its connection, and nothing else."""
    peer.create(topic, file_delete_delay_ms="0")
    peer.create(f"{topic}-quiet")
    peer.produce(topic, b"x")
    with Peer(broker.address) as reader:
        reader.send(FETCH, 12, **fetch_fields(f"{topic}-quiet", 0, max_wait=20_000))
        reader.send(FETCH, 12, **fetch_fields(topic, 0))
        reader.send(METADATA, 12, topics=[])
        peer.ask(20, topics=[{"name": topic}])
        peer.produce(f"{topic}-quiet", b"wake up")
        assert reader.receive().responses[0].partitions[0].high_watermark == 1
        with pytest.raises(ConnectionResetError):
            reader.receive()
    assert peer.fetch(f"{topic}-quiet", 0) == [b"wake up"]


def test_a_cold_file_that_cannot_be_read_ends_that_connection(
    broker: Any, peer: Peer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry would fail as well, and the client would never notice."""

    def refuse(_fd: int, _position: int, _size: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    peer.create(topic)
    peer.produce(topic, b"x" * 500_000)
    monkeypatch.setattr(transport, "HAS_SENDFILE", True)
    monkeypatch.setattr(transport, "in_memory", lambda *_arguments: False)
    monkeypatch.setattr(transport, "load", refuse)
    with Peer(broker.address) as reader, pytest.raises(ConnectionResetError):
        reader.ask(FETCH, 12, **fetch_fields(topic, 0))
    assert peer.ask(API_VERSIONS, 0).api_keys


def test_a_small_slice_that_cannot_be_read_ends_that_connection(
    broker: Any, peer: Peer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its file is unpinned."""

    def refuse(*_arguments: Any) -> bytes:
        raise DiskError("Input/output error")

    peer.create(topic)
    peer.produce(topic, b"x" * 1000)
    file = on_loop(broker, lambda: broker._node._broker.partitions.by_name[topic].replicas[0].log.active.file)
    with monkeypatch.context() as broken:
        broken.setattr(broker._node._disk, "read", refuse)
        with Peer(broker.address) as reader:
            reader.send(FETCH, 12, **fetch_fields(topic, 0))
            assert reader.is_closed()
    assert file.pins == 0


class _FailingSendfile:
    """The `os` module as `runtime/transport.py` sees it."""

    def __init__(self, number: int) -> None:
        self._number = number

    def sendfile(self, *_arguments: Any) -> int:
        raise OSError(self._number, "injected")

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


#: EAGAIN is no error of the file: the socket is full.
SENDFILE_ERRNOS = [name for name in ERRNO_CLASSES if hasattr(errno, name) and name != "EAGAIN"]


@pytest.mark.parametrize("name", SENDFILE_ERRNOS)
def test_a_sendfile_that_fails_ends_that_connection(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each errno of the table (`docs/disk-errors.md`); those of the device also take the directory offline."""
    number = getattr(errno, name)
    with Broker(config=SETTINGS) as broker, Peer(broker.address) as peer:
        peer.create("t")
        peer.produce("t", b"x" * 500_000)
        with monkeypatch.context() as broken:
            broken.setattr(transport, "HAS_SENDFILE", True)
            broken.setattr(transport, "in_memory", lambda *_arguments: True)
            broken.setattr(transport, "os", _FailingSendfile(number))
            with Peer(broker.address) as reader, pytest.raises(ConnectionResetError):
                reader.ask(FETCH, 12, **fetch_fields("t", 0))
        row = peer.ask(FETCH, 12, **fetch_fields("t", 0)).responses[0].partitions[0]
        is_offline = errno_class(number) is ErrnoClass.DEVICE
        assert row.error_code.value == (ErrorCode.KAFKA_STORAGE_ERROR if is_offline else 0)
