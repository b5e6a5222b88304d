"""How the cost of a request grows with partitions, connections, waiting fetches and the size of a log.

    python -m bench.growth [--quick] [--only ottla] [--docs]

A broker is started for each of the four dimensions, which grow step by step. After each step the broker's CPU
per request is measured for four kinds of requests on raw sockets: produce, fetch, metadata of one topic, and
ListOffsets. The goal is a flat line. `make bench` runs it at the end.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

from bench import docs, kafka, measure, ottla, plot, table
from bench.process import BrokerFailed, Process, free_port
from bench.raw import one_message_batch
from bench.rounds import say
from ottla.records.record import Record, encode_batch
from ottla.wire.decode import decode_response
from ottla.wire.encode import request_encoder

#: (key, version): supported by both brokers, with topics by name.
PRODUCE, FETCH, LIST_OFFSETS, METADATA, CREATE_TOPICS = (0, 9), (1, 12), (2, 7), (3, 9), (19, 5)
KINDS: Final = {"produce": PRODUCE, "fetch": FETCH, "metadata": METADATA, "list offsets": LIST_OFFSETS}
IN_FLIGHT: Final = 8
REPEATS: Final = 3
#: Different requests of one kind that are prepared.
FRAMES_MAX: Final = 2000
CREATE_AT_ONCE: Final = 1000
#: The messages of the large log, and the smallest fetch from it.
FILL_RECORDS: Final = 16
FILL_AT_ONCE: Final = 32
WAIT_MS: Final = 300_000
MIB: Final = 1 << 20


class NotAnswered(RuntimeError):
    """A request was rejected, or its connection was closed."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The steps of each dimension."""

    partitions: tuple[int, ...] = (1, 10, 100, 1000, 10_000)
    # Below eight connections, requests in flight share reads, which is not growth.
    connections: tuple[int, ...] = (10, 100, 1000, 8000)
    waiting: tuple[int, ...] = (0, 100, 1000, 10_000, 100_000)
    log_mib: tuple[int, ...] = (1, 10, 100, 1000, 3000)
    requests: int = 2000
    fetches_per_connection: int = 100
    # Warm-up requests of each kind before the first step: a JVM compiles code after some thousand executions.
    warm_requests: int = 500


QUICK = Sizes((1, 100, 1000), (10, 100, 1000), (0, 100, 10_000), (1, 100, 1000), 500)
KAFKA_QUICK = Sizes((1, 100), (10, 100), (0, 100), (1, 100), 500, 1, 2000)
#: Kafka answers the requests of a connection in order, so each waiting fetch needs its own connection. Its
#: partitions take seconds per thousand.
KAFKA = Sizes((1, 10, 100, 1000), (10, 100, 1000), (0, 100, 1000), (1, 10, 100, 1000), 2000, 1, 8000)

#: dimension -> kind -> broker -> [(step, µs)]
Curves = dict[str, dict[str, dict[str, list[tuple[int, float]]]]]


def frame(api: tuple[int, int], fields: dict[str, Any]) -> bytes:
    key, version = api
    body = request_encoder(key, version)(fields)
    # Every version used here has a flexible header, without tags.
    return struct.pack(">ihhihB", 11 + len(body), key, version, 1, -1, 0) + body


def produce(topic: str, partition: int, batch: bytes) -> bytes:
    rows = [{"index": partition, "records": batch}]
    topics = [{"name": topic, "partition_data": rows}]
    return frame(PRODUCE, {"acks": -1, "timeout": 30_000, "topic_data": topics})


def fetch(topic: str, partition: int, offset: int, max_wait_ms: int = 0) -> bytes:
    row = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1000}
    row |= {"current_leader_epoch": -1, "log_start_offset": -1, "last_fetched_epoch": -1}
    topics = [{"topic": topic, "partitions": [row]}]
    return frame(
        FETCH,
        {
            "replica_id": -1, "max_wait": max_wait_ms, "min_bytes": 1, "max_bytes": 1000, "isolation_level": 0,
            "session_id": 0, "session_epoch": -1, "topics": topics, "forgotten_topics_data": [], "rack_id": "",
        },
    )  # fmt: skip


