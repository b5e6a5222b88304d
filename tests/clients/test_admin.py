"""What an operator asks a broker, with the clients that offer it."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka.admin
import aiokafka.admin.config_resource
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
import kafka.errors
import pytest

import ottla
from tests.clients.adapters import PATIENCE_S, AioKafka, Confluent, KafkaPython, Message

UNLESS_SET = "604800000"


@pytest.fixture
def admin(broker: Any) -> Iterator[Any]:
    """The admin client that knows most of the APIs."""
    made = KafkaPython(broker.address).admin()
    yield made
    made.close()


# --- AlterConfigs -------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:alter_configs.*deprecated:DeprecationWarning")
def test_confluent_replaces_all_settings(broker: Any, topic: str) -> None:
    client = Confluent(broker.address)
    client.create(topic, configs={"retention.ms": "1000", "cleanup.policy": "compact"})
    admin = client.admin()

    def replace(configs: dict[str, str], **more: Any) -> None:
        resource = confluent_kafka.admin.ConfigResource(
            confluent_kafka.admin.ResourceType.TOPIC, topic, set_config=configs
        )
        admin.alter_configs([resource], **more)[resource].result(PATIENCE_S)

    replace({"segment.bytes": "2000000"}, validate_only=True)
    assert client.configs(topic)["retention.ms"] == "1000"
    replace({"segment.bytes": "2000000"})
    found = client.configs(topic)
    assert (found["segment.bytes"], found["retention.ms"]) == ("2000000", UNLESS_SET)
    assert found["cleanup.policy"] == "delete"
    with pytest.raises(confluent_kafka.KafkaException, match=r"cleanup\.policy") as refused:
        replace({"cleanup.policy": "shred"})
    assert refused.value.args[0].code() == confluent_kafka.KafkaError.INVALID_CONFIG
    assert client.configs(topic)["segment.bytes"] == "2000000"


def test_kafka_python_alters_configs_the_old_way(broker: Any, admin: Any, topic: str) -> None:
    client = KafkaPython(broker.address)
    client.create(topic, configs={"cleanup.policy": "compact"})
    resource = kafka.admin.ConfigResource("topic", topic, {"retention.ms": "4321"})
    admin.alter_configs([resource], incremental=False)
    found = client.configs(topic)
    # This client reads the other settings first and sends them along.
    assert (found["retention.ms"], found["cleanup.policy"]) == ("4321", "compact")


def test_aiokafka_replaces_all_settings(broker: Any, topic: str) -> None:
    client = AioKafka(broker.address)
    client.create(topic, configs={"cleanup.policy": "compact"})
    resource = aiokafka.admin.config_resource.ConfigResource(
        aiokafka.admin.config_resource.ConfigResourceType.TOPIC, topic, {"retention.ms": "4321"}
    )
    [answer] = client.administer(lambda admin: admin.alter_configs([resource]))
    assert [row[0] for row in answer.resources] == [0]
    found = client.configs(topic)
    assert (found["retention.ms"], found["cleanup.policy"]) == ("4321", "delete")


# --- what there is ------------------------------------------------------------------------------------------------


def test_resources_that_have_settings(broker: Any, admin: Any, topic: str) -> None:
    KafkaPython(broker.address).create(topic)
    everything = admin.list_config_resources()
    assert topic in everything["topic"]
    assert everything["broker"] == ["1"]
    assert admin.list_config_resources(["BROKER"]) == {"broker": ["1"]}


def test_partitions_a_page_at_a_time(broker: Any, admin: Any, topic: str) -> None:
    KafkaPython(broker.address).create(topic, 5)
    seen: list[int] = []
    cursor = None
    for _page in range(10):
        page = admin.describe_topic_partitions([topic], response_partition_limit=2, cursor=cursor)
        seen += [row["partition_index"] for row in page["topics"][0]["partitions"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert (seen, cursor) == ([0, 1, 2, 3, 4], None)


def test_how_much_of_the_directory_a_partition_takes(broker: Any, admin: Any, topic: str) -> None:
    client = KafkaPython(broker.address)
    client.create(topic, 2)
    client.produce(topic, [Message(b"k", bytes(10_000))], partition=1)
    [found] = admin.describe_log_dirs({topic: [0, 1]})
    [directory] = found["log_dirs"]
    assert directory["log_dir"] == str(broker.data_dir)
    [described] = directory["topics"]
    sizes = {row["partition_index"]: row["partition_size"] for row in described["partitions"]}
    assert sizes[0] == 0 and 10_000 < sizes[1] < 11_000
    assert 0 < directory["usable_bytes"] <= directory["total_bytes"]


def test_a_partition_moves_to_another_directory(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a", "b")]
    with ottla.Broker(paths[0], config={"log.dirs": ",".join(paths)}) as broker:
        client = KafkaPython(broker.address)
        client.create("t", 2)
        sent = [Message(b"k", b"%d" % number) for number in range(100)]
        client.produce("t", sent)
        [other] = [path for path in paths if not (Path(path) / "t-0").exists()]
        admin = kafka.KafkaAdminClient(bootstrap_servers=broker.address)

        def homes() -> list[tuple[str, bool]]:
            [found] = admin.describe_log_dirs({"t": [0]})
            return [
                (directory["log_dir"], row["is_future_key"])
                for directory in found["log_dirs"]
                for topic in directory["topics"]
                for row in topic["partitions"]
            ]

        try:
            [(_, code)] = admin.alter_replica_log_dirs({("t", 0, 1): other}).items()
            assert code is kafka.errors.NoError
            deadline = time.monotonic() + PATIENCE_S
            while homes() != [(other, False)]:
                assert time.monotonic() < deadline, homes()
        finally:
            admin.close()
        assert [seen.value for seen in client.read("t", 0, 100)] == [message.value for message in sent]


def test_the_producers_of_a_partition(broker: Any, admin: Any, topic: str) -> None:
    client = KafkaPython(broker.address)
    client.create(topic)
    client.produce(topic, [Message(b"k", b"v")] * 3, idempotent=True)
    target = kafka.TopicPartition(topic, 0)
    [producer] = admin.describe_producers([target])[target].active_producers
    assert (producer.producer_epoch, producer.last_sequence) == (0, 2)


def test_who_keeps_the_metadata(admin: Any) -> None:
    [described] = admin.describe_metadata_quorum()["topics"]
    [partition] = described["partitions"]
    assert partition["leader_id"] == 1
    [voter] = partition["current_voters"]
    assert (voter["replica_id"], voter["log_end_offset"]) == (1, partition["high_watermark"])


def test_there_are_no_features_to_update(admin: Any) -> None:
    with pytest.raises(kafka.errors.KafkaError) as refused:
        admin.update_features({"metadata.version": 20})
    assert refused.value.errno == 95


# --- telemetry ----------------------------------------------------------------------------------------------------


def test_librdkafka_asks_what_to_push_and_hears_nothing(broker: Any, topic: str) -> None:
    """KIP-714: on by default in this client. It works as ever, and logs nothing that looks like trouble."""
    lines: list[logging.LogRecord] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record)

    logger = logging.Logger("librdkafka", logging.DEBUG)  # noqa: LOG001  (of this test alone)
    logger.addHandler(Lines())
    errors: list[Any] = []
    common = {"bootstrap.servers": broker.address, "debug": "telemetry", "error_cb": errors.append}
    Confluent(broker.address).create(topic)

    producer = confluent_kafka.Producer(common, logger=logger)
    producer.produce(topic, b"v", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    alone = {"group.id": "unused", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer({**common, **alone}, logger=logger)
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        message = consumer.poll(PATIENCE_S)
        assert message is not None and message.value() == b"v"
        deadline = time.monotonic() + PATIENCE_S
        while _answers(lines) < 2 and time.monotonic() < deadline:
            producer.poll(0.05)
            consumer.poll(0.05)
    finally:
        consumer.close()
    assert _answers(lines) == 2
    assert [line.getMessage() for line in lines if line.levelno > logging.INFO] == []
    assert errors == []


def _answers(lines: list[logging.LogRecord]) -> int:
    """How often the client was told that no metric is wanted."""
    return sum("requested metrics count 0" in line.getMessage() for line in lines)
