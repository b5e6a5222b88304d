import pytest

from ottla.client.errors import TopicNotFound
from ottla.client.metadata import PartitionInfo, TopicPartition
from ottla.client.producer.accumulator import Accumulator, Limits
from ottla.client.producer.batches import record_of
from ottla.client.producer.partitioning import RoundRobin, Sticky, checked
from ottla.records.partitioner import murmur2, partition_for_key

TOPIC = "t"


def partitions(*leaders: int) -> dict[int, PartitionInfo]:
    return {number: PartitionInfo(number, leader, 0, (), ()) for number, leader in enumerate(leaders)}


def test_keys_hash_as_in_kafka() -> None:
    """The figures of Kafka's own UtilsTest."""
    known = {
        b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829, b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }  # fmt: skip
    assert {key: murmur2(key) for key in known} == known
    assert partition_for_key(b"abc", 10) == 479470107 % 10


def test_sticky_fills_a_batch_and_goes_on_though_none_is_ever_full_to_the_byte() -> None:
    record, size_bytes = record_of(b"." * 100, None, (), 1)
    queue = Accumulator(
        Limits(batch_bytes=61 + 3 * size_bytes + 50, buffer_bytes=1 << 20, request_bytes=1 << 20)
    )
    spread = Sticky(queue.has_room_in_batch)
    went = []
    for _ in range(18):
        choice = spread(TOPIC, partitions(1, 1, 1), size_bytes)
        queue.append(TopicPartition(TOPIC, choice), record, size_bytes, 0)
        went.append(choice)
    starts = went[::3]
    assert went == [choice for choice in starts for _ in range(3)]
    assert starts == [(starts[0] + step) % 3 for step in range(6)]


def test_partitions_without_a_leader_are_passed_over_while_others_have_one() -> None:
    spread = RoundRobin()
    assert {spread(TOPIC, partitions(1, -1, 1), 1) for _ in range(9)} == {0, 2}
    assert {spread(TOPIC, partitions(-1, -1), 1) for _ in range(4)} == {0, 1}


def test_starts_are_random() -> None:
    assert {RoundRobin()(TOPIC, partitions(1, 1, 1), 1) for _ in range(100)} == {0, 1, 2}
    assert {Sticky(lambda _tp, _size: True)(TOPIC, partitions(1, 1, 1), 1) for _ in range(100)} == {0, 1, 2}


def test_what_is_no_partition_is_named() -> None:
    assert checked(TOPIC, 1, partitions(1, 1)) == 1
    with pytest.raises(TopicNotFound, match="0 to 1, not None"):
        checked(TOPIC, None, partitions(1, 1))
