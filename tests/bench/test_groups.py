"""The members for coordinator measurements, on a real broker, in small numbers."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bench import group_loads, groups, members, ottla
from bench.process import Process, free_port
from bench.workloads import WorkloadFailed

SIZES = groups.Sizes(
    members=12, partitions=12, groups=5, heartbeats_s=0.5, connections=4, commits_s=0.2
)  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    settings = {"log.flush.policy": "page-cache", **groups.SETTINGS, **groups.OTTLA_SETTINGS}
    directory: Path = tmp_path_factory.mktemp("broker")
    process = ottla.start(directory, port=free_port(), settings=settings)
    try:
        process.wait_ready()
        groups.prepare(process, SIZES)
        yield process
    finally:
        process.stop()


def test_a_round_has_every_figure(broker: Process) -> None:
    found = groups.round_of(broker, SIZES, 1, {"flush.policy": "durable"})
    assert found.keys() >= {"settle_classic_s", "settle_consumer_cpu_s", "durable_spread_commit_p99_ms"}
    assert all(value > 0 for value in found.values())


def test_heartbeats_are_as_many_as_they_must_be(broker: Process) -> None:
    found = groups.heartbeat(broker, SIZES)
    # Ten members, every three seconds.
    assert found["heartbeats_s"] <= 10 / 3
    assert found["heartbeat_core_percent"] > 0


def test_work_that_fails_says_why(broker: Process) -> None:
    with pytest.raises(WorkloadFailed, match="error codes"):
        # Of a topic that is not there.
        groups.work(broker, "commits", "refused", "no-such-topic", 1, 1, 0.1)


def test_a_group_is_settled_when_all_are_in_one_generation() -> None:
    group = members.ClassicGroup("g", 2, "t")
    group.joins(1)
    group.joins(2)
    assert not group.is_settled
    group.joins(2)
    assert group.is_settled


class Answers(threading.Thread):
    """A broker that says the same whatever it is asked, in pieces."""

    def __init__(self, body: bytes) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.body = body

    def run(self) -> None:
        with suppress(ConnectionError), self.listener, self.listener.accept()[0] as connection:
            while connection.recv(4096):
                answer = struct.pack(">iib", len(self.body) + 5, 1, 0) + self.body
                connection.sendall(answer[:6])
                connection.sendall(answer[6:])


@pytest.mark.parametrize(
    ("codes", "is_good"), [((0,), True), ((25,), False), ((0, 0), False)], ids=["good", "refused", "two rows"]
)
def test_the_first_answer_to_a_commit_is_looked_at(codes: tuple[int, ...], is_good: bool) -> None:
    rows = b"".join(struct.pack(">ihb", 0, code, 0) for code in codes)
    body = struct.pack(">ib", 0, 2) + b"\x02t" + bytes((len(codes) + 1,)) + rows + b"\0\0"
    peer = Answers(body)
    peer.start()
    with socket.create_connection(("127.0.0.1", peer.port)) as sock:
        if is_good:
            assert group_loads._first_answer(sock, b"commit")[9:] == body
        else:
            with pytest.raises(members.NotAnswered):
                group_loads._first_answer(sock, b"commit")
    peer.join(10)
