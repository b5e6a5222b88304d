import pytest

from ottla.client.consumer.fetched import ConsumerRecord, FetchBuffer, Partition
from ottla.client.errors import CorruptBatch, KafkaError
from ottla.client.metadata import TopicPartition
from ottla.records.record import Record, encode_batch

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def batch(base_offset: int, count: int, **options: bool) -> bytes:
    records = [Record(0, 1000 + n, b"k", b"v%d" % (base_offset + n)) for n in range(count)]
    return encode_batch(records, base_offset=base_offset, **options)


def buffer(*tps: TopicPartition, offset: int = 0) -> FetchBuffer:
    made = FetchBuffer(partition_bytes_max=1 << 20)
    made.assign(tps, None)
    for tp in tps:
        made.place(tp, offset=offset)
    return made


def put(into: FetchBuffer, tp: TopicPartition, data: bytes) -> Partition:
    partition = into.partitions[tp]
    into.put(partition, partition.generation, data)
    return partition


def offsets(taken: dict[TopicPartition, list[ConsumerRecord]], tp: TopicPartition = A) -> list[int]:
    return [record.offset for record in taken.get(tp, [])]


def test_records_come_in_order_across_batches_and_takes() -> None:
    held = buffer(A)
    put(held, A, batch(0, 3) + batch(3, 2))
    assert offsets(held.take(2)) == [0, 1]
    assert held.position(A) == 2
    assert offsets(held.take(10)) == [2, 3, 4]
    assert held.position(A) == 5
    assert held.take(10) == {}


def test_what_lies_before_the_position_in_a_batch_is_left_out() -> None:
    held = buffer(A, offset=2)
    put(held, A, batch(0, 5))
    assert offsets(held.take(10)) == [2, 3, 4]


def test_control_batches_are_passed_over_and_the_position_with_them() -> None:
    held = buffer(A)
    put(held, A, batch(0, 1) + batch(1, 1, control=True))
    assert offsets(held.take(10)) == [0]
    assert held.position(A) == 2


def test_a_batch_cut_off_at_the_end_is_asked_for_again() -> None:
    held = buffer(A)
    partition = put(held, A, batch(0, 2) + batch(2, 2)[:-1])
    assert partition.fetch_offset == 2
    assert offsets(held.take(10)) == [0, 1]


def test_bytes_asked_for_before_a_seek_are_dropped() -> None:
    held = buffer(A)
    partition = held.partitions[A]
    generation = partition.generation
    held.place(A, offset=100)
    assert not held.put(partition, generation, batch(0, 2))
    assert held.take(10) == {}
    assert held.position(A) == 100


def test_partitions_take_turns() -> None:
    held = buffer(A, B)
    put(held, A, batch(0, 10))
    put(held, B, batch(0, 10))
    seen = [next(iter(held.take(2))) for _ in range(2)]
    assert seen[0] == seen[1] == A  # it still had its turn
    assert set(held.take(12)) == {A, B}


def test_a_paused_partition_keeps_its_records() -> None:
    held = buffer(A)
    put(held, A, batch(0, 2))
    held.pause([A], True)
    assert held.take(10) == {} and not held.ready
    held.pause([A], False)
    assert offsets(held.take(10)) == [0, 1]


def test_a_corrupt_batch_is_told_once_with_its_place_after_what_came_before_it() -> None:
    held = buffer(A)
    bad = bytearray(batch(2, 2))
    bad[-1] ^= 1
    put(held, A, batch(0, 2) + bytes(bad))
    assert offsets(held.take(10)) == [0, 1]
    with pytest.raises(CorruptBatch, match="offset 2 of t-0"):
        held.take(10)
    assert held.position(A) == 2
    assert held.take(10) == {}


def test_a_full_buffer_is_told() -> None:
    held = FetchBuffer(partition_bytes_max=50)
    held.assign([A], None)
    held.place(A, offset=0)
    partition = put(held, A, batch(0, 5))
    assert held.full(partition)
    held.take(10)
    assert not held.full(partition)


def test_a_new_assignment_keeps_the_places_of_partitions_that_stay() -> None:
    held = buffer(A)
    put(held, A, batch(0, 4))
    held.take(2)
    held.assign([A, B], -2)
    assert offsets(held.take(10)) == [2, 3]
    assert held.position(B) is None


def test_a_partition_that_is_not_assigned_is_named() -> None:
    with pytest.raises(KafkaError, match="t-1 is not assigned"):
        buffer(A).position(B)
