"""`ottla bench`: measure produce, consume and latency of a cluster with ottla's client.

It measures client and cluster together. `make bench` compares brokers with a third-party client instead.
"""

from __future__ import annotations

import time
from collections import deque
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ottla.cli.client_config import client_settings
from ottla.cli.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap
from ottla.cli.outcome import CommandError, end_on_signals, print_json, print_table, say
from ottla.cli.progress import ProgressLine, percentile
from ottla.cli.topic import open_admin

if TYPE_CHECKING:
    from ottla.client.producer.batches import SendFuture
    from ottla.client.producer.settings import Acks, Compression

TOPIC = "ottla-bench"
#: Messages between two readings of the clock.
STRIDE = 256

app = typer.Typer(
    help="""Measure a cluster: produce, consume, latency, or all three.

\b
Example:
  ottla bench                                  all three, against 127.0.0.1:9092
  ottla bench produce --messages 1000000 --size 200 --bootstrap 10.0.0.5:9092
""",
    invoke_without_command=True,
    rich_markup_mode=None,
)

Topic = Annotated[str, typer.Option("--topic", "-t", help="The topic to use; created if missing.")]
Partitions = Annotated[int, typer.Option("--partitions", "-p", min=1, help="Partitions of a new topic.")]
Messages = Annotated[int, typer.Option("--messages", "-n", min=1, help="Number of messages.")]
Size = Annotated[int, typer.Option("--size", "-s", min=0, help="Size of each value in bytes.")]
AcksOption = Annotated[
    Literal["all", "1", "0"],
    typer.Option("--acks", help="Acknowledgements: all in-sync replicas, the leader (1), or none (0)."),
]
CompressionOption = Annotated[
    Literal["none", "gzip", "snappy", "lz4", "zstd"],
    typer.Option("--compression", "-z", help="Compression of batches."),
]


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="bench")


