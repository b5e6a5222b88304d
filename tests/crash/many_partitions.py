"""A node with very many partitions, each with records in several segments: filled, stopped, killed, started, read again."""

import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from tests.crash.broker_process import (
    FETCH,
    PRODUCE,
    BrokerProcess,
    Wire,
    batch_of,
    fetching,
    producing,
    wait_until,
)

PER_TOPIC = 1000
#: So old that nothing is measured from them, and so far apart that each begins a segment.
TIMESTAMPS_MS = (1_700_000_000_000, 1_700_000_100_000)
_AT_ONCE = 100


def topics_of(partitions: int) -> list[tuple[str, int]]:
    return [(f"many-{at // PER_TOPIC}", at % PER_TOPIC) for at in range(partitions)]


def create(wire: Wire, partitions: int) -> None:
    for start in range(0, partitions, PER_TOPIC):
        wire.create(
            f"many-{start // PER_TOPIC}", min(PER_TOPIC, partitions - start),
            segment_ms="1000", retention_ms="-1",
        )  # fmt: skip


def answers(wire: Wire, requests: Iterable[tuple[int, int, dict[str, Any]]]) -> Iterable[Any]:
    """The answers to many requests, some of them on their way at any time."""
    waiting = 0
    for key, version, fields in requests:
        wire.send(key, version, **fields)
        waiting += 1
        if waiting == _AT_ONCE:
            for _ in range(waiting):
                yield wire.receive()
            waiting = 0
    for _ in range(waiting):
        yield wire.receive()


def fill(address: str, partitions: Sequence[tuple[str, int]], number: int) -> None:
    """The record of this number to each."""
    with Wire(address) as wire:
        batches = (
            (topic, at, batch_of(b"%d of %d" % (number, at), timestamp_ms=TIMESTAMPS_MS[number % 2] + number))
            for topic, at in partitions
        )
        requests = ((PRODUCE, 9, producing(topic, batch, at)) for topic, at, batch in batches)
        for answer in answers(wire, requests):
            row = answer.responses[0].partition_responses[0]
            assert (row.error_code.value, row.base_offset) == (0, number), row


def check(address: str, partitions: Sequence[tuple[str, int]], count: int) -> None:
    """Each holds this many records, in order, and ends there."""
    with Wire(address) as wire:
        for offset in range(count):
            requests = ((FETCH, 11, fetching(topic, offset, at)) for topic, at in partitions)
            for (_topic, at), answer in zip(partitions, answers(wire, requests), strict=True):
                row = answer.responses[0].partitions[0]
                assert (row.error_code.value, row.high_watermark) == (0, count)
                assert b"%d of %d" % (offset, at) in row.records


def start_seconds(broker: BrokerProcess, topic: str, partition: int, end: int) -> float:
    """From the start of the process to its first right answer about a partition."""
    began = time.perf_counter()
    broker.spawn()
    connected: list[Wire] = []

    def connects() -> bool:
        try:
            connected.append(Wire(broker.address))
        except ConnectionRefusedError:
            return False
        return True

    wait_until(connects, "the broker does not listen")
    with connected[0] as wire:
        assert wire.end_offset(topic, partition) == end
    return time.perf_counter() - began


def descriptors(broker: BrokerProcess) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))
