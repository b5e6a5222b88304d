"""The cost of exactly-once: idempotent vs.

plain producers, read_committed vs. read_uncommitted, and transactions.

Two ways to do the same work are compared on one broker in short turns, so that other load affects both. Their
ratio is a separate figure. The records were written in transactions, of which every tenth was aborted. On raw
sockets both kinds of reader get the same bytes; read_committed also gets the list of aborted transactions.
librdkafka reads a topic with only committed transactions, so that both kinds deliver the same messages.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

from bench.measure import Span, Stretch, quantile
from bench.members import LOADING, Lines
from bench.process import Brokers
from bench.raw import RawClient, RawProducer, RawReader
from bench.workloads import (
    BULK_MESSAGE_BYTES,
    BULK_SETTINGS,
    IN_FLIGHT,
    MB,
    SMALL_MESSAGE_BYTES,
    TURNS,
    Figures,
    WorkloadFailed,
    consume,
    end_offset,
    produce,
)

#: New in every round.
TOPICS = ("plain", "idempotent", "mixed", "committed", "small", "copied")
TRANSACTION_MESSAGES = 750
ABORTED_ONE_IN = 10
FETCH_BYTES = 32 * 1024
FETCH_OFFSETS = 50
PASSES = 6
INIT_PRODUCER_ID = 22, 4
LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amount of work of each kind per round."""

    requests: int = 10_000
    bulk_messages: int = 192_000
    small_transactions: int = 1_000
    copied: int = 100


def round_of(broker: Brokers, topics: Mapping[str, str], sizes: Sizes) -> Figures:
    return (
        _requests(broker, topics, sizes)
        | _bulk(broker, topics, sizes)
        | _fetches(broker, topics["mixed"], sizes)
        | _consumption(broker, topics["committed"], sizes)
        | _small(broker, topics["small"], sizes)
        | _copy(broker, topics["mixed"], topics["copied"], sizes)
    )


