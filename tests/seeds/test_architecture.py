"""The claims of mission.md under "Architecture" that a single node makes true, one test each."""

# ruff: noqa: N802 (a test bears the id of its claim)

import asyncio
import select
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonTopicPartition

from ottla.broker.api.shared.api_table import APIS
from ottla.server.embedded import Broker
from tests.crash.broker_process import (
    API_VERSIONS,
    FETCH,
    PATIENCE_S,
    BrokerProcess,
    Wire,
    batch_of,
    fetching,
)

OTTLA = str(Path(sys.executable).parent / "ottla")


def confluent_producer(address: str, **settings: Any) -> Producer:
    quiet = {"log_level": 0, "reconnect.backoff.max.ms": 100}
    return Producer({"bootstrap.servers": address, **quiet, **settings})


def create(address: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE_S)


def deliver(producer: Producer, topic: str, *values: bytes, **more: Any) -> list[tuple[int, int]]:
    """Produce and wait: (partition, offset) of each value as the broker acknowledged it."""
    done: list[tuple[int, int]] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        done.append((message.partition(), message.offset()))

    for value in values:
        producer.produce(topic, value, on_delivery=delivered, **more)
    assert producer.flush(PATIENCE_S) == 0
    assert len(done) == len(values)
    return done


def read(address: str, topic: str, count: int, offset: int = 0, partition: int = 0) -> list[bytes]:
    """`count` values of a partition from an offset on, by a consumer that was assigned to it."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, partition, offset)])
        messages = consumer.consume(count, timeout=PATIENCE_S)
        assert all(message.error() is None for message in messages)
        return [message.value() for message in messages]
    finally:
        consumer.close()


def test_A1_confluent_kafka_learns_the_cluster_from_a_bootstrap_broker_and_keeps_up(
    broker: BrokerProcess,
) -> None:
    """A producer knows one address and no ZooKeeper; it learns brokers, topics, partitions and leaders, and learns anew
    on failure and as time passes."""
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(PATIENCE_S)
    producer = confluent_producer(broker.address, **{"topic.metadata.refresh.interval.ms": 100})
    metadata = producer.list_topics("orders", timeout=PATIENCE_S)
    assert [f"{each.host}:{each.port}" for each in metadata.brokers.values()] == [broker.address]
    assert {each.leader for each in metadata.topics["orders"].partitions.values()} == set(metadata.brokers)
    assert sorted(metadata.topics["orders"].partitions) == [0, 1]

    # Periodically: a partition that is added while the producer runs comes into use by itself.
    admin.create_partitions([NewPartitions("orders", 3)])["orders"].result(PATIENCE_S)
    used: set[int] = set()
    number = 0
    deadline = time.monotonic() + PATIENCE_S
    while used != {0, 1, 2}:
        assert time.monotonic() < deadline, "the third partition was never used"
        number += 1
        used |= {partition for partition, _ in deliver(producer, "orders", b"v", key=b"%d" % number)}

    # On failure: the broker goes and comes back, and the same producer goes on.
    broker.kill()
    broker.start()
    deliver(producer, "orders", b"after", partition=0)


def test_A1_kafka_python_learns_the_cluster_from_a_bootstrap_broker(broker: BrokerProcess) -> None:
    """As above, for a second client that was written by others."""
    create(broker.address, "orders", 3)
    producer = KafkaProducer(bootstrap_servers=broker.address, acks="all")
    try:
        assert producer.partitions_for("orders") == {0, 1, 2}
        for partition in range(3):
            assert producer.send("orders", b"v", partition=partition).get(PATIENCE_S).partition == partition
    finally:
        producer.close()


def test_A1_aiokafka_learns_the_cluster_from_a_bootstrap_broker(broker: BrokerProcess) -> None:
    """As above, for a third."""
    create(broker.address, "orders", 3)

    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=broker.address, acks="all") as producer:
            assert await producer.partitions_for("orders") == {0, 1, 2}
            assert (await producer.send_and_wait("orders", b"v", partition=2)).partition == 2
        async with AIOKafkaConsumer(
            "orders", bootstrap_servers=broker.address, group_id=None, auto_offset_reset="earliest"
        ) as consumer:
            assert (await asyncio.wait_for(consumer.getone(), PATIENCE_S)).value == b"v"

    asyncio.run(run())


def test_A2_a_broker_creates_topics_stores_messages_and_persists_them(broker: BrokerProcess) -> None:
    """What was stored is in a file, and is there after the broker's sudden end."""
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(PATIENCE_S)
    deliver(confluent_producer(broker.address), "orders", b"persisted message")
    [log] = (broker.data_dir / "orders-0").glob("*.log")
    assert b"persisted message" in log.read_bytes()
    broker.kill()
    broker.start()
    assert "orders" in admin.list_topics(timeout=PATIENCE_S).topics
    assert read(broker.address, "orders", 1) == [b"persisted message"]


