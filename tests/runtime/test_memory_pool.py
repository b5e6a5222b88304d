"""A broker process with few descriptors, clients that hold memory, and a flood of connections from one
address.
"""

import asyncio
import itertools
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from ottla.records.record import Record, decode_batches, encode_batch
from ottla.runtime.memory_pool import MemoryPool
from testkit.fuzz.outcome import resident_bytes
from tests.peer import API_VERSIONS, FETCH, METADATA, PATIENCE_S, Peer, fetch_fields, is_closed
from tests.running_broker import RunningBroker, start_broker

__all__ = ["start_broker"]
MIB = 1 << 20


def connect(address: str, source: str = "127.0.0.1") -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S, source_address=(source, 0))


def until(what: Callable[[], bool], seconds: float = 2 * PATIENCE_S) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.02)


# --- descriptors --------------------------------------------------------------------------------------------


def descriptors(broker: RunningBroker) -> int:
    return len(os.listdir(f"/proc/{broker.process.pid}/fd"))


@pytest.mark.skipif(
    not os.path.exists("/proc/self/fd"), reason="what a process has open is known on Linux alone"
)
def test_one_produce_after_connections_up_to_the_limit_does_not_take_the_directory_offline(
    start_broker: Any,
) -> None:
    """Bug 3: idle connections up to the limit, one closed, one produce: the log needs one descriptor, and the
    sync of its directory another.
    """
    broker = start_broker(0, descriptors=256)
    with ExitStack() as stack:
        peer = stack.enter_context(Peer(broker.address))
        peer.create("t")
        peer.create("other")
        assert peer.ask(METADATA, 12, topics=None).topics
        idle: list[socket.socket] = []
        while descriptors(broker) < 256 and not any(map(is_closed, idle[-1:])):
            count = descriptors(broker)
            idle.append(stack.enter_context(connect(broker.address)))
            until(lambda: descriptors(broker) > count or is_closed(idle[-1]))  # noqa: B023
        assert len(idle) > 100
        count = descriptors(broker)
        idle[0].close()
        until(lambda: descriptors(broker) < count)
        assert peer.produce("t", b"1") == 0
        assert peer.produce("other", b"1") == 0
        assert peer.fetch("t", 0) == [b"1"]
    assert not any("offline" in text for text in broker.said)


def test_connections_up_to_the_descriptor_limit_leave_the_log_its_files(start_broker: Any) -> None:
    """More connections than descriptors; then forty logs are written for the first time."""
    broker = start_broker(0, descriptors=256)
    with ExitStack() as stack:
        peer = stack.enter_context(Peer(broker.address))
        for number in range(40):
            peer.create(f"t{number}")
        assert peer.produce("t0", b"before") == 0
        idle = [stack.enter_context(connect(broker.address)) for _ in range(300)]
        # Some were refused on arrival; the others stay open.
        until(lambda: sum(map(is_closed, idle)) >= 50)
        held = [sock for sock in idle if not is_closed(sock)]
        assert len(held) >= 100
        for number in range(40):
            assert peer.produce(f"t{number}", b"after") == (1 if number == 0 else 0)
        assert peer.fetch("t0", 0) == [b"before", b"after"]
    assert not any("offline" in text for text in broker.said)
    assert sum("max.connections is 20000, but only" in text for text in broker.said) == 1


def test_connections_come_again_when_others_have_left(start_broker: Any) -> None:
    broker = start_broker(0, descriptors=256)
    for _ in range(3):
        with ExitStack() as stack:
            idle = [stack.enter_context(connect(broker.address)) for _ in range(200)]
            until(lambda: any(map(is_closed, idle)))  # noqa: B023
        with ExitStack() as stack:
            until(lambda: answers(broker.address))