def _in_turn(broker: Brokers, clients: Mapping[str, RawClient], requests: int) -> dict[str, list[Span]]:
    """The broker's cost of each turn, by kind of client."""
    spans: dict[str, list[Span]] = {kind: [] for kind in clients}
    for turn in range(TURNS):
        # Alternate the order.
        for kind in sorted(clients, reverse=turn % 2 == 1):
            with Stretch(broker.pids) as stretch:
                clients[kind].pipeline(requests // TURNS, IN_FLIGHT)
            spans[kind].append(stretch.span)
    return spans


def _cpu_us(spans: list[Span]) -> float:
    return sum(span.cpu_ns for span in spans) / 1e3


def _share(dear: list[Span], plain: list[Span]) -> float:
    """The cost ratio: the median over the turns, which ignores outliers."""
    return median(one.cpu_ns / other.cpu_ns for one, other in zip(dear, plain, strict=True))


def _requests(broker: Brokers, topics: Mapping[str, str], sizes: Sizes) -> Figures:
    port = broker.leader_port(topics["plain"])
    producer_id = _new_producer_id(broker, port)
    with (
        RawProducer(port, topics["plain"], SMALL_MESSAGE_BYTES, -1) as plain,
        RawProducer(port, topics["idempotent"], SMALL_MESSAGE_BYTES, producer_id) as idempotent,
    ):
        found = _in_turn(broker, {"plain": plain, "idempotent": idempotent}, sizes.requests)
    return {
        "plain_request_cpu_us": _cpu_us(found["plain"]) / sizes.requests,
        "idempotent_request_cpu_us": _cpu_us(found["idempotent"]) / sizes.requests,
        "idempotent_request_share": _share(found["idempotent"], found["plain"]),
    }


def _new_producer_id(broker: Brokers, port: int) -> int:
    deadline = time.monotonic() + LIMIT_S
    fields = {
        "transactional_id": None,
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    while True:
        answer = Lines(port).ask(INIT_PRODUCER_ID, fields)
        if not answer.error_code.value:
            return int(answer.producer_id)
        if answer.error_code.value != LOADING or time.monotonic() > deadline:
            raise WorkloadFailed(f"{broker.name} gave no producer id: error code {answer.error_code.value}")
        time.sleep(0.1)


def _bulk(broker: Brokers, topics: Mapping[str, str], sizes: Sizes) -> Figures:
    value = os.urandom(BULK_MESSAGE_BYTES)
    spans: dict[str, list[Span]] = {"plain": [], "idempotent": []}
    for turn in range(PASSES):
        for kind in sorted(spans, reverse=turn % 2 == 1):
            settings = {**BULK_SETTINGS, "enable.idempotence": str(kind == "idempotent").lower()}
            messages = sizes.bulk_messages // PASSES
            # librdkafka needs 0.5 s to get its producer id: not while the clock runs.
            spans[kind].append(produce(broker, topics[kind], value, messages, settings, begun=True).span)
    return _shares("idempotent", "plain", spans, sizes.bulk_messages * BULK_MESSAGE_BYTES / MB)


def _shares(dear: str, plain: str, spans: Mapping[str, list[Span]], megabytes: float) -> Figures:
    return {
        f"{plain}_cpu_us_mb": _cpu_us(spans[plain]) / megabytes,
        f"{dear}_cpu_us_mb": _cpu_us(spans[dear]) / megabytes,
        f"{dear}_share": _share(spans[dear], spans[plain]),
    }


def _producer(broker: Brokers, topic: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "transactional.id": f"of-{topic}",
            # The messages of a transaction are sent at its commit, not before.
            "linger.ms": 100,
        }
    )
    producer.init_transactions(LIMIT_S)
    return producer


def _fill(broker: Brokers, topic: str, value: bytes, messages: int, *, aborting: bool) -> None:
    """Transactions of 750 messages, of which every tenth is aborted."""
    producer = _producer(broker, topic)
    for number in range(-(-messages // TRANSACTION_MESSAGES)):
        producer.begin_transaction()
        count = min(TRANSACTION_MESSAGES, messages - number * TRANSACTION_MESSAGES)
        producer.produce_batch(topic, [{"value": value}] * count, partition=0)
        if aborting and number % ABORTED_ONE_IN == ABORTED_ONE_IN // 2:
            producer.flush(LIMIT_S)
            producer.abort_transaction(LIMIT_S)
        else:
            producer.commit_transaction(LIMIT_S)


def _fetches(broker: Brokers, topic: str, sizes: Sizes) -> Figures:
    _fill(broker, topic, os.urandom(SMALL_MESSAGE_BYTES), sizes.copied * TRANSACTION_MESSAGES, aborting=True)
    port = broker.leader_port(topic)
    offsets = [end_offset(broker, topic) * number // FETCH_OFFSETS for number in range(FETCH_OFFSETS)]
    with (
        RawReader(port, topic, offsets, FETCH_BYTES, committed=False) as uncommitted,
        RawReader(port, topic, offsets, FETCH_BYTES, committed=True) as committed,
    ):
        found = _in_turn(broker, {"uncommitted": uncommitted, "committed": committed}, sizes.requests)
    return {
        "uncommitted_fetch_cpu_us": _cpu_us(found["uncommitted"]) / sizes.requests,
        "committed_fetch_cpu_us": _cpu_us(found["committed"]) / sizes.requests,
        "committed_fetch_share": _share(found["committed"], found["uncommitted"]),
    }


def _consumption(broker: Brokers, topic: str, sizes: Sizes) -> Figures:
    _fill(broker, topic, os.urandom(BULK_MESSAGE_BYTES), sizes.bulk_messages, aborting=False)
    spans: dict[str, list[Span]] = {"committed": [], "uncommitted": []}
    for turn in range(PASSES):
        for kind in sorted(spans, reverse=turn % 2 == 1):
            settings = {"isolation.level": f"read_{kind}"}
            spans[kind].append(consume(broker, topic, sizes.bulk_messages, settings))
    return _shares("committed", "uncommitted", spans, sizes.bulk_messages * BULK_MESSAGE_BYTES * PASSES / MB)


def _small(broker: Brokers, topic: str, sizes: Sizes) -> Figures:
    """Sequential transactions of one message: the cost of a commit."""
    producer = _producer(broker, topic)
    value = os.urandom(SMALL_MESSAGE_BYTES)

    def transact() -> None:
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.commit_transaction(LIMIT_S)

    times, span = _timed(broker, transact, sizes.small_transactions)
    return {
        "small_transactions_s": len(times) / span.wall_ns * 1e9,
        "small_transaction_p99_ms": quantile(sorted(times), 0.99) / 1e6,
        "small_transaction_cpu_us": span.cpu_ns / 1e3 / len(times),
    }


def _timed(broker: Brokers, call: Callable[[], None], count: int) -> tuple[list[int], Span]:
    times = []
    call()  # the first finds its coordinator
    with Stretch(broker.pids) as stretch:
        for _ in range(count):
            begin = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - begin)
    return times, stretch.span


def _copy(broker: Brokers, source: str, target: str, sizes: Sizes) -> Figures:
    """Consume, produce and commit the offsets, 750 messages per transaction."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": f"of-{target}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    producer = _producer(broker, target)
    consumer.assign([TopicPartition(source, 0, OFFSET_BEGINNING)])
    copied = 0

    def transact() -> None:
        nonlocal copied
        messages = consumer.consume(TRANSACTION_MESSAGES, LIMIT_S)
        for message in messages:
            error = message.error()
            if error is not None:
                raise KafkaException(error)
        producer.begin_transaction()
        producer.produce_batch(target, [{"value": message.value()} for message in messages], partition=0)
        offsets = consumer.position([TopicPartition(source, 0)])
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), LIMIT_S)
        producer.commit_transaction(LIMIT_S)
        copied += len(messages)

    try:
        # A tenth of the messages was aborted, and one transaction runs before the clock starts.
        count = sizes.copied - sizes.copied // ABORTED_ONE_IN - 1
        times, span = _timed(broker, transact, count)
    finally:
        consumer.close()
    if copied != (count + 1) * TRANSACTION_MESSAGES:
        raise WorkloadFailed(f"{broker.name}: only {copied} messages were copied")
    return {
        "copied_s": count * TRANSACTION_MESSAGES / span.wall_ns * 1e9,
        "copy_cpu_us": span.cpu_ns / 1e3 / len(times),
    }