def test_A3_a_topic_has_partitions_and_a_replication_factor_chosen_at_creation(broker: BrokerProcess) -> None:
    """1..n partitions, each a log of its own; one node can hold one replica of each, and says so when asked for more."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic("one", 1, 1)])["one"].result(PATIENCE_S)
    admin.create_topics([NewTopic("many", 12, 1)])["many"].result(PATIENCE_S)
    topics = admin.list_topics(timeout=PATIENCE_S).topics
    assert {name: len(topics[name].partitions) for name in ("one", "many")} == {"one": 1, "many": 12}
    assert all(len(each.replicas) == 1 for each in topics["many"].partitions.values())
    producer = confluent_producer(broker.address)
    for partition in range(12):
        assert deliver(producer, "many", b"v", partition=partition) == [(partition, 0)]
    assert len(list(broker.data_dir.glob("many-*/*.log"))) == 12
    with pytest.raises(KafkaException, match="INVALID_REPLICATION_FACTOR"):
        admin.create_topics([NewTopic("two", 1, 2)])["two"].result(PATIENCE_S)


def test_A4_a_pull_is_held_until_there_is_data(wire: Wire, broker: BrokerProcess) -> None:
    """A pull carries a time-out. With no data the broker holds the request; the first record lets it go."""
    wire.create("orders")
    with Wire(broker.address) as waiting:
        waiting.send(FETCH, 11, **fetching("orders", 0, max_wait_ms=60_000))
        assert select.select([waiting.socket], [], [], 0.3)[0] == [], "it was answered with nothing"
        began = time.monotonic()
        wire.produce("orders", batch_of(b"here"))
        [partition] = waiting.receive().responses[0].partitions
        assert b"here" in partition.records
        assert time.monotonic() - began < 30


def test_A4_a_pull_is_let_go_when_its_time_is_up(wire: Wire) -> None:
    """… and an empty answer comes when the time is up, not before."""
    wire.create("orders")
    began = time.monotonic()
    assert wire.fetch("orders", 0, max_wait_ms=300) == []
    assert 0.29 < time.monotonic() - began < 30


def test_A4_an_idle_consumer_does_not_spin(
    embed: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that waits for two seconds asks a handful of times."""
    asked: Counter[int] = Counter()
    handler = APIS[FETCH].handler

    def counting(core: Any, call: Any, request: Any, now_ms: int) -> Any:
        asked[FETCH] += 1
        return handler(core, call, request, now_ms)

    monkeypatch.setitem(APIS, FETCH, APIS[FETCH]._replace(handler=counting))
    broker = embed()
    with Wire(broker.address) as wire:
        wire.create("orders")
    consumer = KafkaConsumer(bootstrap_servers=broker.address, fetch_max_wait_ms=500)
    try:
        consumer.assign([PythonTopicPartition("orders", 0)])
        assert consumer.poll(timeout_ms=2_000) == {}
    finally:
        consumer.close()
    assert 1 <= asked[FETCH] <= 10


