"""Many fetches that wait: what each takes of memory, that time passes over them for nothing, and that none is left behind."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.ports.effects import SEND
from ottla.wire.encode import request_encoder
from ottla.wire.frames import ClientConnection

COUNT = 5000
#: The goal: a waiting fetch and the core's half of the connection it came on, together.
BYTES_EACH_MAX = 2048


@pytest.fixture
def traced() -> Iterator[Callable[[], int]]:
    """How many bytes are allocated since the test began."""
    gc.collect()
    tracemalloc.start()
    yield lambda: (gc.collect(), tracemalloc.get_traced_memory()[0])[1]
    tracemalloc.stop()


def fetch_frame(fields: dict[str, Any]) -> bytes:
    return ClientConnection("test").request(1, 12, request_encoder(1, 12)(fields))[1][4:]


def wait(driver: Any, frame: bytes) -> list[Any]:
    """One connection each, all with a fetch that waits."""
    connections = []
    for _ in range(COUNT):
        connection = driver.broker.connected("127.0.0.1:50000")
        driver.broker.receive(connection, memoryview(frame), driver.now_ms)
        connections.append(connection)
    assert not driver.broker.settle(driver.now_ms)
    assert not driver.broker.outbox
    return connections


@pytest.mark.parametrize("session_epoch", [-1, 0], ids=["without-session", "with-session"])
def test_a_waiting_fetch_takes_two_kilobytes_at_most_and_leaves_none_of_them(
    drive: Any, fetching: Any, traced: Any, session_epoch: int
) -> None:
    driver = drive(max_incremental_fetch_session_cache_slots=str(COUNT))
    driver.connect().create("t")
    frame = fetch_frame(fetching({("t", 0): 0}, max_wait=60_000, session_epoch=session_epoch))
    replica = driver.replica("t")
    before = traced()
    connections = wait(driver, frame)
    each = (traced() - before) / COUNT
    assert len(replica.watchers) == COUNT
    assert each <= BYTES_EACH_MAX, f"{each:.0f} bytes each"

    for connection in connections:
        driver.broker.disconnected(connection)
    connections.clear()
    assert not replica.watchers and not driver.broker.fetch_sessions.by_id
    driver.advance(60_016)
    # The tables of two dicts keep the room they once had.
    assert (traced() - before) / COUNT < 100


def test_time_passes_over_waiting_fetches_without_looking_at_them(drive: Any, fetching: Any) -> None:
    """Between now and their deadline the broker is woken for its own upkeep alone, however many wait."""

    def deadlines(driver: Any) -> int:
        count, end_ms = 0, driver.now_ms + 30_000
        while driver.broker.next_deadline_ms < end_ms:
            driver.now_ms = driver.broker.next_deadline_ms
            driver.broker.tick(driver.now_ms)
            driver.turn()
            count += 1
        return count

    idle, busy = drive(), drive()
    for driver in (idle, busy):
        driver.connect().create("t")
    wait(busy, fetch_frame(fetching({("t", 0): 0}, max_wait=60_000)))
    looked_at = busy.broker.hosting.by_name["t"].replicas[0].watchers.copy()
    assert deadlines(busy) == deadlines(idle)
    assert busy.broker.hosting.by_name["t"].replicas[0].watchers == looked_at


def test_each_waiting_fetch_is_answered_once_when_its_partition_moves(
    driver: Any, fetching: Any, batch: Any
) -> None:
    client = driver.connect()
    client.create("t")
    connections = wait(driver, fetch_frame(fetching({("t", 0): 0}, max_wait=60_000)))
    gone = set(connections[::10])
    broker = driver.broker
    producer = broker.connected("127.0.0.1:1")
    fields = {
        "acks": -1, "timeout": 30_000,
        "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": batch(b"v")}]}],
    }  # fmt: skip
    frame = ClientConnection("test").request(0, 12, request_encoder(0, 12)(fields))[1][4:]
    broker.receive(producer, memoryview(frame), driver.now_ms)
    # A slice of them a turn; those whose clients go while they stand in line get nothing.
    answered: list[Any] = []
    turns = 0
    more = True
    while more:
        more = broker.settle(driver.now_ms)
        answered += [effect[1] for effect in broker.outbox if effect[0] == SEND]
        broker.outbox.clear()
        turns += 1
        if turns == 1:
            gone -= set(answered)
            for connection in gone:
                broker.disconnected(connection)
    assert turns > 10
    assert sorted(map(id, answered)) == sorted(
        map(id, [producer, *(each for each in connections if each not in gone)])
    )
    assert not broker.fetch_sessions.woken and not driver.replica("t").watchers
