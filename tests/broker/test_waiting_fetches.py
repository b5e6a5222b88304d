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
    looked_at = busy.broker.partitions.by_name["t"].replicas[0].watchers.copy()
    assert deadlines(busy) == deadlines(idle)
    assert busy.broker.partitions.by_name["t"].replicas[0].watchers == looked_at


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


def settled(driver: Any) -> int:
    """How many answers one turn sends."""
    driver.broker.settle(driver.now_ms)
    outbox, driver.broker.outbox = driver.broker.outbox, []
    return sum(effect[0] == SEND for effect in outbox)


def test_fetches_of_many_partitions_whose_time_is_up_are_answered_in_several_turns(
    drive: Any, fetching: Any
) -> None:
    driver = drive()
    driver.connect().create("t", 500)
    frame = fetch_frame(fetching({("t", number): 0 for number in range(500)}, max_wait=100, session_epoch=-1))
    for _ in range(100):
        driver.broker.receive(driver.broker.connected("127.0.0.1:50000"), memoryview(frame), driver.now_ms)
    driver.turn()
    driver.now_ms += 200
    driver.broker.tick(driver.now_ms)
    turns = [settled(driver)]
    while sum(turns) < 100:
        turns.append(settled(driver))
        assert turns[-1], "some are not answered"
    assert max(turns) <= 20


def test_pipelined_fetches_of_many_partitions_do_not_all_wait(drive: Any, fetching: Any) -> None:
    driver = drive()
    client = driver.connect()
    client.create("t", 200)
    fields = fetching({("t", number): 0 for number in range(200)}, max_wait=60_000, session_epoch=-1)
    for _ in range(50):
        client.send(1, 12, **fields)
    assert driver.broker.fetch_sessions.held == 16 * 200
    driver.advance(61_000)
    assert len(client.answers) == 50
    assert driver.broker.fetch_sessions.held == 0


def test_partitions_held_for_fetches_are_bounded(
    drive: Any, fetching: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.broker.requests.fetch_session.FETCH_PARTITIONS_MAX", 1000)
    driver = drive()
    driver.connect().create("t", 300)
    sessions = driver.broker.fetch_sessions
    fields = fetching({("t", number): 0 for number in range(300)}, max_wait=0, session_epoch=0)
    clients = [driver.connect() for _ in range(5)]
    given = [client.ask(1, 12, **fields).session_id != 0 for client in clients]
    assert given == [True, True, True, False, False]
    small = driver.connect()
    small.send(1, 12, **fetching({("t", 0): 0}, max_wait=60_000, session_epoch=-1))
    assert small.answers == [], "a small fetch waits nevertheless"
    large = driver.connect()
    large.send(1, 12, **{**fields, "max_wait": 60_000, "session_epoch": -1})
    assert len(large.answers) == 1, "a large one is answered at once"
    for client in [*clients, small, large]:
        client.disconnect()
    assert sessions.held == 0 and not driver.replica("t").watchers


def test_a_fetch_of_many_logs_that_are_not_there_yet_creates_them_in_several_turns(
    drive: Any, fetching: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.broker.storage.log_opener._CREATE_MAX", 0)
    driver = drive()
    driver.are_proposals_held = True
    client = driver.connect()
    client.send(19, topics=[{"name": "t", "num_partitions": 200, "replication_factor": 1}], timeout=60_000)
    held, driver.held_proposals = driver.held_proposals, []
    for _kind, records, done in held:
        driver.broker.committed(records, driver.now_ms)
        done(None)
    replicas = driver.broker.partitions.by_name["t"].replicas.values()
    assert not any(replica.opened for replica in replicas)
    frame = fetch_frame(fetching({("t", number): 0 for number in range(200)}, max_wait=0, session_epoch=-1))
    connection = driver.broker.connected("127.0.0.1:50000")
    driver.broker.receive(connection, memoryview(frame), driver.now_ms)
    opened = sum(replica.opened for replica in replicas)
    assert opened <= 20, "too many in one turn"
    answered = False
    while not answered:
        driver.broker.settle(driver.now_ms)
        outbox, driver.broker.outbox = driver.broker.outbox, []
        answered = any(effect[0] == SEND and effect[1] is connection for effect in outbox)
        before, opened = opened, sum(replica.opened for replica in replicas)
        assert opened - before <= 20, "too many in one turn"
        assert opened > before or answered
    assert opened == 200