@app.callback()
def bench(
    context: typer.Context,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    if context.invoked_subcommand is not None:
        return
    end_on_signals()
    rows = [
        measure_produce(bootstrap, TOPIC, 3, 200_000, 200, "all", "none"),
        measure_consume(bootstrap, TOPIC, 200_000),
        measure_latency(bootstrap, f"{TOPIC}-latency", 2_000, 200, "all"),
    ]
    _print(rows, as_json)


@app.command()
def produce(
    topic: Topic = TOPIC,
    partitions: Partitions = 3,
    messages: Messages = 200_000,
    size: Size = 200,
    acks: AcksOption = "all",
    compression: CompressionOption = "none",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Measure produce throughput.

    \b
    Example:
      ottla bench produce --messages 500000 --size 1000 --compression lz4
    """
    end_on_signals()
    _print([measure_produce(bootstrap, topic, partitions, messages, size, acks, compression)], as_json)


@app.command()
def consume(
    topic: Topic = TOPIC,
    messages: Messages = 200_000,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Measure consume throughput from the start of a topic (fill it with `ottla bench produce`).

    \b
    Example:
      ottla bench consume --topic orders --messages 1000000
    """
    end_on_signals()
    _print([measure_consume(bootstrap, topic, messages)], as_json)


@app.command()
def latency(
    topic: Topic = f"{TOPIC}-latency",
    messages: Messages = 2_000,
    size: Size = 200,
    acks: AcksOption = "all",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Measure produce latency: one message at a time, each acknowledged before the next.

    \b
    Example:
      ottla bench latency --messages 10000 --acks 1
    """
    end_on_signals()
    _print([measure_latency(bootstrap, topic, messages, size, acks)], as_json)


def measure_produce(
    bootstrap: str,
    topic: str,
    partitions: int,
    messages: int,
    size: int,
    acks: Acks,
    compression: Compression,
) -> dict[str, Any]:
    from ottla.client.producer.sync import Producer

    _make_topic(bootstrap, topic, partitions)
    line = ProgressLine()
    value = bytes(65 + index * 7 % 26 for index in range(size))
    waiting: deque[SendFuture] = deque()
    with Producer(
        bootstrap, acks=acks, compression_type=compression, **client_settings("ottla-bench")
    ) as producer:
        started = time.perf_counter()
        for number in range(messages):
            waiting.append(producer.send(topic, value))
            if number % STRIDE == 0:
                while waiting and waiting[0].done():
                    waiting.popleft().result()
                if line.due():
                    line.show(
                        f"produce  {number:,} of {messages:,}  "
                        f"{number / (time.perf_counter() - started):,.0f}/s"
                    )
        producer.flush()
        seconds = time.perf_counter() - started
        for future in waiting:
            future.result()
    line.clear()
    return _throughput("produce", messages, messages * size, seconds)


def measure_consume(bootstrap: str, topic: str, messages: int) -> dict[str, Any]:
    from ottla.client.consumer.sync import Consumer

    line = ProgressLine()
    count = size = 0
    with Consumer(
        bootstrap,
        auto_offset_reset="earliest",
        max_poll_records=10_000,
        # Otherwise the compiled decoder, if available, would be loaded in the middle of the measurement.
        record_decoder="auto" if find_spec("numba") is None else "compiled",
        **client_settings("ottla-bench"),
    ) as consumer:
        consumer.assign(consumer.partitions_for(topic))
        consumer.seek_to_beginning()
        tps = consumer.assignment()
        starts, ends = consumer.beginning_offsets(tps), consumer.end_offsets(tps)
        there = sum(ends[tp] - starts[tp] for tp in tps)
        if not there:
            raise CommandError(
                f"topic {topic!r} is empty: fill it with `ottla bench produce --topic {topic}`"
            )
        if there < messages:
            say(f"note: {topic} has only {there:,} messages")
        wanted = min(messages, there)
        started = time.perf_counter()
        while count < wanted:
            polled = consumer.poll(5_000)
            if not polled:
                break
            for records in polled.values():
                count += len(records)
                size += sum(len(record.value or b"") for record in records)
            if line.due():
                line.show(
                    f"consume  {count:,} of {wanted:,}  {count / (time.perf_counter() - started):,.0f}/s"
                )
        seconds = time.perf_counter() - started
    line.clear()
    return _throughput("consume", count, size, seconds)


def measure_latency(bootstrap: str, topic: str, messages: int, size: int, acks: Acks) -> dict[str, Any]:
    from ottla.client.producer.sync import Producer

    _make_topic(bootstrap, topic, 1)
    line = ProgressLine()
    value = b"x" * size
    taken: list[float] = []
    with Producer(bootstrap, acks=acks, **client_settings("ottla-bench")) as producer:
        for _ in range(10):  # connections and code paths warm up
            producer.send(topic, value).result()
        started = time.perf_counter()
        for number in range(messages):
            before = time.perf_counter()
            producer.send(topic, value).result()
            taken.append((time.perf_counter() - before) * 1000)
            if line.due():
                line.show(f"latency  {number:,} of {messages:,}")
        seconds = time.perf_counter() - started
    line.clear()
    taken.sort()
    return _throughput("latency", messages, messages * size, seconds) | {
        "p50_ms": round(percentile(taken, 0.5), 3),
        "p99_ms": round(percentile(taken, 0.99), 3),
        "p999_ms": round(percentile(taken, 0.999), 3),
    }


def _make_topic(bootstrap: str, topic: str, partitions: int) -> None:
    from ottla.client.errors import TopicExists

    with open_admin(bootstrap) as admin:
        if topic not in admin.list_topics():
            try:
                admin.create_topic(topic, partitions, -1)
            except TopicExists:  # created concurrently
                return


def _throughput(what: str, messages: int, size: int, seconds: float) -> dict[str, Any]:
    seconds = max(seconds, 1e-9)
    return {
        "what": what,
        "messages": messages,
        "seconds": round(seconds, 3),
        "messages_per_s": round(messages / seconds),
        "mb_per_s": round(size / seconds / 1e6, 1),
    }


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    head = ("WHAT", "MESSAGES", "SECONDS", "MESSAGES/S", "MB/S", "P50 MS", "P99 MS", "P99.9 MS")
    keys = ("what", "messages", "seconds", "messages_per_s", "mb_per_s", "p50_ms", "p99_ms", "p999_ms")
    print_table(head, [[row.get(key, "") for key in keys] for row in rows])
