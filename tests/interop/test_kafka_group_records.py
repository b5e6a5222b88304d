"""`__consumer_offsets` between ottla and Apache Kafka: Kafka's own decoders read ours, and Kafka's directory opens with its groups."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

import ottla
from bench.process import free_port
from tests.crash.broker_process import PATIENCE_S, BrokerProcess, wait_until
from tests.interop.kafka_directory import SETTINGS, kill, running
from tests.interop.members import share
from tests.interop.programs import Java, Program
from tests.interop.test_java_client import create

TOPIC = "__consumer_offsets"
FORMATTERS = "org.apache.kafka.tools.consumer"
PARTITIONS = 2


def commit(address: str, group: str, topic: str, offset: int, text: str = "") -> None:
    """By somebody who is no member."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "log_level": 0})
    place = TopicPartition(topic, 0, offset, metadata=text)
    consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()


def groups(address: str) -> dict[str, tuple[str, str]]:
    """State and type by name."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    listed = admin.list_consumer_groups(request_timeout=PATIENCE_S).result(PATIENCE_S)
    assert listed.errors == []
    return {each.group_id: (each.state.name, each.type.name) for each in listed.valid}


def offsets(address: str, group: str) -> dict[tuple[str, int], tuple[int, str | None]]:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    rows = asked[group].result(PATIENCE_S).topic_partitions
    # librdkafka writes texts with a zero behind them, and reads those of others until it finds one in its memory.
    with ottla.Admin(address) as own:
        texts = {
            tuple(place): found.metadata.rstrip("\0")
            for place, found in own.list_group_offsets([group])[group].items()
        }
    return {(row.topic, row.partition): (row.offset, texts[row.topic, row.partition]) for row in rows}


def is_loaded(address: str, *names: str) -> bool:
    """Kafka's own coordinator says that it loads, which this client's admin does not wait for."""
    try:
        for name in names:
            offsets(address, name)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
            raise
        return False
    return True


def live(address: str, java_member: Program) -> None:
    """Groups of both protocols, with members when it is left, and what was committed by hand, deleted and by members."""
    commit(address, "by hand", "orders", 7, "some text")
    commit(address, "deleted", "orders", 1)
    # It must live as long as its answers are waited for.
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.delete_consumer_groups(["deleted"])["deleted"].result(PATIENCE_S)
    everything = {("orders", number) for number in range(PARTITIONS)}
    for protocol in ("classic", "consumer"):
        for name, instance in ((f"{protocol} static", "s-1"), (f"{protocol} empty", "")):
            options = [f"group.protocol={protocol}", *([f"group.instance.id={instance}"] if instance else [])]
            if protocol == "classic":
                # As long as it takes to look at it.
                options.append("session.timeout.ms=300000")
            with java_member.join(address, name, "topics:orders", *options) as member:
                share([member], everything)
                member.wait_until(lambda: len(member.read) == 6, "it reads")
                member.commit()
                if not instance:
                    member.leave()
                # A static one is killed: it stays in the group.


# --- ours, read by Kafka's ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(
    java: Java, java_classes: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    settings = {"offsets.topic.num.partitions": "3", "group.initial.rebalance.delay.ms": "0"}
    with BrokerProcess(tmp_path_factory.mktemp("records") / "data", free_port(), settings) as broker:
        create(broker, "orders", PARTITIONS)
        fill_orders(broker.address)
        live(broker.address, Program(java.command(java_classes, "GroupMember")))
        yield broker


def fill_orders(address: str) -> None:
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for number in range(6):
        producer.produce("orders", b"x", partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0


def formatted(java: Java, broker: BrokerProcess, name: str, topic: str = TOPIC) -> list[dict[str, Any]]:
    """All that a formatter makes of the topic; it writes one document after the other."""
    said = java.tool(
        "ConsoleConsumer", "--bootstrap-server", broker.address, "--topic", topic, "--from-beginning", "--formatter",
        f"{FORMATTERS}.{name}", "--timeout-ms", "5000",
    )  # fmt: skip
    decoder, text, found = json.JSONDecoder(), said.out.strip(), []
    while text:
        row, end = decoder.raw_decode(text)
        found.append(row)
        text = text[end:].lstrip()
    return found


def test_the_formatter_of_offsets(java: Java, written: BrokerProcess) -> None:
    rows = formatted(java, written, "OffsetsMessageFormatter")
    last = {
        (row["key"]["data"]["group"], row["key"]["data"]["topic"], row["key"]["data"]["partition"]): row[
            "value"
        ]
        for row in rows
    }
    # confluent-kafka sends the end of its string along.
    by_hand = last["by hand", "orders", 0]
    assert (by_hand["version"], by_hand["data"]["offset"], by_hand["data"]["metadata"].rstrip("\0")) == (
        4,
        7,
        "some text",
    )
    # Tombstones are nothing to this one.
    assert last["deleted", "orders", 0] is None or last["deleted", "orders", 0]["data"]["offset"] == 1
    for group in ("classic static", "classic empty", "consumer static", "consumer empty"):
        for number in range(PARTITIONS):
            value = last[group, "orders", number]["data"]
            assert (value["offset"], value["leaderEpoch"], value["metadata"]) == (3, -1, "by Java")


def test_the_formatter_of_groups(java: Java, written: BrokerProcess) -> None:
    rows = formatted(java, written, "GroupMetadataMessageFormatter")
    last = {row["key"]["data"]["group"]: row["value"]["data"] for row in rows if row["value"] is not None}
    assert {"classic static", "classic empty"} <= last.keys()
    static, empty = last["classic static"], last["classic empty"]
    assert (static["protocolType"], static["protocol"], static["generation"]) == ("consumer", "range", 1)
    [member] = static["members"]
    assert (member["groupInstanceId"], member["sessionTimeout"], member["clientHost"]) == (
        "s-1", 300_000, "/127.0.0.1",
    )  # fmt: skip
    assert (empty["members"], empty["generation"], empty["leader"]) == ([], 2, None)


class Row(NamedTuple):
    key: dict[str, Any]
    value: dict[str, Any] | None


def dumped(java: Java, broker: BrokerProcess) -> list[Row]:
    """What Kafka's decoder finds in the files."""
    found: list[Row] = []
    for path in sorted(broker.data_dir.glob(f"{TOPIC}-*/*.log")):
        said = java.tool("DumpLogSegments", "--offsets-decoder", "--deep-iteration", "--files", str(path))
        assert "isvalid: false" not in said.out and said.errors == ""
        for key, value in re.findall(
            r"^\| offset: .*? key: (\{.*?\}) payload: (.*)$", said.out, re.MULTILINE
        ):
            found.append(Row(json.loads(key), None if value == "<DELETE>" else json.loads(value)))
    return found


