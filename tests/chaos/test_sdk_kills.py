"""A million records through the SDK while its broker is killed again and again: each there once and in order, in bounded memory."""

import gc
import threading
import time
from pathlib import Path

import pytest

import ottla
from tests.cluster.running_cluster import free_ports
from tests.crash.broker_process import BrokerProcess
from tests.sdk.reading import descriptors

RECORDS = 1_000_000
PARTITIONS = 4
KILLS = 6
LIMIT_S = 400.0
GROWTH_BYTES_MAX = 32 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.timeout(LIMIT_S + 60)
def test_a_million_records_under_kills(tmp_path: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    kills = 0
    with BrokerProcess(
        tmp_path / "data", next(free_ports()), {"group.initial.rebalance.delay.ms": "0"}
    ) as broker:
        with ottla.Admin(broker.address) as admin:
            admin.create_topic("orders", PARTITIONS)

        threads, open_before = threading.active_count(), descriptors()
        settings = {"retry_backoff_ms": 20, "retry_backoff_max_ms": 200}
        with (
            ottla.Producer(broker.address, buffer_memory=8 << 20, **settings) as producer,
            ottla.Consumer(
                broker.address,
                group_id="readers",
                auto_offset_reset="earliest",
                partition_assignment_strategy=["cooperative-sticky"],
                **settings,
            ) as consumer,
        ):
            consumer.subscribe(["orders"])
            failed: list[object] = []

            def send() -> None:
                for number in range(RECORDS):
                    producer.send("orders", b"%d" % number, partition=number % PARTITIONS, on_delivery=heard)

            def heard(_place: object, error: object) -> None:
                if error is not None:
                    failed.append(error)

            sender = threading.Thread(target=send)
            sender.start()
            following = dict.fromkeys(range(PARTITIONS), 0)
            sizes: list[int] = []
            left = RECORDS
            try:
                while left > 0:
                    assert time.monotonic() < deadline and not failed, (left, failed[:1])
                    for (_, partition), records in consumer.poll(500, max_records=5_000).items():
                        for record in records:
                            # Read again after a lost commit it may be; never out of its place.
                            assert int(record.value) == record.offset * PARTITIONS + partition
                            assert record.offset <= following[partition]
                            if record.offset == following[partition]:
                                following[partition] += 1
                                left -= 1
                    if kills < KILLS * (RECORDS - left) // RECORDS:
                        broker.kill()
                        broker.start()
                        kills += 1
                    if len(sizes) < 20 * (RECORDS - left) // RECORDS:
                        gc.collect()
                        sizes.append(resident_bytes())
            finally:
                sender.join(60)
        assert kills == KILLS
        # The first half fills the buffers: small records with callbacks take ten times their bytes.
        assert max(sizes[10:]) - sizes[10] < GROWTH_BYTES_MAX, sizes
        gc.collect()
        # The broker's own output is read by a thread, before and after.
        assert threading.active_count() <= threads and descriptors() <= open_before + 1
