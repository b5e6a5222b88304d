"""Read a topic from beginning to end with the SDK's consumer, and wait for conditions."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import ottla
from ottla import TopicPartition

PATIENCE_S = 60.0


def contents(address: str, topic: str, **settings: Any) -> dict[int, list[Any]]:
    """The records of each partition, up to the end that such a consumer sees."""
    with ottla.Consumer(address, auto_offset_reset="earliest", **settings) as consumer:
        places = [
            tp if isinstance(tp, TopicPartition) else TopicPartition(topic, tp)
            for tp in consumer.partitions_for(topic)
        ]
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        found: dict[int, list[Any]] = {tp.partition: [] for tp in places}
        deadline = time.monotonic() + PATIENCE_S
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            assert time.monotonic() < deadline, f"no end in sight: {ends}"
            for tp, records in consumer.poll(200).items():
                found[tp.partition] += records
    return found


def values(address: str, topic: str, partition: int = 0, **settings: Any) -> list[Any]:
    return [record.value for record in contents(address, topic, **settings)[partition]]


def descriptors() -> int:
    """How many this process has open."""
    return len(os.listdir("/proc/self/fd"))


def eventually(condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {patience_s:.0f} s: {what}"
        time.sleep(0.01)


@contextlib.contextmanager
def within(limit_s: float, at_least_s: float = 0.0) -> Iterator[None]:
    """What is done in here takes so long; a limit that only what hangs reaches."""
    began = time.monotonic()
    yield
    took_s = time.monotonic() - began
    assert at_least_s <= took_s <= limit_s, f"{took_s:.3f} s, not {at_least_s:g} to {limit_s:g}"
