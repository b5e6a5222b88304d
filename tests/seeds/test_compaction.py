"""The claim of mission.md about compaction (B6), through a running broker and somebody else's client."""

# ruff: noqa: N802 (a test bears the id of its claim)

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from ottla.log.checkpoints import parse_offsets
from ottla.log.names import CLEANED_OFFSETS
from tests.crash.broker_process import PATIENCE_S, BrokerProcess, Wire, wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KEYS = 200
SETTINGS = {"log.cleaner.backoff.ms": "100", "log.retention.check.interval.ms": "300"}
COMPACTED = {
    "cleanup_policy": "compact", "segment_bytes": "20000", "min_cleanable_dirty_ratio": "0.01",
    "file_delete_delay_ms": "100", "delete_retention_ms": "600000",
}  # fmt: skip


@pytest.fixture
def broker(tmp_path: Path, free_port: int) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", free_port, SETTINGS) as process:
        yield process


def produce(
    address: str, topic: str, rows: list[tuple[str, str | None]], codec: str = "none", idempotent: bool = True
) -> None:
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": address, "enable.idempotence": idempotent, "linger.ms": 2,
            "batch.num.messages": 50, "compression.type": codec, "on_delivery": delivered,
        }
    )  # fmt: skip
    for key, value in rows:
        producer.produce(topic, value, key, headers=[("of", key.encode())])
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []


def read(address: str, topic: str, offset: int = 0) -> list[tuple[int, str, str | None]]:
    """(offset, key, value) of everything from an offset to the end, as a consumer gets it."""
    consumer = Consumer(
        {
            "bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False,
            "enable.partition.eof": True, "check.crcs": True, "auto.offset.reset": "earliest",
        }
    )  # fmt: skip
    found = []
    try:
        consumer.assign([TopicPartition(topic, 0, offset)])
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, "the end was not reached"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            key, value = message.key(), message.value()
            assert message.headers() == [("of", key)]
            found.append((message.offset(), key.decode(), value.decode() if value is not None else None))
    finally:
        consumer.close()


def cleaned_to(data_dir: Path, topic: str) -> int:
    """How far compaction says it has come, in Kafka's own file."""
    path = data_dir / CLEANED_OFFSETS
    offsets = parse_offsets(path.read_bytes()) if path.exists() else None
    return (offsets or {}).get((topic, 0), 0)


def wait_cleaned(data_dir: Path, topic: str) -> None:
    """Until all closed segments are clean."""

    def active() -> int:
        return max(int(path.stem) for path in (data_dir / f"{topic}-0").glob("*.log"))

    wait_until(lambda: 0 < active() <= cleaned_to(data_dir, topic), "compaction")


def test_B6_compaction_keeps_the_newest_record_of_each_key(broker: BrokerProcess) -> None:
    """With every codec, each in a topic of its own; all are compacted side by side."""
    rows: list[tuple[str, str | None]] = [
        (f"key-{(at * 7) % KEYS}", f"value-{at}" * 5) for at in range(10 * KEYS)
    ]
    newest = {key: (offset, key, value) for offset, (key, value) in enumerate(rows)}
    with Wire(broker.address) as wire:
        for codec in CODECS:
            wire.create(codec, **{**COMPACTED, "segment_bytes": "4000" if codec != "none" else "20000"})
    for codec in CODECS:
        produce(broker.address, codec, rows, codec)
    before: dict[str, set[tuple[int, str, str | None]]] = {}
    for codec in CODECS:
        wait_cleaned(broker.data_dir, codec)
        found = read(broker.address, codec)
        assert len(found) < len(rows) / 2
        assert {key: (offset, key, value) for offset, key, value in found} == newest
        assert found == [(offset, *rows[offset]) for offset, _key, _value in found], (
            "where and what they were"
        )
        # From the middle of what is gone, the next record that is there.
        gone = next(offset for offset in range(len(rows)) if offset != found[offset][0])
        assert read(broker.address, codec, gone)[0] == next(row for row in found if row[0] >= gone)
        before[codec] = set(found)
    # The same after a start that has nothing but the files.
    broker.kill()
    broker.start()
    for codec in CODECS:
        again = set(read(broker.address, codec))
        assert set(newest.values()) <= again <= before[codec]


