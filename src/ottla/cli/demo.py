"""`ottla demo` (`make run`): an embedded broker with a producer, a consumer and a Spark pipeline.

Every message has a number and a creation time. The consumer checks that the numbers of each partition are
complete and in order, and shows the latency. The pipeline joins when Spark is up and copies all messages into
a second topic, where the consumer checks that each number exists once. --examples runs three more pipelines.
On a terminal the demo runs until Ctrl-C, elsewhere for a minute or two.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.demo_companion import Companion
from ottla.cli.demo_examples import check
from ottla.cli.demo_pipeline import COPY, TOPIC
from ottla.cli.options import AsJson
from ottla.cli.outcome import FAILED, Stop, print_json, say, show
from ottla.cli.progress import ProgressLine, percentile

if TYPE_CHECKING:
    from ottla.client.consumer.sync import Consumer
    from ottla.client.producer.sync import Producer

PARTITIONS = 3
DEFAULT_PORT = 9092
SECONDS_WITHOUT_TERMINAL = 60.0
#: Four pipelines need longer to start.
SECONDS_WITH_EXAMPLES = 120.0
#: Number of the message in its partition, and its creation time (ns since 1970).
PAYLOAD = struct.Struct(">qq")
PADDING = b"." * 184
TICK_S = 0.01
#: The percentiles cover this many last messages.
RECENT = 20_000


def register(parent: typer.Typer) -> None:
    parent.command()(demo)


def demo(
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            min=0.1,
            help="Duration; default: until Ctrl-C. Without a terminal 60 s, with --examples 120 s.",
        ),
    ] = None,
    rate: Annotated[int, typer.Option("--rate", min=1, max=100_000, help="Messages per second.")] = 2_000,
    port: Annotated[
        int, typer.Option("--port", help="Port of the broker; another free one if it is in use.")
    ] = DEFAULT_PORT,
    pipeline: Annotated[
        bool,
        typer.Option("--pipeline/--no-pipeline", help="Also run a Spark pipeline, if Spark is installed."),
    ] = True,
    examples: Annotated[
        Path | None,
        typer.Option(
            "--examples",
            metavar="DIR",
            help="Also run sessions.yaml, orders.yaml and wordcount.py of this folder, with data from its "
            "generate.py.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a broker, a producer, a consumer and a Spark pipeline.

    One line shows the progress. The summary says whether all messages arrived in order, and whether each
    passed the pipeline exactly once. The pipeline joins when Spark is up; without Spark the demo runs without
    it.

    \b
    Example:
      ottla demo
      ottla demo --examples examples/pipelines
      ottla demo --seconds 10 --rate 5000 --no-pipeline --json
    """
    if examples is not None:
        check(examples)
    stop = Stop()
    if seconds is None and not sys.stderr.isatty():
        seconds = SECONDS_WITHOUT_TERMINAL if examples is None else SECONDS_WITH_EXAMPLES
    listen_port = free_port(port)
    if listen_port != port:
        say(f"port {port} is in use; using {listen_port}")
    import ottla

    with (
        # A stopping Java process may still write into it.
        tempfile.TemporaryDirectory(prefix="ottla-demo-", ignore_cleanup_errors=True) as folder,
        ottla.Broker(str(Path(folder, "data")), port=listen_port) as broker,
    ):
        say(f"a broker listens on {broker.address}; try in another terminal:")
        say(f"  ottla consume {TOPIC} --bootstrap {broker.address} --offsets --format hex")
        companion = Companion(broker.address, Path(folder), examples) if pipeline else None
        with companion or contextlib.nullcontext():
            summary = run(broker.address, seconds, rate, stop, companion)
    if as_json:
        print_json(summary)
    else:
        show(
            f"{summary['produced']:,} messages produced, {summary['consumed']:,} consumed in "
            f"{summary['seconds']:.1f} s "
            f"({summary['messages_per_s']:,}/s); end to end p50 {summary['p50_ms']} ms, p99 "
            f"{summary['p99_ms']} ms; "
            f"{'all in order, none lost' if summary['in_order'] else 'SOME ARE LOST OR OUT OF ORDER'}"
        )
        if (through := summary["pipeline"]) is not None:
            show(f"pipeline: {_verdict(through)}")
        for example in (summary.get("examples") or {}).values():
            show(f"{example['file']}: {example['out']:,} {example['what']}")
    if not summary["ok"]:
        raise typer.Exit(FAILED)


def _verdict(through: dict[str, Any]) -> str:
    if through["state"] != "ran":
        return str(through["state"])
    verdict = "each exactly once" if through["exactly_once"] else "SOME ARE LOST OR DUPLICATED"
    return f"{through['rows']:,} messages passed through Spark, {verdict}"


