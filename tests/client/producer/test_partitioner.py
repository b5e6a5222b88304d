import pytest

from ottla.client.errors import TopicNotFound
from ottla.client.metadata import PartitionInfo
from ottla.client.producer.partitioner import RoundRobin, Sticky, checked
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


def test_partitions_without_a_leader_are_passed_over_while_others_have_one() -> None:
    spread = RoundRobin()
    assert {spread.current(TOPIC, partitions(1, -1, 1)) for _ in range(9)} == {0, 2}
    assert {spread.current(TOPIC, partitions(-1, -1)) for _ in range(4)} == {0, 1}


def test_sticky_stays_until_there_is_no_room_and_passes_over_who_has_no_leader() -> None:
    spread, led = Sticky(), partitions(1, -1, 1)
    first = spread.current(TOPIC, led)
    assert {spread.current(TOPIC, led) for _ in range(5)} == {first}
    second = spread.moved(TOPIC, first, led)
    assert second == (2 if first in (0, 1) else 0)
    assert spread.current(TOPIC, led) == second
    assert spread.moved(TOPIC, first, led) == second, "another thread has moved on already"


def test_starts_are_random() -> None:
    assert {RoundRobin().current(TOPIC, partitions(1, 1, 1)) for _ in range(100)} == {0, 1, 2}
    assert {Sticky().current(TOPIC, partitions(1, 1, 1)) for _ in range(100)} == {0, 1, 2}


def test_what_is_no_partition_is_named() -> None:
    assert checked(TOPIC, 1, partitions(1, 1)) == 1
    with pytest.raises(TopicNotFound, match="0 to 1, not None"):
        checked(TOPIC, None, partitions(1, 1))