def test_A7_a_message_can_be_replayed_from_a_number_the_ends_and_a_time(broker: BrokerProcess) -> None:
    """Reading takes nothing away: a consumer goes back to an offset, to either end, or to a time."""
    create(broker.address, "orders", 1)
    start_ms = time.time_ns() // 1_000_000 - 100_000
    producer = confluent_producer(broker.address)
    for number in range(100):
        deliver(producer, "orders", b"%d" % number, partition=0, timestamp=start_ms + number * 1_000)
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "none", "enable.auto.commit": False}
    )
    try:
        here = TopicPartition("orders", 0, 0)
        consumer.assign([here])
        for _ in range(2):  # all of it, twice
            assert [int(m.value()) for m in consumer.consume(100, timeout=PATIENCE_S)] == list(range(100))
            consumer.seek(here)
        consumer.seek(TopicPartition("orders", 0, 42))
        assert consumer.poll(PATIENCE_S).value() == b"42"
        [at_time] = consumer.offsets_for_times(
            [TopicPartition("orders", 0, start_ms + 66_500)], timeout=PATIENCE_S
        )
        assert at_time.offset == 67
        consumer.seek(at_time)
        assert consumer.poll(PATIENCE_S).value() == b"67"
        assert consumer.get_watermark_offsets(here, timeout=PATIENCE_S) == (0, 100)
    finally:
        consumer.close()
    ends = KafkaConsumer(bootstrap_servers=broker.address)
    try:
        partition = PythonTopicPartition("orders", 0)
        ends.assign([partition])
        ends.seek_to_end(partition)
        assert ends.position(partition) == 100
        ends.seek_to_beginning(partition)
        assert ends.position(partition) == 0
    finally:
        ends.close()


def test_A8_one_table_says_what_is_served(wire: Wire) -> None:
    """What the broker advertises is what has registered itself, no more and no less."""
    answer = wire.ask(API_VERSIONS, 3, client_software_name="tests", client_software_version="1")
    advertised = {int(each.api_key): (each.min_version, each.max_version) for each in answer.api_keys}
    assert advertised == {key: (api.oldest, api.newest) for key, api in APIS.items()}


def test_A8_requests_wait_in_a_purgatory_and_hold_nobody_else_up(embed: Callable[..., Broker]) -> None:
    """One acceptor takes every connection; what must wait takes neither a thread nor the others' time; answers to one
    client keep their order."""
    broker = embed()
    with Wire(broker.address) as wire:
        wire.create("orders")
        threads = threading.active_count()
        waiting = [Wire(broker.address) for _ in range(200)]
        try:
            for each in waiting:
                each.send(FETCH, 11, **fetching("orders", 0, max_wait_ms=60_000))
                # Answered behind the fetch that waits, though it is ready at once.
                each.send(API_VERSIONS, 0)
            assert wire.ask(API_VERSIONS, 0).error_code.value == 0
            assert threading.active_count() <= threads + 2, "a thread for each request"
            wire.produce("orders", batch_of(b"wake up"))
            for each in waiting:
                assert b"wake up" in each.receive().responses[0].partitions[0].records
                assert each.receive().error_code.value == 0
        finally:
            for each in waiting:
                each.socket.close()


