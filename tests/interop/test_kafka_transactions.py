"""Transactions in log files go both ways: what Kafka wrote is served, what the log writes Kafka's tools read.

There is no coordinator here yet, so transactions are made against Apache Kafka, with librdkafka's producer, and its partition
is taken over: aborted and committed ones, some at the same time, and one that is still open at the end.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest

from bench.kafka import fetch
from bench.process import free_port
from ottla.log.names import CLEAN_SHUTDOWN, RECOVERY_POINTS
from tests.crash.broker_process import BrokerProcess
from tests.interop.programs import Java
from tests.interop.test_java_client import create
from tests.interop.test_kafka_dump_log import dump
from tests.log.log_bench import NOW, Bench, batch
from tests.log.test_transactions import Writer

TOPIC = "shared"
LOG_FILES = ("*.log", "*.index", "*.timeindex", "*.txnindex", "*.snapshot", "leader-epoch-checkpoint")
#: Large enough for several of Kafka's least segments.
FILL = b"." * 60_000


def value(name: str) -> bytes:
    return name.encode() + FILL


def write_transactions(address: str) -> tuple[list[str], list[str]]:
    """Write all kinds; returns what readers of everything and of committed records are to see, in order."""

    def producer(**settings: str) -> confluent_kafka.Producer:
        return confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 0, **settings})

    plain = producer()
    transactional = {name: producer(**{"transactional.id": name}) for name in "abc"}
    for each in transactional.values():
        each.init_transactions(60)
    everything: list[str] = []
    uncommitted: set[str] = set()

    def write(by: confluent_kafka.Producer, name: str) -> None:
        by.produce(TOPIC, value(name), partition=0)
        assert by.flush(60) == 0
        everything.append(name)

    for at in range(24):
        # a begins before b and ends after it; which of them is aborted changes, and so do all segments.
        first, second = transactional["a"], transactional["b"]
        first.begin_transaction()
        write(first, f"a{at}.0")
        second.begin_transaction()
        write(second, f"b{at}")
        write(plain, f"plain{at}")
        if at % 2:
            second.commit_transaction(60)
        else:
            second.abort_transaction(60)
            uncommitted.add(f"b{at}")
        write(first, f"a{at}.1")
        if at % 3:
            first.commit_transaction(60)
        else:
            first.abort_transaction(60)
            uncommitted |= {f"a{at}.0", f"a{at}.1"}
    committed = [name for name in everything if name not in uncommitted]
    transactional["c"].begin_transaction()
    write(transactional["c"], "open")
    write(plain, "behind it")
    return everything, committed


def read(address: str, level: str) -> list[str]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False,
            "isolation.level": level, "enable.partition.eof": True, "auto.offset.reset": "earliest",
        }
    )  # fmt: skip
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    found: list[str] = []
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None, f"no end after {len(found)} records"
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                return found
            found.append(message.value().rstrip(b".").decode())
    finally:
        consumer.close()


@pytest.fixture
def written(java: Java, tmp_path: Path) -> tuple[Path, list[str], list[str]]:
    """The folder of a partition that Kafka wrote, and what is in it."""
    home = tmp_path / "kafka"
    kafka = fetch().start(home, port=free_port())
    try:
        kafka.wait_ready()
        java.tool(
            "TopicCommand", "--create", "--topic", TOPIC, "--config", "segment.bytes=1048576",
            "--bootstrap-server", kafka.address,
        )  # fmt: skip
        everything, committed = write_transactions(kafka.address)
        assert read(kafka.address, "read_committed") == committed
    finally:
        kafka.stop()
    return home / "data" / f"{TOPIC}-0", everything, committed


def test_transactions_that_kafka_wrote(
    start_broker: Callable[..., BrokerProcess], written: tuple[Path, list[str], list[str]]
) -> None:
    theirs, everything, committed = written
    their_indexes = {file.name: file.read_bytes() for file in theirs.glob("*.txnindex")}
    assert sum(map(len, their_indexes.values())) == 34 * (12 + 8)
    assert len([data for data in their_indexes.values() if data]) > 2
    ours = start_broker()
    create(ours, TOPIC, segment_bytes="1048576")
    assert ours.stop() == 0
    folder = ours.data_dir / f"{TOPIC}-0"
    for pattern in LOG_FILES:
        for old in folder.glob(pattern):
            old.unlink()
        for file in theirs.glob(pattern):
            shutil.copy(file, folder)

    # After a clean stop Kafka's indexes are believed; once they are damaged or gone, the log tells the same again.
    for damage in ("none", "torn", "lost"):
        for file in folder.glob("*.txnindex"):
            if damage == "torn":
                file.write_bytes(file.read_bytes()[:-1] or b"x")
            elif damage == "lost":
                file.unlink()
        if damage == "lost":
            (ours.data_dir / CLEAN_SHUTDOWN).unlink()
            (ours.data_dir / RECOVERY_POINTS).unlink()
        ours.start()
        assert read(ours.address, "read_uncommitted") == everything
        assert read(ours.address, "read_committed") == committed
        assert ours.stop() == 0
        files = {file.name: file.read_bytes() for file in folder.glob("*.txnindex")}
        assert {name: data for name, data in files.items() if data} == {
            name: data for name, data in their_indexes.items() if data
        }


def test_kafkas_tool_reads_transactions_that_the_log_wrote(java: Java, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    log = bench.create(segment_bytes=2000)
    writer = Writer(log)
    log.append(batch(b"plain"), 0, NOW)
    for at in range(20):
        writer.write(1, b"value" * 9)
        writer.write(2, b"value" * 9)
        writer.end(1, commit=at % 2 == 0, coordinator=3)
        writer.end(2, commit=False, coordinator=4)
    writer.write(3, b"open")
    end = log.next_offset
    bench.stop(log)

    said = dump(java, [bench.file(name) for name in bench.names(".log")], "--print-data-log")
    markers = re.findall(r"isTransactional: true isControl: true", said)
    assert len(markers) == 40
    assert len(re.findall(r"endTxnMarker: COMMIT coordinatorEpoch: 3", said)) == 10
    assert len(re.findall(r"endTxnMarker: ABORT coordinatorEpoch: 3", said)) == 10
    assert len(re.findall(r"endTxnMarker: ABORT coordinatorEpoch: 4", said)) == 20

    indexes = [bench.file(name) for name in bench.names(".txnindex")]
    assert len(indexes) > 2
    said = dump(java, indexes)
    rows = re.findall(
        r"version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", said
    )
    # The first of a pair ends while the second is open, the second leaves nothing open behind it.
    expected = []
    for base in range(1, 80, 4):
        if base // 4 % 2:
            expected.append((1, base, base + 2, base + 1))
        expected.append((2, base + 1, base + 3, base + 4))
    assert [tuple(map(int, row)) for row in rows] == expected

    said = dump(java, [bench.file(f"{end:020d}.snapshot")])
    producers = re.findall(
        r"producerId: (\d+) .*?coordinatorEpoch: (-?\d+) currentTxnFirstOffset: (\S+)", said
    )
    assert producers[-1] == ("3", "-1", f"OptionalLong[{end - 1}]")
    assert {producer[:2] for producer in producers} == {("1", "3"), ("2", "4"), ("3", "-1")}
    assert {producer[2] for producer in producers[:-1]} == {"OptionalLong.empty"}
