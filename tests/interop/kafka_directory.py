"""A data directory as Apache Kafka leaves it behind: filled by a client, then stopped cleanly or killed.

`fill` makes one topic for each thing that has to survive a change of broker and returns what a reader must find. Nothing
here knows ottla. `python -m tests.interop.kafka_directory SERIES TARGET` writes the small fixture that the tests
without Java read.
"""

import gzip
import io
import os
import shutil
import signal
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from bench.kafka import fetch
from bench.process import Process, free_port

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "log.cleaner.backoff.ms": "200",
    "log.initial.task.delay.ms": "200",
    "auto.create.topics.enable": "false",
}
TIME = 1_700_000_000_000
PATIENCE_S = 60


Records: TypeAlias = dict[tuple[str, int], dict[int, tuple[bytes | None, bytes | None]]]


class Left(NamedTuple):
    """What a reader must find: for each (topic, partition) its records by offset, and each topic's own settings."""

    records: Records
    settings: dict[str, dict[str, str]]
    starts: dict[tuple[str, int], int]


@contextmanager
def running(series: str, home: Path, settings: Mapping[str, str] | None = None) -> Iterator[Process]:
    process = fetch(series).start(home, port=free_port(), settings={**SETTINGS, **(settings or {})})
    try:
        process.wait_ready(120)
        yield process
    finally:
        process.stop()


def kill(process: Process) -> None:
    """As a power switch would, but for what the kernel still holds."""
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


class Filling:
    def __init__(self, address: str) -> None:
        self.address = address
        self.admin = AdminClient({"bootstrap.servers": address})
        self.left = Left({}, {}, {})

    def create(self, name: str, partitions: int = 1, **settings: str) -> None:
        config = {key.replace("_", "."): value for key, value in settings.items()}
        done = self.admin.create_topics([NewTopic(name, partitions, 1, config=config)])
        done[name].result(PATIENCE_S)
        if config:
            self.left.settings[name] = config

    def produce(
        self,
        topic: str,
        rows: list[tuple[bytes | None, bytes | None]],
        *,
        partition: int = 0,
        producer: Producer | None = None,
        **settings: Any,
    ) -> None:
        client = producer or Producer(
            {
                "bootstrap.servers": self.address,
                "linger.ms": 5,
                # A first batch that comes too early is sent again, and must not change places with the next.
                "max.in.flight": 1,
                **{k.replace("_", "."): v for k, v in settings.items()},
            }
        )
        kept = self.left.records.setdefault((topic, partition), {})

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            kept[message.offset()] = (message.key(), message.value())

        for number, (key, value) in enumerate(rows):
            client.produce(
                topic, value, key, partition, on_delivery=delivered, timestamp=TIME + number * 1000
            )
        assert client.flush(PATIENCE_S) == 0

    def delete_records(self, topic: str, before: int) -> None:
        done = self.admin.delete_records([TopicPartition(topic, 0, before)])
        for each in done.values():
            each.result(PATIENCE_S)
        kept = self.left.records[topic, 0]
        for offset in [offset for offset in kept if offset < before]:
            del kept[offset]
        self.left.starts[topic, 0] = before

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(PATIENCE_S)
        self.left.settings.pop(topic, None)
        for place in [place for place in self.left.records if place[0] == topic]:
            del self.left.records[place]

    def alter(self, topic: str, name: str, value: str | None) -> None:
        kind = AlterConfigOpType.SET if value is not None else AlterConfigOpType.DELETE
        entry = ConfigEntry(name, value, incremental_operation=kind)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for each in self.admin.incremental_alter_configs([resource]).values():
            each.result(PATIENCE_S)
        settings = self.left.settings.setdefault(topic, {})
        if value is None:
            settings.pop(name)
        else:
            settings[name] = value

    def alter_broker(self, broker: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, broker, incremental_configs=[entry])
        for each in self.admin.incremental_alter_configs([resource]).values():
            each.result(PATIENCE_S)

    def commit(self, group: str, topic: str, offset: int) -> None:
        """Makes the topic of the groups' offsets, too."""
        consumer = Consumer(
            {"bootstrap.servers": self.address, "group.id": group, "enable.auto.commit": False}
        )
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        asked = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])]
        for each in self.admin.list_consumer_group_offsets(asked).values():
            assert each.result(PATIENCE_S).topic_partitions[0].offset == offset
        consumer.close()

    def compact(self, topic: str) -> None:
        """Write the same keys again and again until Kafka's cleaner has been here; what is left is what it serves."""
        written = [(b"key-%d" % (number % 10), b"%d" % number * 200) for number in range(3000)]
        self.produce(topic, written)
        deadline = time.monotonic() + PATIENCE_S
        before: Any = None
        while True:
            now = read(self.address, {(topic, 0)}, {})[topic, 0]
            if len(now) < len(written) and now == before:
                break
            assert time.monotonic() < deadline, f"{topic} was not compacted"
            before = now
        self.left.records[topic, 0] = now

    def transactions(self, topic: str) -> None:
        producer = Producer({"bootstrap.servers": self.address, "transactional.id": "teller"})
        producer.init_transactions(PATIENCE_S)
        for name, end in ((b"kept", producer.commit_transaction), (b"dropped", producer.abort_transaction)):
            producer.begin_transaction()
            self.produce(topic, [(name, b"%d" % number) for number in range(3)], producer=producer)
            end(PATIENCE_S)