def test_fetches_of_more_files_than_may_be_held_are_answered(start_broker: Any) -> None:
    """One response with all files, as a follower fetches, and many responses at once: files that are being
    sent may use half of the log's descriptors. Neither connection may be closed.
    """
    partitions = 200
    broker = start_broker(0, "log.flush.policy=page-cache", descriptors=256)
    with Peer(broker.address) as peer:
        peer.create("t", partitions=partitions)
        for number in range(partitions):
            peer.produce("t", b"%d" % number, partition=number)
        asked = [fetch_fields("t", 0, partition=number) for number in range(partitions)]
        rows = [fields["topics"][0]["partitions"][0] for fields in asked]
        whole = asked[0] | {"topics": [{"topic": "t", "partitions": rows}]}
        assert values_of(peer.ask(FETCH, 12, **whole)) == {
            number: b"%d" % number for number in range(partitions)
        }
        peer.socket.sendall(b"".join(peer.frame(FETCH, 12, **fields) for fields in asked))
        for number in range(partitions):
            assert values_of(peer.receive()) == {number: b"%d" % number}
        assert descriptors(broker) < 256


def values_of(answer: Any) -> dict[int, bytes | None]:
    """The first record of each partition."""
    return {
        row.partition_index: next(iter(decode_batches(row.records))).value
        for row in answer.responses[0].partitions
    }


def answers(address: str) -> bool:
    try:
        with Peer(address) as peer:
            return bool(peer.ask(API_VERSIONS, 0).api_keys)
    except ConnectionError:
        return False


# --- bytes --------------------------------------------------------------------------------------------------


class Holder:
    """A client that sends most of a large request, and then single bytes."""

    def __init__(self, address: str, size: int, length: int = 100 * MIB) -> None:
        self.socket = connect(address)
        self._left = memoryview(struct.pack(">i", length) + bytes(size))
        self.socket.setblocking(False)
        self.closed = False

    def send(self) -> bool:
        """Send as much as the broker accepts; False if that is nothing."""
        try:
            sent = self.socket.send(self._left[:MIB] or b"\0")
        except BlockingIOError:
            return False
        except OSError:
            self.closed = True
            return False
        self._left = self._left[sent:]
        return True

    @property
    def is_done(self) -> bool:
        return self.closed or not self._left


def turn(holders: list[Holder]) -> int:
    """Each sends once; returns the number that could."""
    return sum([each.send() for each in holders])


def push(holders: list[Holder], seconds: float, on_turn: Callable[[], None] = lambda: None) -> None:
    """Send until all is sent, or the broker accepts nothing for that long."""
    last = time.monotonic()
    while time.monotonic() - last < seconds and not all(each.is_done for each in holders):
        if turn([each for each in holders if not each.is_done]):
            last = time.monotonic()
        else:
            time.sleep(0.005)
        on_turn()


def test_unfinished_requests_hold_bounded_memory_and_give_it_back(start_broker: Any) -> None:
    """12 × 95 MiB of 100 MiB, then a byte at a time: bug 7."""
    broker = start_broker(0, "socket.request.timeout.ms=4000")
    pid = broker.process.pid
    with Peer(broker.address) as witness:
        witness.create("t")
        witness.produce("t", b"1")
        before = resident_bytes(pid)
        highest = 0
        waits: list[float] = []

        def look() -> None:
            nonlocal highest
            highest = max(highest, resident_bytes(pid))
            if len(waits) < 200:
                started = time.monotonic()
                witness.produce("t", b"small")
                waits.append(time.monotonic() - started)

        holders = [Holder(broker.address, 95 * MIB) for _ in range(12)]
        try:
            push(holders, 2.0, look)
            look()
            # The pool of 512 MiB, one request beyond it, and the memory of the broker itself.
            assert highest - before < 700 * MIB, f"{(highest - before) // MIB} MiB"
            # Single bytes do not save a request that blocks others.
            until(lambda: turn(holders) >= 0 and any(each.closed for each in holders))
        finally:
            for each in holders:
                each.socket.close()
        until(lambda: resident_bytes(pid) - before < 100 * MIB)
        # A large request is served, and so are others.
        assert witness.produce("t", bytes(900_000)) == len(waits) + 1
    print(
        f"highest +{(highest - before) // MIB} MiB, longest wait {max(waits):.3f} s, after +{(resident_bytes(pid) - before) // MIB} MiB"
    )
    assert any("bytes of a request have arrived" in text for text in broker.said)


