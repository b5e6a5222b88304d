"""Administration with each client: topics, partitions, records, settings."""

import asyncio
import time
from typing import Any

import aiokafka
import aiokafka.errors
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
import kafka.errors
import pytest

from tests.clients.adapters import PATIENCE_S, QUIET, AioKafka, Confluent, KafkaPython, Message

ANY_ERROR = (confluent_kafka.KafkaException, kafka.errors.KafkaError, aiokafka.errors.KafkaError)


def test_topics_are_created_listed_described_and_deleted(client: Any, topic: str) -> None:
    client.create(topic, 3, {"retention.ms": "123456", "cleanup.policy": "compact"})
    assert client.topics()[topic] == 3
    configs = client.configs(topic)
    assert (configs["retention.ms"], configs["cleanup.policy"]) == ("123456", "compact")
    assert configs["segment.bytes"] == str(1 << 30)
    client.delete(topic)
    assert topic not in client.topics()
    with pytest.raises(ANY_ERROR):
        client.delete(topic)


def test_a_manual_assignment(client: Any, topic: str) -> None:
    client.create(topic, assignment=[[1], [1]])
    assert client.topics()[topic] == 2
    with pytest.raises(ANY_ERROR):
        client.create(f"{topic}-elsewhere", assignment=[[7]])


def test_what_cannot_be_created(client: Any, topic: str) -> None:
    client.create(topic)
    for name, configs, words in (
        (topic, {}, r"(?i)exists"),
        ("not a name", {}, r"(?i)invalid|topic"),
        (f"{topic}-bad", {"cleanup.policy": "shred"}, r"(?i)cleanup\.policy|invalid"),
    ):
        with pytest.raises(ANY_ERROR, match=words):
            client.create(name, configs=configs)
    assert f"{topic}-bad" not in client.topics()


def test_partitions_are_added(client: Any, topic: str) -> None:
    client.create(topic)
    client.produce(topic, [Message(b"k", b"before")])
    client.widen(topic, 4)
    assert client.topics()[topic] == 4
    client.produce(topic, [Message(b"k", b"new")], partition=3)
    assert client.read(topic, 0, 1, 3)[0].value == b"new"
    assert client.read(topic, 0, 1, 0)[0].value == b"before"
    with pytest.raises(ANY_ERROR):
        client.widen(topic, 2)


def test_records_are_deleted(client: Any, topic: str) -> None:
    client.create(topic)
    client.produce(topic, [Message(b"k", b"%d" % number) for number in range(20)])
    assert client.delete_records(topic, 0, 13) == 13
    assert client.ends(topic) == (13, 20)
    assert [each.value for each in client.read(topic, 13, 7)] == [b"%d" % number for number in range(13, 20)]


def test_a_topic_made_anew_starts_empty(client: Any, topic: str) -> None:
    client.create(topic)
    client.produce(topic, [Message(b"k", b"old")])
    client.delete(topic)
    client.create(topic)
    assert client.ends(topic) == (0, 0)
    client.produce(topic, [Message(b"k", b"new")])
    assert client.read(topic, 0, 1)[0].value == b"new"


def test_keyless_records_on_a_compacted_topic(client: Any, topic: str) -> None:
    client.create(topic, configs={"cleanup.policy": "compact"})
    # aiokafka does not know this error's number.
    with pytest.raises(ANY_ERROR, match=r"(?i)invalid.?record|Broker failed to validate record|UnknownError"):
        client.produce(topic, [Message(None, b"no key")])
    assert client.produce(topic, [Message(b"k", None)]) == [0]


# --- settings -----------------------------------------------------------------------------------------------------


def test_confluent_alters_configs(broker: Any, topic: str) -> None:
    client = Confluent(broker.address)
    client.create(topic)
    admin = client.admin()

    def alter(name: str, value: str | None, op: Any = confluent_kafka.admin.AlterConfigOpType.SET) -> None:
        entry = confluent_kafka.admin.ConfigEntry(name, value, incremental_operation=op)
        resource = confluent_kafka.admin.ConfigResource(
            confluent_kafka.admin.ResourceType.TOPIC, topic, incremental_configs=[entry]
        )
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

    alter("retention.ms", "4321")
    alter("cleanup.policy", "compact", confluent_kafka.admin.AlterConfigOpType.APPEND)
    assert client.configs(topic)["retention.ms"] == "4321"
    assert set(client.configs(topic)["cleanup.policy"].split(",")) == {"delete", "compact"}
    alter("retention.ms", None, confluent_kafka.admin.AlterConfigOpType.DELETE)
    assert client.configs(topic)["retention.ms"] == "604800000"
    with pytest.raises(
        confluent_kafka.KafkaException, match=r"shred .* cleanup\.policy: .*compact, delete"
    ) as refused:
        alter("cleanup.policy", "shred")
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.INVALID_CONFIG
    with pytest.raises(confluent_kafka.KafkaException, match=r"no\.such\.config"):
        alter("no.such.config", "1")


