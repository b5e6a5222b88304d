"""Workloads on a broker, one function each, the same for every broker.

Each takes a running broker and a new topic with one partition, checks that all sent messages exist, and
returns figures by name (`bench.table` defines units and goals). Nothing here depends on the kind of broker.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.measure import Span, Stretch, quantile
from bench.process import Brokers
from bench.raw import RawProducer

Figures = dict[str, float]

BULK_MESSAGE_BYTES = 1024
SMALL_MESSAGE_BYTES = 100
IN_FLIGHT = 5
CONSUME_PASSES = 4
TURNS = 20
MB = 1_000_000
# Below librdkafka's limit of 100,000, so that its queue never rejects a message.
QUEUED_MESSAGES_MAX = 50_000
BULK_SETTINGS: Mapping[str, str | int] = MappingProxyType(
    {"linger.ms": 20, "batch.size": 1_000_000, "batch.num.messages": 10_000}
)
TOPIC_CONFIG = {"file.delete.delay.ms": "1000"}


class WorkloadFailed(RuntimeError):
    """A workload failed, so its figures would be meaningless."""


@dataclass(frozen=True, slots=True)
class Volumes:
    """The amount of work per round."""

    bulk_messages: int
    requests: int
    round_trips: int


@contextmanager
def fresh_topic(broker: Brokers, name: str, data_dir: Path, config: Mapping[str, str]) -> Iterator[str]:
    """A topic for one workload.

    It ends when the files are deleted and nothing is left to write back, so that the next run does not pay
    for this one.
    """
    admin = AdminClient({"bootstrap.servers": broker.address})
    topic = NewTopic(
        name, num_partitions=1, replication_factor=broker.replicas, config={**TOPIC_CONFIG, **config}
    )
    admin.create_topics([topic])[name].result(30)
    deadline = time.monotonic() + 30
    while not _has_leader(admin, name):
        if time.monotonic() > deadline:
            raise WorkloadFailed(f"{broker.name} created the topic {name} but no leader showed within 30 s")
        time.sleep(0.01)
    try:
        yield name
    finally:
        if broker.alive():
            admin.delete_topics([name])[name].result(30)
            deadline = time.monotonic() + 5
            while any(data_dir.rglob(f"{name}-*")) and time.monotonic() < deadline:
                time.sleep(0.05)
            os.sync()


def _has_leader(admin: AdminClient, name: str) -> bool:
    partitions = admin.list_topics(name, timeout=30).topics[name].partitions
    return 0 in partitions and partitions[0].leader >= 0


def produce(
    broker: Brokers,
    topic: str,
    value: bytes,
    count: int,
    settings: Mapping[str, str | int],
    *,
    begun: bool = False,
) -> Stretch:
    """With `begun`, one message is sent before the others and not measured."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "acks": "all",
            "max.in.flight": IN_FLIGHT,
            "queue.buffering.max.kbytes": 1 << 20,
            "delivery.report.only.error": True,
            "on_delivery": delivered,
            **settings,
        }
    )
    producer.list_topics(topic, timeout=30)
    message = {"value": value}
    if begun:
        producer.produce_batch(topic, [message], partition=0)
        producer.flush(30)
    before = end_offset(broker, topic)
    with Stretch(broker.pids) as stretch:
        left = count
        while left:
            room = min(left, 1000, QUEUED_MESSAGES_MAX - len(producer))
            if room <= 0:
                producer.poll(0.001)
                continue
            left -= producer.produce_batch(topic, [message] * room, partition=0)
            producer.poll(0)
        unsent = producer.flush(120)
    if unsent or failed:
        raise WorkloadFailed(f"{broker.name}: {unsent} messages unsent, {len(failed)} failed {failed[:1]}")
    _expect(broker, topic, before + count)
    return stretch


def end_offset(broker: Brokers, topic: str) -> int:
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "bench", "enable.auto.commit": False}
    )
    deadline = time.monotonic() + 30
    try:
        # In a cluster, the broker may not have received the new topic yet.
        while not consumer.list_topics(topic, timeout=30).topics[topic].partitions:
            if time.monotonic() > deadline:
                raise WorkloadFailed(f"{broker.name} does not know {topic} after 30 s")
        offsets = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    finally:
        consumer.close()
    if offsets is None:
        raise WorkloadFailed(f"{broker.name} did not answer ListOffsets within 30 s")
    high: int = offsets[1]
    return high


def _expect(broker: Brokers, topic: str, count: int) -> None:
    found = end_offset(broker, topic)
    if found != count:
        raise WorkloadFailed(f"{broker.name}: {topic} holds {found} messages, {count} were acknowledged")


def produce_bulk(broker: Brokers, topic: str, volumes: Volumes) -> Figures:
    """librdkafka, acks=all, 1 KB messages in batches of up to 1 MB."""
    value = os.urandom(BULK_MESSAGE_BYTES)
    span = produce(broker, topic, value, volumes.bulk_messages, BULK_SETTINGS).span
    megabytes = volumes.bulk_messages * BULK_MESSAGE_BYTES / MB
    return {
        "produce_mb_s": megabytes / span.wall_ns * 1e9,
        "produce_cpu_us_mb": span.cpu_ns / 1e3 / megabytes,
    }


