"""Compares the broker's cost per request with another checkout: did a change make requests more expensive?

    git worktree add /tmp/before COMMIT
    python -m bench.against /tmp/before [--instructions] [--only produce,fetch] [--cluster]

Both brokers run at the same time, each with the code of its checkout in this environment. They take turns in
alternating order. A figure is the CPU time of the broker process per request (or per MB): the mean of the
cheapest quarter of all turns, which are the turns that other processes disturbed least. Brokers and client
have a processor each. The brokers are started several times, because the memory layout of a process changes
its speed by one or two percent.

With `--instructions`, valgrind counts the instructions in user space. This takes longer, but does not depend
on other load. Reading the clock, which needs no system call without valgrind, looks cheaper than it is.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench import cluster, measure, ottla
from bench.members import OFFSET_COMMIT, Lines, frame
from bench.process import API_VERSIONS_V0, BrokerFailed, Process, free_port
from bench.raw import RawClient, RawProducer, RawReader, UnexpectedAnswer, fetch_frame
from ottla.wire.decode import decode_response

PROCESSORS: Final = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
HERE: Final = Path(__file__).resolve().parent.parent
CREATE_TOPICS: Final = (19, 7)
MIB: Final = 1 << 20
#: Message sizes of produce requests and fetch responses.
SMALL, HALF, LARGE = 100, 500_000, 1_000_000
IN_FLIGHT: Final = 8
CONSUMERS: Final = 50
CONNECTIONS: Final = 1000
IDLE_S: Final = 10.0
ROUNDS, TURNS = 3, 12
#: Turns with --instructions. The cheapest is used, because some contain periodic work.
COUNTED_TURNS: Final = 4
#: With valgrind, requests are about fifty times slower.
COUNTED_SHARE: Final = 0.3
VALGRIND: Final = ("valgrind", "--tool=callgrind", "--instr-atstart=no")

Run = Callable[[int], object]


class Committer(RawClient):
    """Commits one offset of a partition for a group without members."""

    def __init__(self, port: int, topic: str) -> None:
        row = {
            "partition_index": 0, "committed_offset": 1, "committed_leader_epoch": 0, "committed_metadata": "",
        }  # fmt: skip
        fields = {
            "group_id": "against", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
            "topics": [{"name": topic, "partitions": [row]}],
        }  # fmt: skip
        Lines(port).find_coordinator("against")
        # After the tags of the header: throttle time, one topic, its name, one partition, its number.
        position = 4 + 1 + 4 + 1 + 1 + len(topic) + 1 + 4
        super().__init__(port, frame(OFFSET_COMMIT, fields), position)


class Waiters:
    """Consumers whose fetches wait at the end of a partition, and a producer that completes all of them."""

    def __init__(self, port: int, topic: str) -> None:
        self._topic = topic
        self._producer = RawProducer(port, topic, SMALL)
        self._sockets = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(CONSUMERS)]
        self._barrier = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._offset = 0

    def run(self, count: int) -> None:
        for _ in range(count // CONSUMERS):
            request = fetch_frame(self._topic, self._offset, MIB, committed=False, wait_ms=60_000)
            for sock in self._sockets:
                sock.sendall(request)
            # After this response all fetches are waiting.
            self._barrier.sendall(API_VERSIONS_V0)
            answer(self._barrier)
            self._producer.round_trips_ns(1)
            for sock in self._sockets:
                answer(sock)
            self._offset += 1


def answer(sock: socket.socket) -> bytes:
    """One complete response, without its size."""
    size = sock.recv(4, socket.MSG_WAITALL)
    if len(size) < 4:
        raise UnexpectedAnswer("the broker closed the connection")
    return sock.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)


def trips(client: RawClient) -> Run:
    return client.round_trips_ns


def reader(port: int, topic: str, message_bytes: int) -> Run:
    """Fetches one message of this size repeatedly."""
    with RawProducer(port, topic, message_bytes) as producer:
        producer.round_trips_ns(1)
    return RawReader(port, topic, [0], message_bytes, committed=False).round_trips_ns


@dataclass(frozen=True)
class Load:
    """Requests of one kind. `begin(port, topic)` returns a function that sends a number of them."""

    name: str
    begin: Callable[[int, str], Run]
    #: Requests per turn, a multiple of `CONSUMERS`.
    size: int
    config: dict[str, str] = field(default_factory=dict)
    #: Bytes of one request, if the cost is reported per MB.
    message_bytes: int = 0

    @property
    def unit(self) -> str:
        return "MB" if self.message_bytes else "request"

    def per_unit(self, cost: float, count: int) -> float:
        return cost / count / (self.message_bytes / 1e6 if self.message_bytes else 1)


LOADS: Final = (
    Load("produce", lambda port, topic: trips(RawProducer(port, topic, SMALL)), 1000),
    Load(
        "produce-pipelined",
        lambda port, topic: partial(RawProducer(port, topic, SMALL).pipeline, in_flight=IN_FLIGHT),
        2000,
    ),
    Load("produce-500k", lambda port, topic: trips(RawProducer(port, topic, HALF)), 100, message_bytes=HALF),
    Load(
        "produce-durable",
        lambda port, topic: trips(RawProducer(port, topic, SMALL)),
        500,
        {"flush.policy": "durable"},
    ),
    Load("fetch", lambda port, topic: reader(port, topic, SMALL), 1000),
    Load("fetch-1m", lambda port, topic: reader(port, topic, LARGE), 200, message_bytes=LARGE),
    Load("fetch-woken", lambda port, topic: Waiters(port, topic).run, 1000),
    Load("commit", lambda port, topic: trips(Committer(port, topic)), 1000),
)
#: For a cluster, whose followers replicate what is produced.
CLUSTER_LOADS: Final = tuple(load for load in LOADS if load.name in ("produce", "produce-500k"))


class Side:
    """One of the two brokers or clusters."""

    def __init__(self, checkout: Path, directory: Path, loads: tuple[Load, ...], kind: str) -> None:
        self._checkout = checkout
        self._directory = directory
        self._loads = loads
        self._kind = kind
        self._runs: dict[str, Run] = {}
        self.broker: Process | cluster.Cluster

    def start(self) -> None:
        settings = {"log.flush.policy": "page-cache", "log.segment.bytes": "1073741824"}
        if self._kind == "cluster":
            self.broker = cluster.start_ottla(self._directory, settings, self._checkout)
        else:
            self._directory.mkdir(parents=True, exist_ok=True)
            under = (
                (*VALGRIND, f"--callgrind-out-file={self._directory / 'out'}")
                if self._kind == "counted"
                else ()
            )
            self.broker = ottla.start(
                self._directory, port=free_port(), settings=settings, checkout=self._checkout, under=under
            )
        self.broker.wait_ready()
        for load in self._loads:
            port = self._create(load)
            self._runs[load.name] = run = load.begin(port, load.name)
            run(max(CONSUMERS, load.size // 5))

    def _create(self, load: Load) -> int:
        """Create the topic. Returns the port of its leader."""
        first = self.broker.brokers[0] if isinstance(self.broker, cluster.Cluster) else self.broker
        topic = {
            "name": load.name, "num_partitions": 1, "replication_factor": self.broker.replicas,
            "configs": [{"name": name, "value": value} for name, value in load.config.items()],
        }  # fmt: skip
        with socket.create_connection(("127.0.0.1", first.port), timeout=60) as sock:
            sock.sendall(frame(CREATE_TOPICS, {"topics": [topic], "timeout": 30_000}))
            made: Any = decode_response(*CREATE_TOPICS, answer(sock)[5:], 0)
        if made.topics[0].error_code.value:
            raise BrokerFailed(f"the topic {load.name} could not be created: {made.topics[0]}")
        return self.broker.leader_port(load.name)

    def cost(self, load: Load, count: int) -> int:
        """CPU time in nanoseconds, or instructions, of this many requests."""
        if self._kind == "counted":
            return self._instructions(load, count)
        with measure.Stretch(self.broker.pids) as stretch:
            self._runs[load.name](count)
        return stretch.span.cpu_ns

    def _instructions(self, load: Load, count: int) -> int:
        pid = str(self.broker.pids[0])
        before = set(self._directory.glob("out.*"))
        control("-i", "on", pid)
        control("-z", pid)
        self._runs[load.name](count)
        control("-d", pid)
        control("-i", "off", pid)
        # Disabling the instrumentation may write another output file.
        [first, *_] = sorted(set(self._directory.glob("out.*")) - before)
        for line in first.read_text().splitlines():
            if line.startswith(("totals:", "summary:")):
                return int(line.split()[1])
        raise BrokerFailed(f"no figure in {first}")

    def idle(self) -> list[socket.socket]:
        port = self.broker.port if isinstance(self.broker, Process) else self.broker.brokers[0].port
        connections = []
        for _ in range(CONNECTIONS):
            sock = socket.create_connection(("127.0.0.1", port), timeout=60)
            sock.sendall(API_VERSIONS_V0)
            answer(sock)
            connections.append(sock)
        return connections

    def stop(self) -> None:
        self.broker.stop()
        shutil.rmtree(self._directory, ignore_errors=True)


def control(*options: str) -> None:
    subprocess.run(["callgrind_control", *options], check=True, capture_output=True)


def wakeups(pid: int) -> int:
    """The number of voluntary context switches of the process so far."""
    found = 0
    for task in (measure.PROC / str(pid) / "task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                found += int(line.split()[1])
    return found


@contextmanager
def both(other: Path, loads: tuple[Load, ...], kind: str) -> Iterator[list[Side]]:
    with tempfile.TemporaryDirectory(prefix="ottla-against-") as directory, ExitStack() as stack:
        sides = []
        stack.enter_context(processor(0))
        for name, checkout in (("other", other), ("here", HERE)):
            side = Side(checkout, Path(directory) / name, loads, kind)
            stack.callback(side.stop)
            side.start()
            sides.append(side)
        with processor(-1):
            yield sides


@contextmanager
def processor(at: int) -> Iterator[None]:
    """Pin this process and its children to one processor.

    Brokers use the first and the client the last. A request costs half as much if both share a processor,
    because no other core must be woken.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {PROCESSORS[at]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cheapest(costs: list[float]) -> float:
    """The mean of the cheapest quarter."""
    costs = sorted(costs)[: max(1, len(costs) // 4)]
    return sum(costs) / len(costs)


def compare(other: Path, loads: tuple[Load, ...], kind: str, rounds: int, turns: int) -> None:
    found: dict[str, tuple[list[float], list[float]]] = {load.name: ([], []) for load in loads}
    for _ in range(rounds):
        with both(other, loads, kind) as sides:
            for turn in range(turns):
                for load in loads:
                    count = load.size
                    if kind == "counted":
                        count = max(CONSUMERS, int(count * COUNTED_SHARE) // CONSUMERS * CONSUMERS)
                    order = (0, 1) if turn % 2 == 0 else (1, 0)
                    for at in order:
                        cost = sides[at].cost(load, count)
                        found[load.name][at].append(load.per_unit(cost, count))
    what = "instructions" if kind == "counted" else "µs of CPU"
    scale = 1.0 if kind == "counted" else 1000.0
    print(f"{what:32} {'other':>12} {'here':>12}   difference")
    for load in loads:
        before, after = (cheapest(costs) / scale for costs in found[load.name])
        label = f"{load.name}, per {load.unit}"
        print(f"{label:32} {before:12,.1f} {after:12,.1f}   {(after / before - 1) * 100:+.1f} %", flush=True)


def compare_idle(other: Path) -> None:
    """Measure both with a thousand idle connections, at the same time."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with both(other, (), "") as sides, ExitStack() as stack:
        for side in sides:
            for sock in side.idle():
                stack.enter_context(sock)
        pids = [side.broker.pids[0] for side in sides]
        time.sleep(1)
        before = [(measure.cpu_ns(pid), wakeups(pid)) for pid in pids]
        time.sleep(IDLE_S)
        after = [(measure.cpu_ns(pid), wakeups(pid)) for pid in pids]
        for name, pair in zip(("other", "here"), zip(before, after, strict=True), strict=True):
            cpu_ms = (pair[1][0] - pair[0][0]) / 1e6 / IDLE_S
            woken = (pair[1][1] - pair[0][1]) / IDLE_S
            print(
                f"{CONNECTIONS} idle connections, {name}: {cpu_ms:.2f} ms of CPU and {woken:.1f} wake-ups a "
                "second"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkout", type=Path, help="the other checkout")
    parser.add_argument("--instructions", action="store_true", help="count instructions with valgrind")
    parser.add_argument("--only", default="", help="names of loads, and idle")
    parser.add_argument("--cluster", action="store_true", help="three brokers with ZooKeeper each")
    parser.add_argument("--rounds", type=int, help="how often the brokers are started")
    parser.add_argument("--turns", type=int, help="turns in each round")
    options = parser.parse_args()
    if not measure.supported():
        print("CPU time of brokers can be measured on Linux only", file=sys.stderr)
        return 1
    only = options.only.split(",") if options.only else [*(load.name for load in LOADS), "idle"]
    kind = "cluster" if options.cluster else "counted" if options.instructions else ""
    loads = tuple(load for load in (CLUSTER_LOADS if options.cluster else LOADS) if load.name in only)
    other = options.checkout.resolve()
    rounds, turns = (1, COUNTED_TURNS) if kind == "counted" else (ROUNDS, TURNS)
    try:
        if loads:
            compare(other, loads, kind, options.rounds or rounds, options.turns or turns)
        if "idle" in only and not kind:
            compare_idle(other)
    except (BrokerFailed, UnexpectedAnswer, OSError, subprocess.CalledProcessError) as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
