"""A data directory of Apache Kafka, 3.9 and 4.x, stopped cleanly or killed, opens in ottla: everything is there.

And it goes back: Kafka serves the same directory afterwards with what ottla wrote to its topics, and ottla then refuses it,
since the two histories of metadata have parted.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from bench.process import free_port
from tests.crash.broker_process import BrokerProcess
from tests.interop.kafka_directory import PATIENCE_S, TIME, Left, fill, kill, read, running
from tests.interop.programs import Java, run

OTTLA = str(Path(sys.executable).parent / "ottla")
#: Small snapshots, so that the metadata has to be read from one and from the log after it.
SNAPSHOTS = {"metadata.log.max.record.bytes.between.snapshots": "2000"}


@pytest.fixture(scope="module", params=["4 stopped", "4 killed", "3.9 stopped", "3.9 killed"])
def home(
    request: pytest.FixtureRequest, java: Java, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, Left]]:
    del java  # only asks whether it is here
    series, how = request.param.split()
    folder = tmp_path_factory.mktemp("kafka")
    (folder / "series").write_text(series)
    with running(series, folder, SNAPSHOTS if how == "killed" else {}) as kafka:
        left = fill(kafka.address)
        if how == "killed":
            kill(kafka)
    yield folder, left
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def taken(home: tuple[Path, Left], tmp_path: Path) -> Iterator[tuple[BrokerProcess, Left]]:
    """ottla on a copy of Kafka's directory."""
    folder, left = home
    shutil.copytree(folder / "data", tmp_path / "data")
    with BrokerProcess(tmp_path / "data", free_port()) as broker:
        yield broker, left


def test_everything_is_there(taken: tuple[BrokerProcess, Left]) -> None:
    broker, left = taken
    assert "imported 17 topics, 27 partitions" in broker.wait_for("imported ")
    assert read(broker.address, left.records, left.starts) == left.records
    admin = AdminClient({"bootstrap.servers": broker.address})
    topics = admin.list_topics(timeout=PATIENCE_S).topics
    sizes = {name: len(topic.partitions) for name, topic in topics.items()}
    assert {"gone"} & sizes.keys() == set()
    assert (sizes["wide"], sizes["grown"], sizes["again"], sizes["__consumer_offsets"]) == (5, 3, 2, 2)
    asked = [ConfigResource(ResourceType.TOPIC, name) for name in left.settings]
    for resource, answer in admin.describe_configs(asked).items():
        entries = answer.result(PATIENCE_S).values()
        own = {entry.name: entry.value for entry in entries if entry.source == 1}
        assert own == left.settings[resource.name]
    assert len(left.records["compacted", 0]) < max(left.records["compacted", 0])
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "times", "enable.auto.commit": False}
    )
    for codec in ("none", "zstd"):
        place = TopicPartition(f"codec-{codec}", 0, TIME + 1234 * 1000)
        assert consumer.offsets_for_times([place], timeout=PATIENCE_S)[0].offset == 1234
    assert consumer.get_watermark_offsets(TopicPartition("trimmed", 0), timeout=PATIENCE_S) == (40, 100)
    consumer.close()


def test_it_is_written_on_and_restarted(taken: tuple[BrokerProcess, Left]) -> None:
    broker, left = taken
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    for topic in ("idempotent", "trimmed", "codec-lz4"):
        producer.produce(topic, b"ours", b"key", 0)
    assert producer.flush(PATIENCE_S) == 0
    assert broker.stop() == 0
    broker.start()
    assert not any("imported " in line for line in broker.said)
    found = read(broker.address, left.records, left.starts)
    for place, records in found.items():
        extra = 1 if place in {("idempotent", 0), ("trimmed", 0), ("codec-lz4", 0)} else 0
        assert len(records) == len(left.records[place]) + extra
    assert found["trimmed", 0][100] == (b"key", b"ours")


def test_it_verifies_and_dumps(home: tuple[Path, Left], tmp_path: Path) -> None:
    data = home[0] / "data"
    said = run([OTTLA, "log", "verify", str(data), "--deep"])
    assert "LOSS" not in said.out and "MEND" not in said.out
    assert "name codec-zstd" in run([OTTLA, "log", "dump", str(data)]).out
    shutil.copytree(data, tmp_path / "data")
    with BrokerProcess(tmp_path / "data", free_port()) as broker:
        assert broker.stop() == 0
    run([OTTLA, "log", "verify", str(tmp_path / "data"), "--deep"])


def test_kafka_and_ottla_see_each_other(home: tuple[Path, Left], tmp_path: Path) -> None:
    """Neither starts where the other runs; and after Kafka has run on the directory again, ottla refuses it untouched."""
    folder, _left = home
    series = (folder / "series").read_text()
    shutil.copytree(folder, tmp_path / "home")
    data = tmp_path / "home" / "data"
    with BrokerProcess(data, free_port()) as broker:
        producer = Producer({"bootstrap.servers": broker.address})
        producer.produce("wide", b"ours", b"key", 3)
        assert producer.flush(PATIENCE_S) == 0
        assert broker.stop() == 0
    with running(series, tmp_path / "home") as kafka:
        refused = BrokerProcess(data, free_port()).spawn()
        refused.wait_for("another broker is running")
        refused.kill()
        found = read(kafka.address, {("wide", 3)}, {})
        assert found["wide", 3][13] == (b"key", b"ours")
    refused = BrokerProcess(data, free_port()).spawn()
    refused.wait_for("Kafka has run on")
    refused.kill()
    assert (data / "wide-3" / "00000000000000000000.log").stat().st_size > 0