def consume_bulk(broker: Brokers, topic: str, volumes: Volumes) -> Figures:
    """librdkafka, one partition from the start, several times, each with a new connection.

    On loopback the kernel accounts a sender's work to the broker or the client by chance; one pass is too
    short to average it.
    """
    spans = [consume(broker, topic, volumes.bulk_messages) for _ in range(CONSUME_PASSES)]
    megabytes = volumes.bulk_messages * BULK_MESSAGE_BYTES * CONSUME_PASSES / MB
    return {
        "consume_mb_s": megabytes / sum(span.wall_ns for span in spans) * 1e9,
        "consume_cpu_us_mb": sum(span.cpu_ns for span in spans) / 1e3 / megabytes,
    }


def consume(
    broker: Brokers, topic: str, count: int, settings: Mapping[str, str | int] = MappingProxyType({})
) -> Span:
    # Defaults except one: a full queue would pause fetching for a second.
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 1,
            **settings,
        }
    )
    consumed = size = 0
    try:
        consumer.list_topics(topic, timeout=30)
        with Stretch(broker.pids) as stretch:
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            while consumed < count:
                # Request no more than are left: the call waits for the requested number.
                messages = consumer.consume(min(10_000, count - consumed), timeout=1.0)
                for message in messages:
                    error = message.error()
                    if error is not None:
                        raise KafkaException(error)
                    size += len(message)
                consumed += len(messages)
                if not messages and time.perf_counter_ns() - stretch.begin_ns > 120e9:
                    raise WorkloadFailed(f"{broker.name}: {consumed} of {count} messages came within 120 s")
    finally:
        consumer.close()
    if size != count * BULK_MESSAGE_BYTES:
        raise WorkloadFailed(f"{broker.name}: {size} bytes came back of {count} messages")
    return stretch.span


def requests_librdkafka(broker: Brokers, topic: str, volumes: Volumes) -> Figures:
    """librdkafka, one message per request, five requests in flight."""
    settings: dict[str, str | int] = {"linger.ms": 0, "batch.num.messages": 1}
    span = produce(broker, topic, os.urandom(SMALL_MESSAGE_BYTES), volumes.requests, settings).span
    return {
        "requests_s": volumes.requests / span.wall_ns * 1e9,
        "request_cpu_us": span.cpu_ns / 1e3 / volumes.requests,
    }


def raw_in_turn(pairs: Sequence[tuple[Brokers, str]], volumes: Volumes) -> list[Figures]:
    """One message per request on raw sockets, first five in flight, then one at a time.

    Returns figures by broker.

    The brokers take turns many times. The cost of a wake-up depends on whether the cores sleep, which other
    load changes, and can double a round trip: it should affect all brokers equally.
    """
    before = [end_offset(broker, topic) for broker, topic in pairs]
    spans: list[list[Span]] = [[] for _ in pairs]
    trip_spans: list[list[Span]] = [[] for _ in pairs]
    times: list[list[int]] = [[] for _ in pairs]
    requests, trips = volumes.requests // TURNS, volumes.round_trips // TURNS
    with ExitStack() as stack:
        producers = [
            stack.enter_context(RawProducer(broker.leader_port(topic), topic, SMALL_MESSAGE_BYTES))
            for broker, topic in pairs
        ]
        for _ in range(TURNS):
            for index, (broker, _topic) in enumerate(pairs):
                with Stretch(broker.pids) as stretch:
                    producers[index].pipeline(requests, IN_FLIGHT)
                spans[index].append(stretch.span)
        for _ in range(TURNS):
            for index, (broker, _topic) in enumerate(pairs):
                with Stretch(broker.pids) as stretch:
                    times[index] += producers[index].round_trips_ns(trips)
                trip_spans[index].append(stretch.span)
    for (broker, topic), count in zip(pairs, before, strict=True):
        _expect(broker, topic, count + (requests + trips) * TURNS)
    return [
        _raw_figures(*found, requests=requests * TURNS)
        for found in zip(spans, trip_spans, times, strict=True)
    ]


def _raw_figures(spans: list[Span], trip_spans: list[Span], times: list[int], *, requests: int) -> Figures:
    ordered = sorted(times)
    return {
        "raw_requests_s": requests / sum(span.wall_ns for span in spans) * 1e9,
        "raw_request_cpu_us": sum(span.cpu_ns for span in spans) / 1e3 / requests,
        "round_trip_p50_ms": quantile(ordered, 0.5) / 1e6,
        "round_trip_p99_ms": quantile(ordered, 0.99) / 1e6,
        "round_trip_p999_ms": quantile(ordered, 0.999) / 1e6,
        "round_trip_cpu_us": sum(span.cpu_ns for span in trip_spans) / 1e3 / len(ordered),
    }
