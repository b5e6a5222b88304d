"""`ottla demo`, which `make run` runs: an embedded broker, a topic, a live producer and a live consumer.

Every message carries a number and the time it was made; the consumer checks that each partition's numbers come in
order and none is missing, and shows how long they took. On a terminal it runs until Ctrl-C, elsewhere for a minute.
"""

from __future__ import annotations

import socket
import struct
import sys
import tempfile
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.options import AsJson
from ottla.cli.outcome import FAILED, Stop, print_json, say
from ottla.cli.progress import ProgressLine, percentile

if TYPE_CHECKING:
    from ottla.client.consumer.blocking import Consumer
    from ottla.client.producer.blocking import Producer

TOPIC = "demo"
PARTITIONS = 3
DEFAULT_PORT = 9092
SECONDS_WITHOUT_TERMINAL = 60.0
#: Number of the message in its partition, and when it was made (ns since 1970).
PAYLOAD = struct.Struct(">qq")
PADDING = b"." * 184
TICK_S = 0.01
#: Latencies of so many last messages make the percentiles.
RECENT = 20_000


def register(parent: typer.Typer) -> None:
    parent.command()(demo)


def demo(
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", min=0.1, help="How long; without it until Ctrl-C, or 60 s when not on a terminal."
        ),
    ] = None,
    rate: Annotated[int, typer.Option("--rate", min=1, max=100_000, help="Messages a second.")] = 2_000,
    port: Annotated[
        int, typer.Option("--port", help="Where to listen; a free port is taken if it is in use.")
    ] = DEFAULT_PORT,
    as_json: AsJson = False,
) -> None:
    """Run a broker, a producer and a consumer in this process.

    One line shows how they are getting on; the summary tells whether every message came, once and in order.

    \b
    Example:
      ottla demo
      ottla demo --seconds 10 --rate 5000 --json
    """
    stop = Stop()
    if seconds is None and not sys.stderr.isatty():
        seconds = SECONDS_WITHOUT_TERMINAL
    listen_port = free_port(port)
    if listen_port != port:
        say(f"port {port} is taken; using {listen_port}")
    import ottla

    with (
        tempfile.TemporaryDirectory(prefix="ottla-demo-") as folder,
        ottla.Broker(folder, port=listen_port) as broker,
    ):
        say(f"a broker listens on {broker.address}; from another terminal try")
        say(f"  ottla consume {TOPIC} --bootstrap {broker.address} --offsets --format hex")
        summary = run(broker.address, seconds, rate, stop)
    if as_json:
        print_json(summary)
    else:
        print(
            f"{summary['produced']:,} messages produced, {summary['consumed']:,} consumed in {summary['seconds']:.1f} s "
            f"({summary['messages_per_s']:,}/s); end to end p50 {summary['p50_ms']} ms, p99 {summary['p99_ms']} ms; "
            f"{'all in order, none lost' if summary['ok'] else 'SOME WERE LOST OR OUT OF ORDER'}"
        )
    if not summary["ok"]:
        raise typer.Exit(FAILED)


def free_port(wanted: int) -> int:
    """That port of the loopback interface if it is free, else any free one."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            # As the broker binds: a port whose last connections are still closing is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no free port on 127.0.0.1")


class Traffic:
    """The producer's and the consumer's loops, and what they have seen."""

    def __init__(self, rate: int) -> None:
        self.produced = [0] * PARTITIONS
        self.consumed = [0] * PARTITIONS
        self.out_of_order = 0
        self.latencies_ms: deque[float] = deque(maxlen=RECENT)
        self.failure: BaseException | None = None
        self.stop = threading.Event()
        self._rate = rate

    def produce(self, producer: Producer) -> None:
        """Send at the rate, in small bursts, round robin over the partitions."""
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
        """Take what is there and check it."""
        for tp, records in consumer.poll(100, 5_000).items():
            now_ns = time.time_ns()
            for record in records:
                number, made_ns = PAYLOAD.unpack_from(record.value or bytes(PAYLOAD.size))
                if number != self.consumed[tp.partition]:
                    self.out_of_order += 1
                self.consumed[tp.partition] = number + 1
                self.latencies_ms.append((now_ns - made_ns) / 1e6)

    def behind(self) -> int:
        return sum(self.produced) - sum(self.consumed)


def run(address: str, seconds: float | None, rate: int, stop: Stop) -> dict[str, Any]:
    """Produce and consume until the time is up or Ctrl-C; gives the summary."""
    from ottla.client.admin.blocking import Admin
    from ottla.client.consumer.blocking import Consumer
    from ottla.client.producer.blocking import Producer

    with Admin(address) as admin:
        admin.create_topic(TOPIC, PARTITIONS)
    line = ProgressLine()
    traffic = Traffic(rate)
    started = time.monotonic()
    with Producer(address) as producer, Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign((TOPIC, partition) for partition in range(PARTITIONS))
        sender = threading.Thread(target=traffic.produce, args=(producer,), name="demo-producer")
        sender.start()
        try:
            while not (stop.asked or traffic.stop.is_set()):
                if seconds is not None and time.monotonic() - started >= seconds:
                    break
                traffic.consume(consumer)
                if line.due():
                    line.show(_progress(traffic, time.monotonic() - started))
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
    line.clear()
    recent = sorted(traffic.latencies_ms)
    consumed = sum(traffic.consumed)
    return {
        "produced": sum(traffic.produced),
        "consumed": consumed,
        "seconds": round(elapsed, 2),
        "messages_per_s": round(consumed / max(elapsed, 1e-9)),
        "p50_ms": round(percentile(recent, 0.5), 2),
        "p99_ms": round(percentile(recent, 0.99), 2),
        "ok": traffic.behind() == 0 and not traffic.out_of_order,
    }


def _progress(traffic: Traffic, elapsed: float) -> str:
    recent = sorted(traffic.latencies_ms)
    return (
        f"{int(elapsed) // 60:02}:{int(elapsed) % 60:02}  produced {sum(traffic.produced):,}  "
        f"consumed {sum(traffic.consumed):,}  behind {max(traffic.behind(), 0):,}  "
        f"p50 {percentile(recent, 0.5):.2f} ms  p99 {percentile(recent, 0.99):.2f} ms  Ctrl-C stops"
    )
