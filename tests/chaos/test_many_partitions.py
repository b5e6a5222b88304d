from pathlib import Path

import pytest

from tests.crash.broker_process import BrokerProcess, Wire
from tests.crash.many_partitions import check, create, descriptors, fill, start_seconds, topics_of

PARTITIONS = 10_000
DESCRIPTORS = 1000


@pytest.mark.parametrize("policy", ["durable", "page-cache"])
def test_ten_thousand_partitions_start_in_seconds(tmp_path: Path, free_port: int, policy: str) -> None:
    """Each with two segments, within a thousand descriptors: 3 s after a clean stop, 10 s after kill -9."""
    partitions = topics_of(PARTITIONS)
    settings = {"log.flush.policy": policy}
    with BrokerProcess(tmp_path / "data", free_port, settings, descriptors=DESCRIPTORS) as broker:
        with Wire(broker.address) as wire:
            create(wire, PARTITIONS)
        for number in (0, 1):
            fill(broker.address, partitions, number)
        broker.kill()
        killed = start_seconds(broker, *partitions[-1], 2)
        check(broker.address, partitions, 2)
        assert broker.stop() == 0
        clean = start_seconds(broker, *partitions[-1], 2)
        check(broker.address, partitions, 2)
        assert descriptors(broker) < DESCRIPTORS // 2
        # In the middle of everything being written, with flushes under way.
        fill(broker.address, partitions, 2)
        broker.kill()
        again = start_seconds(broker, *partitions[-1], 3)
        check(broker.address, partitions, 3)
        assert broker.stop() == 0
    print(f"first answer {killed:.2f} and {again:.2f} s after kill -9, {clean:.2f} s after a clean stop")
    assert max(killed, again) < 10
    assert clean < 3