def read(address: str, places: Iterable[tuple[str, int]], starts: Mapping[tuple[str, int], int]) -> Records:
    """All records of these partitions, from their starts to their ends."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_uncommitted",
        }
    )
    found: Records = {place: {} for place in places}
    consumer.assign([TopicPartition(*place, starts.get(place, 0)) for place in found])
    ended: set[tuple[str, int]] = set()
    while len(ended) < len(found):
        message = consumer.poll(PATIENCE_S)
        assert message is not None, f"nothing more of {set(found) - ended}"
        place = (message.topic(), message.partition())
        if message.error() is not None:
            ended.add(place)
        else:
            found[place][message.offset()] = (message.key(), message.value())
    consumer.close()
    return found


def rows(count: int, size: int = 60) -> list[tuple[bytes | None, bytes | None]]:
    return [(b"key-%d" % number, (b"value-%d " % number).ljust(size, b".")) for number in range(count)]


def fill(address: str, *, count: int = 2000) -> Left:
    """Everything that must survive."""
    filling = Filling(address)
    for codec in CODECS:
        filling.create(f"codec-{codec}", segment_bytes="1048576")
        filling.produce(f"codec-{codec}", rows(count, 600), compression_codec=codec)
    filling.create("wide", 5, retention_ms="-1")
    for partition in range(5):
        filling.produce("wide", rows(10 + partition), partition=partition)
    filling.create("idempotent")
    filling.produce("idempotent", rows(100), enable_idempotence=True)
    filling.produce("idempotent", rows(100), enable_idempotence=True)
    filling.create("trimmed")
    filling.produce("trimmed", rows(100))
    filling.delete_records("trimmed", 40)
    filling.create("gone", 2)
    filling.produce("gone", rows(10))
    filling.delete("gone")
    filling.create("again")
    filling.produce("again", rows(50))
    filling.delete("again")
    filling.create("again", 2)
    filling.produce("again", rows(5))
    filling.create("grown", 1)
    filling.admin.create_partitions([NewPartitions("grown", 3)])["grown"].result(PATIENCE_S)
    filling.produce("grown", rows(7), partition=2)
    filling.create("set", retention_ms="86400000", max_message_bytes="2000000")
    filling.alter("set", "retention.ms", None)
    filling.alter("set", "cleanup.policy", "compact,delete")
    filling.create("empty", 2)
    filling.create("nothing.in_it")
    filling.alter_broker("1", "log.retention.ms", "987654321")
    filling.alter_broker("1", "log.cleaner.threads", "2")
    filling.create(
        "compacted", cleanup_policy="compact", segment_bytes="1048576", min_cleanable_dirty_ratio="0.01"
    )
    filling.compact("compacted")
    filling.create("money")
    filling.transactions("money")
    filling.produce("wide", [(None, None), (b"tombstone", None)])
    filling.commit("readers", "wide", 7)
    return filling.left


def write_fixture(series: str, target: Path) -> None:
    """A small directory as a compressed archive: sparse and zero-filled files shrink to nothing."""
    home = Path(tempfile.mkdtemp())
    try:
        with running(series, home, {"log.index.size.max.bytes": "4096"}) as kafka:
            filling = Filling(kafka.address)
            filling.create("orders", 2, cleanup_policy="compact")
            filling.produce("orders", rows(5), compression_codec="zstd")
            filling.produce("orders", rows(3), enable_idempotence=True)
            filling.create("trimmed", retention_ms="-1")
            filling.produce("trimmed", rows(10))
            filling.delete_records("trimmed", 4)
            filling.create("gone")
            filling.delete("gone")
            filling.alter("trimmed", "retention.ms", "123456")
            filling.alter_broker("1", "log.retention.ms", "987654321")
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(home / "data", "data", filter=_anonymous)
        target.write_bytes(gzip.compress(archive.getvalue(), 9, mtime=0))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    return entry


if __name__ == "__main__":
    write_fixture(sys.argv[1], Path(sys.argv[2]))