def test_kafka_python_alters_configs(broker: Any, topic: str) -> None:
    client = KafkaPython(broker.address)
    client.create(topic)
    admin = client.admin()
    try:
        for value, expected in (("4321", "4321"), ("5432", "5432")):
            admin.alter_configs([kafka.admin.ConfigResource("topic", topic, {"retention.ms": value})])
            assert client.configs(topic)["retention.ms"] == expected
        answer = admin.alter_configs(
            [kafka.admin.ConfigResource("topic", topic, {"cleanup.policy": "shred"})], raise_on_unknown=False
        )
        assert "cleanup.policy" in str(answer) and "shred" in str(answer)
        admin.reset_configs([kafka.admin.ConfigResource("topic", topic, ["retention.ms"])])
        assert client.configs(topic)["retention.ms"] == "604800000"
    finally:
        admin.close()


def test_the_brokers_own_configs(broker: Any) -> None:
    admin = Confluent(broker.address).admin()
    resource = confluent_kafka.admin.ConfigResource(confluent_kafka.admin.ResourceType.BROKER, "1")
    found = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    assert found["log.flush.policy"].value == "durable"
    assert found["log.dirs"].value == str(broker.data_dir)
    assert found["num.partitions"].is_default


def test_the_cluster_as_the_clients_see_it(broker: Any) -> None:
    handle = Confluent(broker.address).admin()
    described = handle.describe_cluster().result(PATIENCE_S)
    assert [(node.id, f"{node.host}:{node.port}") for node in described.nodes] == [(1, broker.address)]
    # Never `localhost`, which may mean ::1 first.
    assert broker.address.startswith("127.0.0.1:")
    cluster = AioKafka(broker.address).administer(lambda admin: admin.describe_cluster())
    assert [(each["node_id"], each["host"]) for each in cluster["brokers"]] == [(1, "127.0.0.1")]
    admin = KafkaPython(broker.address).admin()
    try:
        assert admin.describe_cluster()["cluster_id"] == described.cluster_id == cluster["cluster_id"]
    finally:
        admin.close()


# --- auto-creation ------------------------------------------------------------------------------------------------


def test_a_topic_is_made_on_first_use_with_the_default_number_of_partitions(
    make_client: Any, start_broker: Any, topic: str
) -> None:
    client = make_client(start_broker(num_partitions="3", log_flush_policy="page-cache").address)
    client.produce(topic, [Message(b"k", b"v")], partition=2)
    assert client.topics()[topic] == 3


def test_a_consumer_that_forbids_it_makes_no_topic(broker: Any, topic: str) -> None:
    client = Confluent(broker.address)
    # librdkafka's consumers forbid it unless told otherwise, its producers do not.
    consumer = client.consumer()
    try:
        listed = consumer.list_topics(topic, PATIENCE_S).topics[topic]
        assert listed.error.code() == confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
    finally:
        consumer.close()
    assert topic not in client.topics()
    producer = confluent_kafka.Producer({"bootstrap.servers": client.address, **QUIET})
    producer.list_topics(topic, PATIENCE_S)
    assert topic in client.topics()


def test_a_broker_that_forbids_it_makes_no_topic(start_broker: Any, topic: str) -> None:
    client = Confluent(start_broker(auto_create_topics_enable="false").address)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": client.address, "topic.metadata.propagation.max.ms": 100, **QUIET}
    )
    errors: list[Any] = []
    producer.produce(topic, b"v", on_delivery=lambda error, _message: errors.append(error))
    producer.flush(PATIENCE_S)
    [error] = errors
    assert error.code() in (
        confluent_kafka.KafkaError._UNKNOWN_TOPIC,
        confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
    )
    assert client.topics() == {}


# --- offsets ------------------------------------------------------------------------------------------------------


def test_offsets_by_name(broker: Any, topic: str) -> None:
    client = Confluent(broker.address)
    client.create(topic)
    for stamp in (1000, 3000, 2000):
        client.produce(topic, [Message(b"k", b"v", (), stamp)])
    partition = confluent_kafka.TopicPartition(topic, 0)
    spec = confluent_kafka.admin.OffsetSpec
    for asked, offset in (
        (spec.earliest(), 0), (spec.latest(), 3), (spec.max_timestamp(), 1), (spec.for_timestamp(1500), 1),
    ):  # fmt: skip
        admin = client.admin()
        [found] = admin.list_offsets({partition: asked}).values()
        assert found.result(PATIENCE_S).offset == offset
    admin = KafkaPython(broker.address).admin()
    try:
        target = kafka.TopicPartition(topic, 0)
        found = admin.list_partition_offsets({target: kafka.admin.OffsetSpec.MAX_TIMESTAMP})
        assert found[target].offset == 1
    finally:
        admin.close()


def test_waiting_costs_no_spinning(broker: Any, topic: str) -> None:
    """A4: a consumer at the end is held by the broker until data comes, and gets it at once."""
    AioKafka(broker.address).create(topic)

    async def run() -> float:
        target = aiokafka.TopicPartition(topic, 0)
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.address, fetch_max_wait_ms=20_000)
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.address)
        await consumer.start()
        await producer.start()
        try:
            consumer.assign([target])
            await consumer.seek_to_beginning(target)
            waiting = asyncio.create_task(consumer.getone())
            # Two fetches with nothing: when the first send is acknowledged the consumer has long been waiting.
            await producer.partitions_for(topic)
            began = time.monotonic()
            await producer.send_and_wait(topic, b"now")
            assert (await waiting).value == b"now"
            return time.monotonic() - began
        finally:
            await consumer.stop()
            await producer.stop()

    assert asyncio.run(asyncio.wait_for(run(), PATIENCE_S)) < 5
