"""The time to compact a log, and its effect on producers.

A topic is filled with `cleanup.policy=delete`. Then the policy becomes `compact`, and the clock runs until
the broker's `cleaner-offset-checkpoint`, which both brokers write in the same format, covers every closed
segment. Meanwhile, and before for comparison, one request at a time goes to another topic. Both brokers look
for work every 0.5 s.
"""

import time
from pathlib import Path
from random import Random

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from bench.measure import quantile
from bench.process import Brokers
from bench.raw import RawProducer
from bench.workloads import QUEUED_MESSAGES_MAX, Figures, WorkloadFailed

SETTINGS = {"log.cleaner.backoff.ms": "500"}
TOPIC_CONFIG = {
    "segment.bytes": str(128 << 20), "min.cleanable.dirty.ratio": "0.01", "file.delete.delay.ms": "1000",
    "max.message.bytes": "2000000",
}  # fmt: skip
MESSAGE_BYTES = 1024
SMALL_BYTES = 100
#: Interval between checks of the checkpoint.
TRIPS = 50
QUIET_S = 5.0
PATIENCE_S = 600.0
CHECKPOINT = "cleaner-offset-checkpoint"


def fill(broker: Brokers, topic: str, *, messages: int, keys: int) -> None:
    """1 KB messages with random keys, the same for every broker."""
    random = Random(1)
    value = random.randbytes(MESSAGE_BYTES - 16)
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": broker.address, "acks": "all", "linger.ms": 20, "batch.size": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 20, "on_delivery": delivered,
            "delivery.report.only.error": True,
        }
    )  # fmt: skip
    left = messages
    while left:
        room = min(left, 1000, QUEUED_MESSAGES_MAX - len(producer))
        if room <= 0:
            producer.poll(0.001)
            continue
        rows = [{"key": b"%016d" % random.randrange(keys), "value": value} for _ in range(room)]
        left -= producer.produce_batch(topic, rows, partition=0)
        producer.poll(0)
    if producer.flush(120) or failed:
        raise WorkloadFailed(f"{broker.name}: {len(failed)} messages of {topic} failed {failed[:1]}")


def compact(broker: Brokers, topic: str, other: str, data_dir: Path) -> Figures:
    """Enable compaction, and wait until it is done."""
    with RawProducer(broker.leader_port(topic), other, SMALL_BYTES) as producer:
        producer.round_trips_ns(1000)
        quiet: list[int] = []
        begin = time.perf_counter()
        while time.perf_counter() - begin < QUIET_S:
            quiet += producer.round_trips_ns(TRIPS)
        folder = next(data_dir.rglob(f"{topic}-0"))
        before = _size(folder)
        # All but the active segment.
        end = max(int(path.stem) for path in folder.glob("*.log"))
        _set_policy(broker, topic)
        busy: list[int] = []
        begin = time.perf_counter()
        while _cleaned(folder.parent, topic) < end:
            busy += producer.round_trips_ns(TRIPS)
            if time.perf_counter() - begin > PATIENCE_S or not broker.alive():
                raise WorkloadFailed(f"{broker.name} did not compact {topic} within {PATIENCE_S:.0f} s")
        seconds = time.perf_counter() - begin
    quiet.sort()
    busy.sort()
    return {
        "compaction_s": seconds,
        "compaction_mb_s": before / 1e6 / seconds,
        "quiet_p99_ms": quantile(quiet, 0.99) / 1e6,
        "compacting_p99_ms": quantile(busy, 0.99) / 1e6,
        "compacting_p999_ms": quantile(busy, 0.999) / 1e6,
        "compacted_share": _size(folder) / before,
    }


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def _cleaned(data_dir: Path, topic: str) -> int:
    try:
        lines = (data_dir / CHECKPOINT).read_text().splitlines()
    except FileNotFoundError:
        return 0
    for line in lines[2:]:
        name, partition, offset = line.split()
        if (name, partition) == (topic, "0"):
            return int(offset)
    return 0


def _set_policy(broker: Brokers, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    resource.add_incremental_config(
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    )
    admin.incremental_alter_configs([resource])[resource].result(30)