def test_each_unfinished_request_ends_in_the_end(start_broker: Any) -> None:
    """More requests than fit into memory: each gets memory, stalls, and is closed."""
    broker = start_broker(
        0,
        "socket.request.timeout.ms=500",
        "queued.max.request.bytes=8388608",
        "socket.request.max.bytes=8388608",
    )
    holders = [Holder(broker.address, 7 * MIB, 8 * MIB) for _ in range(3)]
    until(lambda: turn(holders) >= 0 and all(each.closed for each in holders))
    for each in holders:
        each.socket.close()


def test_large_requests_complete_although_all_wait_for_memory(start_broker: Any) -> None:
    """Each needs more than is free after all have started: they finish one after the other, none is dropped."""
    broker = start_broker(
        0,
        "queued.max.request.bytes=33554432",
        "socket.request.max.bytes=33554432",
        "message.max.bytes=40000000",
    )
    values = [bytes([number]) * (20 * MIB) for number in range(4)]
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(broker.address)) for _ in values]
        peers[0].create("t", max_message_bytes="40000000")
        offsets: list[int] = []
        threads = [
            threading.Thread(target=lambda peer=peer, value=value: offsets.append(peer.produce("t", value)))
            for peer, value in zip(peers, values, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * PATIENCE_S)
        assert sorted(offsets) == [0, 1, 2, 3]


def test_a_slow_client_is_served_and_a_stalled_one_is_not(start_broker: Any) -> None:
    """64 KB/s is slow but valid; a stalled request is closed after socket.request.timeout.ms."""
    broker = start_broker(0, "socket.request.timeout.ms=1000")
    with Peer(broker.address) as slow, connect(broker.address) as stalled:
        slow.create("t")
        stalled.sendall(struct.pack(">i", 50_000) + bytes(40_000))
        request = slow.frame(
            0,
            12,
            acks=-1,
            timeout=30_000,
            topic_data=[{"name": "t", "partition_data": [{"index": 0, "records": batch(100_000)}]}],
        )
        # It takes longer than the timeout.
        for at in range(0, len(request), 8 * 1024):
            slow.socket.sendall(request[at : at + 8 * 1024])
            time.sleep(1 / 8)
        assert slow.receive().responses[0].partition_responses[0].error_code.value == 0
        until(lambda: is_closed(stalled))


def batch(size: int) -> bytes:
    return bytes(encode_batch([Record(0, 0, None, bytes(size))]))


def test_unread_responses_hold_bounded_memory(start_broker: Any) -> None:
    """Pipelined requests with large responses, of clients that never read."""
    broker = start_broker(0, "queued.max.request.bytes=67108864", "socket.request.max.bytes=8388608")
    pid = broker.process.pid
    with ExitStack() as stack:
        admin = stack.enter_context(Peer(broker.address))
        for number in range(5):
            admin.create(f"{number:0200}", partitions=500)
        answer = admin.ask(METADATA, 12, topics=None)
        assert len(answer.topics) == 5
        before = resident_bytes(pid)
        clients = [stack.enter_context(Peer(broker.address, receive_buffer_bytes=4096)) for _ in range(150)]
        for client in clients:
            client.socket.setblocking(False)
            frames = b"".join(client.frame(METADATA, 12, topics=None) for _ in range(50))
            with suppress(OSError):
                client.socket.send(frames)
        highest = 0
        for _ in range(100):
            assert admin.ask(API_VERSIONS, 0).api_keys
            highest = max(highest, resident_bytes(pid))
            time.sleep(0.01)
        assert highest - before < 150 * MIB, f"{(highest - before) // MIB} MiB"
    until(lambda: resident_bytes(pid) - before < 100 * MIB)


# --- one address --------------------------------------------------------------------------------------------


@pytest.fixture
def flood() -> Iterator[Callable[[str, str], list[int]]]:
    """Connections from one address, opened and closed as fast as possible, in three threads."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def begin(address: str, source: str) -> list[int]:
        made = [0, 0, 0]

        def run(at: int) -> None:
            while not stop.is_set():
                try:
                    connect(address, source).close()
                    made[at] += 1
                except OSError:
                    time.sleep(0.001)

        threads.extend(threading.Thread(target=run, args=(at,), daemon=True) for at in range(3))
        for thread in threads:
            thread.start()
        return made

    yield begin
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)


@pytest.mark.skipif(not os.path.exists("/proc/net"), reason="127.0.0.2 is an address on Linux alone")
def test_a_flood_of_connections_from_one_address_does_not_keep_others_out(
    start_broker: Any, flood: Any
) -> None:
    """Bug 12: the rate is per address, so that one address cannot fill the accept queue."""
    broker: RunningBroker = start_broker(
        0, "max.connection.creation.rate=100", "max.connection.creation.rate.per.ip=20", host="0.0.0.0"
    )
    address = f"127.0.0.1:{broker.port}"
    made = flood(address, "127.0.0.2")
    until(lambda: sum(made) > 400)
    served = 0
    end = time.monotonic() + 4
    for number in itertools.count():
        if time.monotonic() > end:
            break
        with connect(address, f"127.0.0.{3 + number % 200}") as sock:
            sock.settimeout(3)
            sock.sendall(struct.pack(">ihhih", 10, API_VERSIONS, 0, 1, -1))
            assert sock.recv(4), "closed"
            served += 1
        time.sleep(0.02)
    assert served > 20
    print(f"{served} clients of other addresses served, {sum(made)} connections of the flood")


def test_connections_that_come_too_fast_wait_and_are_served(start_broker: Any) -> None:
    broker = start_broker(0, "max.connection.creation.rate.per.ip=10")
    started = time.monotonic()
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(broker.address)) for _ in range(25)]
        for peer in peers:
            assert peer.ask(API_VERSIONS, 0).api_keys
    # 10 at once, the others one every 0.1 s.
    assert time.monotonic() - started > 1.3


def test_connections_far_beyond_the_rate_are_closed(start_broker: Any) -> None:
    broker = start_broker(0, "max.connection.creation.rate.per.ip=2")
    with ExitStack() as stack:
        socks = [stack.enter_context(connect(broker.address)) for _ in range(60)]
        until(lambda: sum(map(is_closed, socks)) >= 30)
    until(lambda: any("max.connection.creation.rate.per.ip" in text for text in broker.said))


class Arrival:
    """The reader of one request, as far as the pool knows it."""

    is_broker = False

    def memory_granted(self, size: int) -> None:
        pass


def test_a_small_request_drops_no_other_while_one_large_request_is_in_the_core() -> None:
    loop = asyncio.new_event_loop()
    dropped: list[Any] = []
    held = 0
    pool = MemoryPool(
        loop, limit=32 * MIB, request_bytes_max=32 * MIB, held=lambda: held, held_answers=lambda: 0,
        drop=lambda reader, _reason: dropped.append(reader),
    )  # fmt: skip
    readers: list[Any] = [Arrival() for _ in range(4)]
    first, second, third, late = readers
    assert pool.may_grow(second, 8 * MIB)
    assert pool.may_grow(third, 8 * MIB)
    # It exceeds what large requests may use together: one at a time may. Then the core has it.
    assert pool.may_grow(first, 20 * MIB)
    pool.release(first)
    held = 20 * MIB
    assert pool.may_grow(late, MIB)
    assert dropped == []
    # Not without bound.
    for _ in range(40):
        pool.charge(late, MIB)
    assert dropped
    loop.close()