def test_the_decoder_of_files(java: Java, written: BrokerProcess) -> None:
    rows = dumped(java, written)
    assert {row.key["type"] for row in rows} >= {"1", "2", "3", "5", "6", "7", "8"}
    last = {json.dumps(row.key, sort_keys=True): row for row in rows}.values()

    def of(kind: str, group: str) -> dict[str, Any]:
        [row] = [
            row
            for row in last
            if row.key["type"] == kind
            and group in (row.key["data"].get("group"), row.key["data"].get("groupId"))
            and row.value is not None
        ]
        assert row.value is not None
        return dict(row.value["data"])

    [member] = of("2", "classic static")["members"]
    assert member["subscription"]["topics"] == ["orders"]
    assert member["assignment"]["assignedPartitions"] == [{"topic": "orders", "partitions": [0, 1]}]
    assert of("5", "consumer static")["subscribedTopicNames"] == ["orders"]
    assert of("5", "consumer static")["instanceId"] == "s-1"
    current = of("8", "consumer static")
    assert (current["memberEpoch"], current["state"]) == (1, 0)
    [assigned] = current["assignedPartitions"]
    assert (assigned["partitions"], assigned["assignmentEpochs"]) == ([0, 1], [1, 1])
    assert of("7", "consumer static")["topicPartitions"][0]["partitions"] == [0, 1]
    assert of("6", "consumer static")["assignmentEpoch"] == 1
    assert of("3", "consumer empty")["epoch"] == 2
    # The deleted group, and the member that left, are forgotten.
    assert [row.value for row in last if row.key["data"].get("group") == "deleted"] == [None, None]
    assert [
        row.value for row in last if row.key["type"] == "5" and row.key["data"]["groupId"] == "consumer empty"
    ] == [None]


