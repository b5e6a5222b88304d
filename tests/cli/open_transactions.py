"""Open and hanging transactions for the tests of the command line."""

import shutil
from pathlib import Path
from typing import Any

import confluent_kafka

from ottla.client.metadata import TopicPartition

PATIENCE_S = 30
#: Longer than any test.
TIMEOUT_MS = 600_000
QUIET = {"log_level": 0}


def begin(address: str, name: str, *places: TopicPartition) -> confluent_kafka.Producer:
    """A producer with an open transaction that has a record in each of these partitions."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": address, "transactional.id": name, "transaction.timeout.ms": TIMEOUT_MS, **QUIET,
        }
    )  # fmt: skip
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for place in places:
        producer.produce(place.topic, name, partition=place.partition)
    assert producer.flush(PATIENCE_S) == 0
    return producer


def reader(address: str, group: str = "reader", **more: Any) -> confluent_kafka.Consumer:
    settings = {"bootstrap.servers": address, "group.id": group, "enable.auto.commit": False, **QUIET, **more}
    return confluent_kafka.Consumer(settings)


def committed(address: str, place: TopicPartition) -> list[bytes]:
    """The records that a read_committed consumer sees, up to the last stable offset."""
    consumer = reader(address, **{"isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([confluent_kafka.TopicPartition(place.topic, place.partition, 0)])
    values = []
    while (message := consumer.poll(PATIENCE_S)).error() is None:
        values.append(message.value())
    consumer.close()
    return values


def lose_coordinators(data_dir: Path) -> None:
    """Delete the coordinator logs of a stopped broker: its open transactions hang."""
    folders = list(data_dir.glob("__transaction_state-*"))
    assert folders
    for folder in folders:
        shutil.rmtree(folder)