def test_B6_tombstones_are_kept_for_their_time_and_then_go(broker: BrokerProcess) -> None:
    with Wire(broker.address) as wire:
        wire.create("t", **COMPACTED)
    produce(broker.address, "t", [(f"key-{at % KEYS}", "v" * 30) for at in range(5 * KEYS)])
    produce(broker.address, "t", [(f"key-{at}", None) for at in range(0, KEYS, 2)])
    more = [(f"other-{at}", "v" * 100) for at in range(500)]
    produce(broker.address, "t", more)
    wait_cleaned(broker.data_dir, "t")
    deleted = {key for _offset, key, value in read(broker.address, "t") if value is None}
    assert deleted == {f"key-{at}" for at in range(0, KEYS, 2)}

    resource = ConfigResource(ResourceType.TOPIC, "t")
    resource.add_incremental_config(
        ConfigEntry("delete.retention.ms", "0", incremental_operation=AlterConfigOpType.SET)
    )
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    # Those that were seen under the old setting keep their horizon; a tombstone that is new goes in the second pass.
    produce(broker.address, "t", [("other-7", None)])
    for turn in range(2):
        produce(broker.address, "t", [(f"turn-{turn}-{at}", "v" * 100) for at in range(500)])
        wait_cleaned(broker.data_dir, "t")
    found = read(broker.address, "t")
    assert "other-7" not in {key for _offset, key, _value in found}
    assert {key for _offset, key, value in found if value is None} == deleted


def test_B6_compaction_begins_and_ends_with_the_policy(broker: BrokerProcess) -> None:
    def set_policy(policy: str) -> None:
        resource = ConfigResource(ResourceType.TOPIC, "t")
        resource.add_incremental_config(
            ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        )
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

    admin = AdminClient({"bootstrap.servers": broker.address})
    with Wire(broker.address) as wire:
        wire.create("t", **{**COMPACTED, "cleanup_policy": "delete"})
        wire.create("u", **COMPACTED)
    rows: list[tuple[str, str | None]] = [(f"key-{at % 10}", "v" * 100) for at in range(600)]
    produce(broker.address, "t", rows)
    # The other topic is compacted meanwhile, and this one is not.
    produce(broker.address, "u", rows)
    wait_cleaned(broker.data_dir, "u")
    assert len(read(broker.address, "t")) == len(rows)
    set_policy("compact")
    wait_cleaned(broker.data_dir, "t")
    assert len(read(broker.address, "t")) < len(rows) / 2
    set_policy("delete")
    before = cleaned_to(broker.data_dir, "t")
    produce(broker.address, "t", rows)
    produce(broker.address, "u", rows)
    wait_cleaned(broker.data_dir, "u")
    assert cleaned_to(broker.data_dir, "t") == before


def test_B6_compact_and_delete_do_both(broker: BrokerProcess) -> None:
    with Wire(broker.address) as wire:
        wire.create(
            "t",
            **{
                **COMPACTED,
                "cleanup_policy": "compact,delete",
                "retention_ms": "3600000",
                "segment_ms": "3600000",
            },
        )
    old = int(time.time() * 1000) - 7_200_000
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 2, "batch.num.messages": 50})
    for at in range(400):
        producer.produce(
            "t", "v" * 100, f"old-{at % 10}", timestamp=old + at, headers=[("of", f"old-{at % 10}")]
        )
    assert producer.flush(PATIENCE_S) == 0
    produce(broker.address, "t", [(f"new-{at % 10}", "v" * 100) for at in range(800)])
    wait_cleaned(broker.data_dir, "t")

    def keys() -> set[str]:
        return {key for _offset, key, _value in read(broker.address, "t")}

    wait_until(lambda: keys() == {f"new-{at}" for at in range(10)}, "the going of what is too old")
    assert len(read(broker.address, "t")) < 400


def test_the_worker_ends_with_its_broker_and_leaves_nothing(broker: BrokerProcess) -> None:
    with Wire(broker.address) as wire:
        wire.create("t", **COMPACTED)
    produce(broker.address, "t", [(f"key-{at % KEYS}", "v" * 30) for at in range(10 * KEYS)])
    wait_cleaned(broker.data_dir, "t")
    workers = children(broker.pid)
    assert len(workers) == 1
    folder = broker.data_dir / "t-0"
    wait_until(lambda: not list(folder.glob("*.deleted")), "the old files' going")
    assert not [path.name for path in folder.iterdir() if path.suffix in (".swap", ".cleaned")]
    broker.kill()
    wait_until(lambda: not Path(f"/proc/{workers[0]}/cmdline").exists(), "the worker's end")
    broker.start()
    assert broker.stop() == 0


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(each) for each in (task / "children").read_text().split()]
    return found