# --- Kafka's, opened by ours --------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["stopped", "killed"])
def kafka_home(
    request: pytest.FixtureRequest, java: Java, java_classes: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A directory of Apache Kafka's with the same groups in it."""
    folder = tmp_path_factory.mktemp("kafka")
    settings = {**SETTINGS, "auto.create.topics.enable": "true", "num.partitions": str(PARTITIONS)}
    with running("4", folder, settings) as kafka:
        fill_orders(kafka.address)
        live(kafka.address, Program(java.command(java_classes, "GroupMember")))
        if request.param == "killed":
            kill(kafka)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_the_groups_of_kafka_are_there(kafka_home: Path, java_member: Program, tmp_path: Path) -> None:
    shutil.copytree(kafka_home / "data", tmp_path / "data")
    with BrokerProcess(tmp_path / "data", free_port()) as broker:
        assert groups(broker.address) == {
            "by hand": ("EMPTY", "CLASSIC"),
            "classic static": ("STABLE", "CLASSIC"),
            "classic empty": ("EMPTY", "CLASSIC"),
            "consumer static": ("STABLE", "CONSUMER"),
            "consumer empty": ("EMPTY", "CONSUMER"),
        }
        assert offsets(broker.address, "by hand") == {("orders", 0): (7, "some text")}
        everything = {("orders", number) for number in range(PARTITIONS)}
        for group in ("classic static", "classic empty", "consumer static", "consumer empty"):
            assert offsets(broker.address, group) == dict.fromkeys(everything, (3, "by Java"))
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        for group in ("classic static", "consumer static"):
            described = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
            [member] = described.members
            assert member.group_instance_id == "s-1"
            held = {(each.topic, each.partition) for each in member.assignment.topic_partitions}
            assert held == everything
        # The static member is back at the other broker, in the place that it had.
        options = ["group.protocol=classic", "group.instance.id=s-1", "session.timeout.ms=300000"]
        with java_member.join(broker.address, "classic static", "topics:orders", *options) as back:
            share([back], everything)
            fill_orders(broker.address)
            back.wait_until(lambda: len(back.read) == 6, "it goes on")
            assert {offset for _topic, _number, offset in back.read} == {3, 4, 5}
            back.commit()
        with java_member.join(
            broker.address, "consumer empty", "topics:orders", "group.protocol=consumer"
        ) as member:
            share([member], everything)
            member.wait_until(lambda: len(member.read) == 6, "it goes on")
            member.leave()
        assert offsets(broker.address, "classic static") == dict.fromkeys(everything, (6, "by Java"))
        assert broker.stop() == 0


def test_kafka_reads_what_ottla_wrote_behind_it(
    kafka_home: Path, java: Java, java_member: Program, tmp_path: Path
) -> None:
    """The directory goes back: Kafka's coordinator loads records of both."""
    shutil.copytree(kafka_home, tmp_path / "home")
    with BrokerProcess(tmp_path / "home" / "data", free_port()) as broker:
        commit(broker.address, "by hand", "orders", 9)
        commit(broker.address, "new", "orders", 4)
        with java_member.join(
            broker.address, "ours", "topics:orders", "group.protocol=consumer", "group.instance.id=o-1"
        ) as member:
            share([member], {("orders", number) for number in range(PARTITIONS)})
            member.wait_until(lambda: len(member.read) == 6, "it reads")
            member.commit()
        assert broker.stop() == 0
        assert len(dumped(java, broker)) > 0
    with running("4", tmp_path / "home") as kafka:
        wait_until(lambda: is_loaded(kafka.address, "by hand", "new", "ours"), "Kafka has loaded them")
        assert offsets(kafka.address, "by hand") == {("orders", 0): (9, "")}
        assert offsets(kafka.address, "new") == {("orders", 0): (4, "")}
        known = groups(kafka.address)
        assert (known["ours"], known["classic static"]) == (("STABLE", "CONSUMER"), ("STABLE", "CLASSIC"))
        assert offsets(kafka.address, "ours")["orders", 0] == (3, "by Java")