def metadata(topic: str) -> bytes:
    return frame(METADATA, {"topics": [{"name": topic}], "allow_auto_topic_creation": False})


def list_offsets(topic: str, partition: int, timestamp: int) -> bytes:
    row = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
    topics = [{"name": topic, "partitions": [row]}]
    return frame(LIST_OFFSETS, {"replica_id": -1, "isolation_level": 0, "topics": topics})


def exactly(connection: socket.socket, size: int) -> bytes:
    data = connection.recv(size)
    while len(data) < size:
        more = connection.recv(size - len(data)) if data else b""
        if not more:
            raise NotAnswered("the broker closed the connection")
        data += more
    return data


class Peer:
    """A broker under test, and the connections to it."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.sockets = [self.connect()]

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.process.port), timeout=60)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def close(self) -> None:
        for connection in self.sockets:
            connection.close()

    def answer(self, connection: socket.socket) -> bytes:
        (size,) = struct.unpack(">i", exactly(connection, 4))
        return exactly(connection, size)

    def ask(self, request: bytes, api: tuple[int, int]) -> Any:
        self.sockets[0].sendall(request)
        body = self.answer(self.sockets[0])
        return decode_response(*api, body[5:], 0)

    def create(self, topic: str, partitions: int) -> None:
        row = {"name": topic, "num_partitions": partitions, "replication_factor": 1}
        [created] = self.ask(frame(CREATE_TOPICS, {"topics": [row], "timeout": 60_000}), CREATE_TOPICS).topics
        if created.error_code.value:
            raise NotAnswered(f"{topic} was not created: {created.error_message}")

    def check(self, kind: str, request: bytes) -> None:
        """Check one response: an error is cheap, and would look fast."""
        deadline = time.monotonic() + 30
        while True:
            response = self.ask(request, KINDS[kind])
            if kind == "metadata":
                codes = [topic.error_code.value for topic in response.topics]
            else:
                topics = response.topics if kind == "list offsets" else response.responses
                rows = [
                    getattr(topic, "partition_responses" if kind == "produce" else "partitions")
                    for topic in topics
                ]
                codes = [row.error_code.value for of_topic in rows for row in of_topic]
            if not any(codes):
                return
            if time.monotonic() > deadline:
                raise NotAnswered(f"{kind} was refused with error codes {codes}")
            time.sleep(0.05)  # the leaders of a new topic may not be known yet

    def pipeline(self, requests: Sequence[bytes]) -> None:
        for start in range(0, len(requests), FILL_AT_ONCE):
            some = requests[start : start + FILL_AT_ONCE]
            self.sockets[0].sendall(b"".join(some))
            for _ in some:
                self.answer(self.sockets[0])

    def cost_us(self, frames: Sequence[bytes], requests: int) -> float:
        """Broker CPU per request: the best of several runs, in which all connections take turns."""
        best = float("inf")
        turns, requests_left = cycle(self.sockets), cycle(frames)
        for _ in range(REPEATS):
            with measure.Stretch(self.process.pids) as stretch:
                for _ in range(requests // IN_FLIGHT):
                    asked = list(islice(turns, IN_FLIGHT))
                    for connection, request in zip(asked, islice(requests_left, IN_FLIGHT), strict=True):
                        connection.sendall(request)
                    for connection in asked:
                        self.answer(connection)
            best = min(best, stretch.span.cpu_ns / (requests // IN_FLIGHT * IN_FLIGHT) / 1000)
        return best


Report = Callable[[int, dict[str, list[bytes]]], None]


def small_batch() -> bytes:
    return one_message_batch(bytes(100), time.time_ns() // 1_000_000)


def requests_to(partitions: Sequence[tuple[str, int]]) -> dict[str, list[bytes]]:
    """Requests of every kind that rotate through these partitions."""
    step = max(1, len(partitions) // FRAMES_MAX)
    some = partitions[::step]
    batch = small_batch()
    return {
        "produce": [produce(topic, number, batch) for topic, number in some],
        "fetch": [fetch(topic, number, 0) for topic, number in some],
        # For one topic with one partition: more partitions in the response are not growth of the request.
        "metadata": [metadata(partitions[0][0])],
        "list offsets": [list_offsets(topic, number, -1) for topic, number in some],
    }


def grow_partitions(peer: Peer, sizes: Sizes, report: Report) -> None:
    there: list[tuple[str, int]] = []
    batch = small_batch()
    for wanted in sizes.partitions:
        while len(there) < wanted:
            topic, count = f"t{len(there)}", min(CREATE_AT_ONCE, wanted - len(there))
            peer.create(topic, count)
            # Each gets a record, because an unwritten log may have no files. When the last has a leader, all
            # have.
            peer.check("produce", produce(topic, count - 1, batch))
            peer.pipeline([produce(topic, number, batch) for number in range(count)])
            there += [(topic, number) for number in range(count)]
        report(wanted, requests_to(there))


def grow_connections(peer: Peer, sizes: Sizes, report: Report) -> None:
    peer.create("t", 1)
    requests = requests_to([("t", 0)])
    for wanted in sizes.connections:
        while len(peer.sockets) < wanted:
            peer.sockets.append(peer.connect())
        report(wanted, requests)


def grow_waiting(peer: Peer, sizes: Sizes, report: Report) -> None:
    peer.create("t", 1)
    peer.create("quiet", 1)
    requests = requests_to([("t", 0)])
    peer.check("produce", requests["produce"][0])
    peer.check("fetch", fetch("quiet", 0, 0))
    request = fetch("quiet", 0, 0, WAIT_MS)
    waiting = 0
    with ExitStack() as stack:
        for wanted in sizes.waiting:
            while waiting < wanted:
                count = min(sizes.fetches_per_connection, wanted - waiting)
                connection = stack.enter_context(peer.connect())
                connection.sendall(request * count)
                waiting += count
            report(wanted, requests)


def grow_log(peer: Peer, sizes: Sizes, report: Report) -> None:
    peer.create("t", 1)
    value = bytes(1000)
    begin_ms = now_ms = time.time_ns() // 1_000_000 - 100_000_000
    written = offset = 0
    for wanted in sizes.log_mib:
        while written < wanted * MIB:
            now_ms += 1
            batch = encode_batch([Record(number, now_ms, None, value) for number in range(FILL_RECORDS)])
            request = produce("t", 0, batch)
            if not written:
                peer.check("produce", request)
            peer.pipeline([request] * FILL_AT_ONCE)
            written += len(batch) * FILL_AT_ONCE
            offset += FILL_RECORDS * FILL_AT_ONCE
        # Spread over the whole log, so that no lookup benefits from an earlier one.
        spread = [(number * 7919) % FRAMES_MAX / FRAMES_MAX for number in range(FRAMES_MAX)]
        span_ms = now_ms - begin_ms
        requests = requests_to([("t", 0)])
        requests["fetch"] = [fetch("t", 0, int(share * offset)) for share in spread]
        requests["list offsets"] = [list_offsets("t", 0, begin_ms + int(share * span_ms)) for share in spread]
        report(wanted, requests)


DIMENSIONS: Final[dict[str, Callable[[Peer, Sizes, Report], None]]] = {
    "partitions": grow_partitions,
    "connections": grow_connections,
    "waiting fetches": grow_waiting,
    "log size, MiB": grow_log,
}


def run(
    brokers: dict[str, Callable[[Path], Process]], sizes: dict[str, Sizes], work_dir: Path, curves: Curves
) -> None:
    """Measure all dimensions of all brokers; `curves` is filled as it proceeds."""
    for dimension, grow in DIMENSIONS.items():
        for name, start in brokers.items():
            directory = work_dir / f"{name}-{dimension.split()[0]}"
            process = start(directory)
            try:
                process.wait_ready()
                peer = Peer(process)

                def report(
                    step: int,
                    requests: dict[str, list[bytes]],
                    *,
                    peer: Peer = peer,
                    name: str = name,
                    dimension: str = dimension,
                    warm: set[str],
                ) -> None:
                    found = []
                    for kind, frames in requests.items():
                        peer.check(kind, frames[0])
                        if kind not in warm:
                            warm.add(kind)
                            peer.cost_us(frames, sizes[name].warm_requests)
                        us = peer.cost_us(frames, sizes[name].requests)
                        curves.setdefault(dimension, {}).setdefault(kind, {}).setdefault(name, []).append(
                            (step, us)
                        )
                        found.append(f"{kind} {us:.1f}")
                    say(f"growth, {dimension} {step:,}, {name}: {', '.join(found)} µs")

                grow(peer, sizes[name], partial(report, warm=set()))
                peer.close()
            finally:
                process.stop()
                shutil.rmtree(directory, ignore_errors=True)


def start_ottla(directory: Path) -> Process:
    settings = {"log.flush.policy": "page-cache", "max.connection.creation.rate": "1000000"}
    return ottla.start(directory, port=free_port(), settings=settings)


def kafka_starter(distribution: kafka.Distribution) -> Callable[[Path], Process]:
    return lambda directory: distribution.start(directory, port=free_port(), settings={})


def render(curves: Curves) -> str:
    """One table per dimension: kinds of requests as rows, steps as columns."""
    lines: list[str] = []
    for dimension, kinds in curves.items():
        brokers = {name: None for of_kind in kinds.values() for name in of_kind}
        steps = sorted(
            {step for of_kind in kinds.values() for curve in of_kind.values() for step, _ in curve}
        )
        lines += ["", f"| {dimension} | " + " | ".join(f"{step:,}" for step in steps) + " |"]
        lines.append("|---|" + "---:|" * len(steps))
        for kind, of_kind in kinds.items():
            for name in brokers:
                found = dict(of_kind.get(name, []))
                cells = [f"{found[step]:.1f}" if step in found else "–" for step in steps]
                lines.append(f"| {kind}, {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines).lstrip("\n")


def write_docs(curves: Curves) -> None:
    (docs.FOLDER / "growth.svg").write_text(plot.render(curves, "broker CPU, µs per request"))
    picture = "![CPU per request over partitions, connections, waiting fetches and log size](growth.svg)"
    docs.write("growth", f"broker CPU in µs per request.\n\n{picture}\n\n{render(curves)}")


def measured(only: str | None, *, quick: bool, work_dir: Path) -> Curves:
    """The curves of ottla and, if it is available and selected, of Kafka."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    brokers: dict[str, Callable[[Path], Process]] = {}
    if only != table.KAFKA:
        brokers[table.OTTLA] = start_ottla
    if only != table.OTTLA:
        try:
            brokers[table.KAFKA] = kafka_starter(kafka.fetch())
        except kafka.KafkaUnavailable as error:
            say(f"Apache Kafka is left out: {error}")
    curves: Curves = {}
    run(
        brokers,
        {table.OTTLA: QUICK if quick else Sizes(), table.KAFKA: KAFKA_QUICK if quick else KAFKA},
        work_dir,
        curves,
    )
    return curves


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.growth",
        description="Measures how CPU per request grows with partitions, connections, waiting fetches and log size.",
        epilog="example: python -m bench.growth --only ottla --docs",
    )
    parser.add_argument("--quick", action="store_true", help="fewer and smaller steps")
    parser.add_argument("--only", choices=[table.KAFKA, table.OTTLA], help="measure one broker alone")
    parser.add_argument("--docs", action="store_true", help="write docs/growth.svg and its table")
    options = parser.parse_args()
    if not measure.supported():
        print("error: the benchmark reads CPU and memory from /proc: run it on Linux", file=sys.stderr)
        return 2
    begin = time.monotonic()
    work_dir = Path(tempfile.mkdtemp(prefix="bench-growth-"))
    try:
        curves = measured(options.only, quick=options.quick, work_dir=work_dir)
    except (BrokerFailed, NotAnswered, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)
    print(render(curves))
    say(f"done in {time.monotonic() - begin:.0f} s")
    if options.docs:
        write_docs(curves)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