def free_port(wanted: int) -> int:
    """This port of the loopback interface if it is free, otherwise any free one."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            # As the broker does: a port whose last connections are in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no free port on 127.0.0.1")


class Traffic:
    """The loops of producer and consumer, with their counters."""

    def __init__(self, rate: int) -> None:
        self.produced = [0] * PARTITIONS
        self.consumed = [0] * PARTITIONS
        #: How often the pipeline wrote each number, per partition.
        self.copies = [bytearray() for _ in range(PARTITIONS)]
        self.copied = 0
        self.out_of_order = 0
        self.latencies_ms: deque[float] = deque(maxlen=RECENT)
        self.failure: BaseException | None = None
        self.stop = threading.Event()
        self._rate = rate

    def produce(self, producer: Producer) -> None:
        """Send at the given rate, in small bursts, round robin over the partitions."""
        try:
            started = time.monotonic()
            sent = 0
            futures: deque[Any] = deque()
            while not self.stop.wait(TICK_S):
                due = int((time.monotonic() - started) * self._rate)
                while sent < due:
                    partition = sent % PARTITIONS
                    value = PAYLOAD.pack(self.produced[partition], time.time_ns()) + PADDING
                    futures.append(producer.send(TOPIC, value, partition=partition))
                    self.produced[partition] += 1
                    sent += 1
                while futures and futures[0].done():
                    futures.popleft().result()
            producer.flush(30)
            for future in futures:
                future.result(0)
        except BaseException as error:
            self.failure = error
            self.stop.set()

    def consume(self, consumer: Consumer) -> None:
        """Poll once and check the messages."""
        for tp, records in consumer.poll(100, 5_000).items():
            if tp.topic == COPY:
                self._count(tp.partition, records)
                continue
            now_ns = time.time_ns()
            for record in records:
                number, made_ns = PAYLOAD.unpack_from(record.value or bytes(PAYLOAD.size))
                if number != self.consumed[tp.partition]:
                    self.out_of_order += 1
                self.consumed[tp.partition] = number + 1
                self.latencies_ms.append((now_ns - made_ns) / 1e6)

    def _count(self, partition: int, records: Iterable[Any]) -> None:
        copies = self.copies[partition]
        for record in records:
            number, _ = PAYLOAD.unpack_from(record.value)
            if number >= len(copies):
                copies.extend(bytes(number + 1 - len(copies)))
            copies[number] = min(copies[number] + 1, 255)
            self.copied += 1

    def exactly_once(self) -> bool:
        """Whether the pipeline wrote each produced message once, and nothing else."""
        return all(
            len(copies) == count and copies.count(1) == count
            for copies, count in zip(self.copies, self.produced, strict=True)
        )

    def behind(self) -> int:
        return sum(self.produced) - sum(self.consumed)


def run(
    address: str, seconds: float | None, rate: int, stop: Stop, companion: Companion | None
) -> dict[str, Any]:
    """Produce and consume until the time is up or Ctrl-C; returns the summary. A companion adds pipelines."""
    from ottla.client.admin.sync import Admin
    from ottla.client.consumer.sync import Consumer
    from ottla.client.producer.sync import Producer

    topics = (TOPIC, COPY) if companion is not None else (TOPIC,)
    with Admin(address) as admin:
        for topic in topics:
            admin.create_topic(topic, PARTITIONS)
    line = ProgressLine()
    traffic = Traffic(rate)
    started = time.monotonic()
    with (
        Producer(address) as producer,
        # The pipeline writes in transactions.
        Consumer(address, auto_offset_reset="earliest", isolation_level="read_committed") as consumer,
    ):
        consumer.assign((topic, partition) for topic in topics for partition in range(PARTITIONS))
        sender = threading.Thread(target=traffic.produce, args=(producer,), name="demo-producer")
        sender.start()
        try:
            if companion is not None:
                companion.begin(line)
            while not (stop.asked or traffic.stop.is_set()):
                if seconds is not None and time.monotonic() - started >= seconds:
                    break
                traffic.consume(consumer)
                if companion is not None:
                    companion.look()
                if line.due():
                    line.show(_progress(traffic, companion, time.monotonic() - started))
            if stop.asked:
                line.note("stopping")
        finally:
            traffic.stop.set()
            sender.join()
        if traffic.failure is not None:
            line.clear()
            raise traffic.failure
        elapsed = time.monotonic() - started
        deadline = time.monotonic() + 30
        while traffic.behind() > 0 and time.monotonic() < deadline:
            traffic.consume(consumer)
        through = companion.finish(traffic, consumer) if companion is not None else None
    line.clear()
    recent = sorted(traffic.latencies_ms)
    consumed = sum(traffic.consumed)
    in_order = traffic.behind() == 0 and not traffic.out_of_order
    return {
        "produced": sum(traffic.produced),
        "consumed": consumed,
        "seconds": round(elapsed, 2),
        "messages_per_s": round(consumed / max(elapsed, 1e-9)),
        "p50_ms": round(percentile(recent, 0.5), 2),
        "p99_ms": round(percentile(recent, 0.99), 2),
        "in_order": in_order,
        "pipeline": through,
        **(companion.outcome() if companion is not None else {}),
        "ok": in_order and (through is None or through["exactly_once"] is not False),
    }


def _progress(traffic: Traffic, companion: Companion | None, elapsed: float) -> str:
    recent = sorted(traffic.latencies_ms)
    pipeline = f"{companion.words()}  " if companion is not None else ""
    return (
        f"{int(elapsed) // 60:02}:{int(elapsed) % 60:02}  produced {sum(traffic.produced):,}  "
        f"consumed {sum(traffic.consumed):,}  behind {max(traffic.behind(), 0):,}  "
        f"p50 {percentile(recent, 0.5):.2f} ms  p99 {percentile(recent, 0.99):.2f} ms  {pipeline}Ctrl-C stops"
    )
