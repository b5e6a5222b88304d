"""Keys go to the same partitions as with Kafka's clients."""

from __future__ import annotations

import aiokafka.partitioner
import kafka.partitioner.default
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.records.partitioner import murmur2, partition_for_key


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_known_hashes(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected


@given(st.binary(max_size=70), st.integers(1, 1000))
def test_as_the_other_clients(key: bytes, count: int) -> None:
    assert murmur2(key) & 0xFFFFFFFF == kafka.partitioner.default.murmur2(key) & 0xFFFFFFFF
    assert murmur2(key) & 0xFFFFFFFF == aiokafka.partitioner.murmur2(key) & 0xFFFFFFFF
    partitions = list(range(count))
    assert partition_for_key(key, count) == aiokafka.partitioner.DefaultPartitioner()(
        key, partitions, partitions
    )
