"""`ottla txn` with Apache Kafka as the broker, and on a directory that Kafka has left with something that hangs."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.process import Process, free_port
from ottla.records.record import Record, encode_batch
from tests.crash.broker_process import BrokerProcess, Wire
from tests.interop.kafka_directory import PATIENCE_S, TIME, running
from tests.interop.programs import Java, Said, run
from tests.interop.test_kafka_transactions import read

OTTLA = str(Path(sys.executable).parent / "ottla")
TOPIC = "shared"
PRODUCE, INIT_PRODUCER_ID = 0, 22
#: Longer than any test.
TIMEOUT_MS = 600_000
#: Without it a batch of a transaction that nobody has begun is taken, as all brokers before KIP-890 took it.
UNVERIFIED = {"transaction.partition.verification.enable": "false", "transaction.max.timeout.ms": "1200000"}


#: Kafka, or ottla: whatever has an address.
Served = Process | BrokerProcess


@contextmanager
def unverified(home: Path) -> Iterator[Process]:
    with running("4", home, UNVERIFIED) as process:
        admin = AdminClient({"bootstrap.servers": process.address, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(PATIENCE_S)
        yield process


@pytest.fixture
def kafka(java: Java, tmp_path: Path) -> Iterator[Process]:
    del java  # only asks whether it is here
    with unverified(tmp_path / "kafka") as process:
        yield process


def ottla(broker: Served, *arguments: str, code: int = 0) -> Said:
    return run([OTTLA, "txn", *arguments, "--bootstrap", broker.address], code=code)


def told(broker: Served, *arguments: str) -> Any:
    return json.loads(ottla(broker, *arguments, "--json").out)


def begin(kafka: Served, name: str, value: bytes) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": kafka.address,
            "transactional.id": name,
            "transaction.timeout.ms": TIMEOUT_MS,
            "log_level": 0,
        }
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(TOPIC, value, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    return producer


def hang(kafka: Served, name: str) -> int:
    """A batch of a producer that has no transaction, which then is open for ever; the producer's id."""
    with Wire(kafka.address) as wire:
        made = wire.ask(
            INIT_PRODUCER_ID, 4, transactional_id=name, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
        )  # fmt: skip
        assert int(made.error_code) == 0
        batch = encode_batch(
            [Record(0, TIME, None, b"hangs")], producer_id=made.producer_id, producer_epoch=made.producer_epoch,
            base_sequence=0, transactional=True,
        )  # fmt: skip
        answer = wire.ask(
            PRODUCE, 11, transactional_id=name, acks=-1, timeout=30_000,
            topic_data=[{"name": TOPIC, "partition_data": [{"index": 0, "records": batch}]}],
        )  # fmt: skip
        assert int(answer.responses[0].partition_responses[0].error_code) == 0
        return int(made.producer_id)


def test_transactions_of_kafka(kafka: Process) -> None:
    going_on = begin(kafka, "going-on", b"aborted")
    [row] = told(kafka, "list", "--state", "Ongoing")
    assert row["transactional_id"] == "going-on"
    assert told(kafka, "list", "--pattern", "going-.*", "--longer-than", "1ms") == [row]
    assert told(kafka, "list", "--longer-than", "1h") == []
    described = told(kafka, "describe", "going-on")
    assert (described["state"], described["timeout_ms"]) == ("Ongoing", TIMEOUT_MS)
    assert described["partitions"] == [{"topic": TOPIC, "partition": 0}]
    [producer] = told(kafka, "describe", "--topic", TOPIC, "--partition", "0")
    start = producer["start_offset"]
    assert producer["producer_id"] == described["producer_id"] and start == 0

    ghost = hang(kafka, "ghost")
    plain = Producer({"bootstrap.servers": kafka.address, "log_level": 0})
    plain.produce(TOPIC, b"behind", partition=0)
    assert plain.flush(PATIENCE_S) == 0
    # Its time is the record's here.
    [hanging] = told(kafka, "list", "--hanging")
    assert (hanging["topic"], hanging["partition"], hanging["producer_id"]) == (TOPIC, 0, ghost)
    assert (hanging["transactional_id"], hanging["start_offset"]) == ("ghost", 1)
    assert told(kafka, "list", "--hanging", "--topic", f"{TOPIC}:1") == []
    assert (
        "going-on"
        in ottla(kafka, "abort", "--topic", TOPIC, "--partition", "0", "--start-offset", "0", code=1).errors
    )

    assert read(kafka.address, "read_committed") == []
    assert told(kafka, "abort", "going-on")["partitions"] == [f"{TOPIC}-0"]
    with pytest.raises(KafkaException):
        going_on.commit_transaction(PATIENCE_S)
    assert told(kafka, "describe", "going-on")["state"] != "Ongoing"
    assert read(kafka.address, "read_committed") == []
    told(kafka, "abort", "--topic", TOPIC, "--partition", "0", "--start-offset", "1")
    assert read(kafka.address, "read_committed") == ["behind"]
    assert told(kafka, "list", "--hanging", "--older-than", "0ms") == []
    assert "List the ids with" in ottla(kafka, "abort", "nobody", code=4).errors

    # The markers of its coordinator still count.
    again = begin(kafka, "ghost", b"again")
    again.commit_transaction(PATIENCE_S)
    assert read(kafka.address, "read_committed") == ["behind", "again"]


def test_what_kafka_left_behind(java: Java, tmp_path: Path) -> None:
    del java
    with unverified(tmp_path) as kafka:
        begin(kafka, "going-on", b"aborted")
        ghost = hang(kafka, "ghost")
        plain = Producer({"bootstrap.servers": kafka.address, "log_level": 0})
        plain.produce(TOPIC, b"behind", partition=0)
        assert plain.flush(PATIENCE_S) == 0
    with BrokerProcess(tmp_path / "data", free_port()) as broker:
        [hanging] = told(broker, "list", "--hanging", "--older-than", "0ms")
        assert (hanging["producer_id"], hanging["transactional_id"], hanging["start_offset"]) == (
            ghost,
            "ghost",
            1,
        )
        assert told(broker, "describe", "going-on")["state"] == "Ongoing"
        told(broker, "abort", "going-on")
        assert read(broker.address, "read_committed") == []
        told(broker, "abort", "--topic", TOPIC, "--partition", "0", "--start-offset", "1")
        assert read(broker.address, "read_committed") == ["behind"]
        begin(broker, "ghost", b"again").commit_transaction(PATIENCE_S)
        assert read(broker.address, "read_committed") == ["behind", "again"]
        assert broker.stop() == 0
