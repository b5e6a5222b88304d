"""kill -9 while a log is compacted under load: the newest acknowledged record of every key is there, and the broker starts."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from ottla.log.checkpoints import parse_offsets
from ottla.log.names import CLEANED_OFFSETS
from tests.crash.broker_process import PATIENCE_S, BrokerProcess, Wire, wait_until

KEYS = 50
SETTINGS = {"log.cleaner.backoff.ms": "100", "log.recovery.point.interval.bytes": "20000"}


class Writer:
    """Numbers, each under one of a few keys, sent until they are acknowledged."""

    def __init__(self, address: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": address, "enable.idempotence": True, "batch.num.messages": 20,
                "linger.ms": 1, "delivery.timeout.ms": 600_000, "retry.backoff.ms": 10,
                "retry.backoff.max.ms": 50, "reconnect.backoff.ms": 5, "reconnect.backoff.max.ms": 50,
                "log_level": 0,
            }
        )  # fmt: skip
        self.sent = 0
        self.acknowledged = 0
        #: By key: the number sent last.
        self.newest: dict[bytes, int] = {}
        self.offsets: dict[int, int] = {}

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        self.acknowledged += 1
        self.offsets[int(message.value().split(b".")[0])] = message.offset()

    def run_until(self, acknowledged: int) -> None:
        while self.acknowledged < acknowledged:
            while self.sent - self.acknowledged < 500:
                key = b"key%d" % (self.sent % KEYS)
                self.newest[key] = self.sent
                value = b"%d." % self.sent + b"x" * 100
                self._producer.produce("t", value, key, partition=0, on_delivery=self._delivered)
                self.sent += 1
            self._producer.poll(0.05)

    def finish(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0


def read(address: str) -> list[tuple[int, bytes, int]]:
    consumer = Consumer(
        {
            "bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False,
            "enable.partition.eof": True, "check.crcs": True,
        }
    )  # fmt: skip
    found = []
    try:
        consumer.assign([TopicPartition("t", 0, 0)])
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            found.append((message.offset(), message.key(), int(message.value().split(b".")[0])))
    finally:
        consumer.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("policy", ["durable", "page-cache"])
def test_kill_9_while_compacting_loses_no_newest_record(
    policy: str, tmp_path: Path, free_port: int, seed: Callable[[], int]
) -> None:
    random_ = random.Random(seed())
    with BrokerProcess(tmp_path / "data", free_port, {**SETTINGS, "log.flush.policy": policy}) as broker:
        with Wire(broker.address) as wire:
            wire.create(
                "t", cleanup_policy="compact", segment_bytes="15000", min_cleanable_dirty_ratio="0.01",
                file_delete_delay_ms="50",
            )  # fmt: skip
        folder = broker.data_dir / "t-0"
        caught: set[str] = set()
        writer = Writer(broker.address)
        for _ in range(12):
            writer.run_until(writer.acknowledged + random_.randrange(100, 1500))
            moment = random_.choice((".cleaned", ".swap", ".deleted"))
            # In the middle of a pass, if one comes while the next few hundred are written.
            limit = writer.acknowledged + 2000
            while writer.acknowledged < limit and not any(folder.glob(f"*{moment}")):
                writer.run_until(writer.acknowledged + 20)
            caught |= {path.suffix for path in folder.iterdir()} & {".cleaned", ".swap", ".deleted"}
            broker.kill()
            broker.start()
        writer.finish()

        def is_clean() -> bool:
            data = (broker.data_dir / CLEANED_OFFSETS).read_bytes()
            end = max(int(path.stem) for path in folder.glob("*.log"))
            return (parse_offsets(data) or {}).get(("t", 0), 0) >= end

        wait_until(is_clean, "compaction")
        found = read(broker.address)
        offsets = [offset for offset, _key, _number in found]
        assert offsets == sorted(set(offsets))
        assert {key: number for _offset, key, number in found} == writer.newest
        assert all(writer.offsets[number] == offset for offset, _key, number in found)
        assert len(found) < writer.sent / 4
        assert not [name for name in folder.iterdir() if name.suffix in (".swap", ".cleaned")]
        assert "DAMAGED" not in broker.words
    print(f"{writer.sent} messages, killed while there were {sorted(caught)}")
    assert caught, "no kill fell into a pass"