def test_A8_a_client_that_breaks_the_rules_loses_its_own_connection_only(
    wire: Wire, broker: BrokerProcess
) -> None:
    """An API nobody knows, a frame that is no request, a length beyond the limit: closed, and the rest goes on."""
    wire.create("orders")
    host, _, port = broker.address.rpartition(":")
    for bad in (
        b"\0\0\0\x0a\x7f\xff\0\0\0\0\0\1\xff\xff",
        b"\0\0\0\4junk",
        b"\x7f\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as broken:
            broken.sendall(bad)
            assert broken.recv(1) == b""
        assert wire.fetch("orders", 0) == []


def test_A9_topics_partitions_and_configs_are_administered_through_the_protocol(
    broker: BrokerProcess,
) -> None:
    """An unmodified admin client creates, describes, grows, configures and deletes."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic("orders", 1, 1, config={"retention.ms": "3600000"})])["orders"].result(
        PATIENCE_S
    )
    admin.create_partitions([NewPartitions("orders", 4)])["orders"].result(PATIENCE_S)
    assert len(admin.list_topics(timeout=PATIENCE_S).topics["orders"].partitions) == 4

    def retention() -> str:
        [found] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, "orders")]).values()
        return str(found.result(PATIENCE_S)["retention.ms"].value)

    def alter(value: str) -> None:
        entry = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=[entry])
        [altered] = admin.incremental_alter_configs([resource]).values()
        altered.result(PATIENCE_S)

    assert retention() == "3600000"
    alter("7200000")
    assert retention() == "7200000"
    with pytest.raises(KafkaException, match=r"retention\.ms"):
        alter("soon")
    assert retention() == "7200000"

    deliver(confluent_producer(broker.address), "orders", *[b"v"] * 10, partition=0)
    [deleted] = admin.delete_records([TopicPartition("orders", 0, 7)]).values()
    assert deleted.result(PATIENCE_S).low_watermark == 7
    assert len(admin.describe_cluster().result(PATIENCE_S).nodes) == 1
    admin.delete_topics(["orders"])["orders"].result(PATIENCE_S)
    assert "orders" not in admin.list_topics(timeout=PATIENCE_S).topics


def test_A11_a_backlog_and_dead_consumers_do_not_touch_producers(broker: BrokerProcess, wire: Wire) -> None:
    """Consumers that ask for data and never read it, or that died, cost the producers nothing; whoever comes late reads
    everything."""
    wire.create("orders")
    payload = bytes(500_000)
    wire.produce("orders", batch_of(b"0" + payload))
    dead = [Wire(broker.address) for _ in range(20)]
    try:
        for each in dead:
            # 50 pulls of half a megabyte each, of which not a byte is ever taken: far more than the sockets hold.
            for _ in range(50):
                each.send(FETCH, 11, **fetching("orders", 0))
        for each in dead[:5]:
            each.socket.close()
        for number in range(1, 100):
            assert wire.produce("orders", batch_of(b"%d" % number + payload)) == number
    finally:
        for each in dead:
            each.socket.close()
    values = read(broker.address, "orders", 100)
    assert [int(value[: -len(payload)]) for value in values] == list(range(100))


def test_A11_the_same_engine_serves_between_threads(embed: Callable[..., Broker]) -> None:
    """Embedded in a program, it decouples that program's own threads."""
    broker = embed()
    with Wire(broker.address) as wire:
        wire.create("orders")
    received: list[bytes] = []

    def consume() -> None:
        received.extend(read(broker.address, "orders", 1_000))

    consumer = threading.Thread(target=consume)
    consumer.start()
    producers = [
        threading.Thread(
            target=lambda: deliver(confluent_producer(broker.address), "orders", *[b"v"] * 250, partition=0)
        )
        for _ in range(4)
    ]
    for each in producers:
        each.start()
    for each in [*producers, consumer]:
        each.join(PATIENCE_S)
    assert received == [b"v"] * 1_000


def test_A11_the_same_engine_serves_between_processes(broker: BrokerProcess) -> None:
    """One process writes, another one reads; they know nothing of each other and need not live at the same time."""
    lines = "".join(f"line {number}\n" for number in range(100))
    produced = subprocess.run(
        [OTTLA, "produce", "orders", "--bootstrap", broker.address],
        input=lines, text=True, capture_output=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert produced.returncode == 0, produced.stderr
    consumed = subprocess.run(
        [OTTLA, "consume", "orders", "--bootstrap", broker.address, "--from-beginning", "--until-end"],
        text=True, capture_output=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert consumed.returncode == 0, consumed.stderr
    assert sorted(consumed.stdout.splitlines()) == sorted(lines.splitlines())
