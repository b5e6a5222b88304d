from typing import Any

import pytest

from ottla.client.consumer.decoder import DecoderSelector
from ottla.client.consumer.fetched import ConsumerRecord, FetchBuffer, Partition
from ottla.client.consumer.poison import PoisonRecord, RecordMaker
from ottla.client.errors import CorruptBatch, KafkaError
from ottla.client.metadata import TopicPartition
from ottla.records.record import Record, encode_batch

A, B, C = (TopicPartition("t", index) for index in range(3))


def batch(base_offset: int, count: int, **options: Any) -> bytes:
    records = [Record(0, 1000 + n, b"k", b"v%d" % (base_offset + n)) for n in range(count)]
    return encode_batch(records, base_offset=base_offset, **options)


def buffer(*tps: TopicPartition, offset: int = 0, **options: Any) -> FetchBuffer:
    made = FetchBuffer(**{"partition_bytes_max": 1 << 20, **options})
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
    assert [next(iter(held.take(2))) for _ in range(4)] == [A, B, A, B]
    assert {tp: len(records) for tp, records in held.take(9).items()} == {A: 6, B: 3}


def test_who_got_nothing_for_longest_is_asked_for_first() -> None:
    held = buffer(A, B)
    put(held, A, batch(0, 1))
    assert [partition.tp for partition in held.fetchable(0).fetch] == [B, A]
    put(held, B, batch(0, 1))
    assert [partition.tp for partition in held.fetchable(0).fetch] == [A, B]


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
    # It is asked for again: the damage may have happened on the way.
    assert held.partitions[A].fetch_offset == 2
    put(held, A, batch(2, 2))
    assert offsets(held.take(10)) == [2, 3]


def test_a_full_partition_waits_until_it_was_taken_from() -> None:
    held = buffer(A, B, partition_bytes_max=50)
    put(held, A, batch(0, 5) + batch(5, 5))
    able = held.fetchable(0)
    assert [p.tp for p in able.fetch] == [B] and [p.tp for p in able.full] == [A]
    held.take(6)
    assert not held.has_room  # the first batch is gone, and what is left is still too much
    held.take(4)
    assert held.has_room
    assert {p.tp for p in held.fetchable(0).fetch} == {A, B}


def test_all_buffers_together_are_bounded_and_paused_ones_do_not_count() -> None:
    held = buffer(A, B, C, bytes_max=100)
    put(held, A, batch(0, 5))
    put(held, B, batch(0, 5))
    able = held.fetchable(0)
    # One that has nothing is fetched all the same.
    assert [p.tp for p in able.fetch] == [C] and [p.tp for p in able.full] == [A, B] and able.room_bytes == 1
    held.pause([A, B], True)
    able = held.fetchable(0)
    assert [p.tp for p in able.fetch] == [C] and able.room_bytes == 100


def test_records_that_were_being_made_during_a_seek_are_dropped() -> None:
    held = buffer(A)

    def seeking(_topic: str, value: bytes) -> bytes:
        if held.partitions[A].generation < 3:
            held.place(A, offset=4)
        return value

    held.maker = RecordMaker(None, seeking)
    put(held, A, batch(0, 6))
    assert held.take(10) == {}
    assert held.position(A) == 4


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


# Transactions


def marker(offset: int, producer_id: int, *, commit: bool) -> bytes:
    key = (0).to_bytes(2, "big") + int(commit).to_bytes(2, "big")
    return encode_batch(
        [Record(0, 1000, key, bytes(6))],
        base_offset=offset,
        producer_id=producer_id,
        transactional=True,
        control=True,
    )


def sent(offset: int, count: int, producer_id: int) -> bytes:
    return batch(offset, count, producer_id=producer_id, transactional=True)


#: Two producers interleaved: 7 aborts, then commits; 8 commits.
LOG = (
    sent(0, 2, 7)
    + sent(2, 1, 8)
    + batch(3, 1)
    + sent(4, 1, 7)
    + marker(5, 7, commit=False)
    + sent(6, 1, 7)
    + marker(7, 8, commit=True)
    + marker(8, 7, commit=True)
)


def test_aborted_transactions_are_left_out_and_the_position_goes_past_them() -> None:
    held = buffer(A, read_committed=True)
    partition = held.partitions[A]
    held.put(partition, partition.generation, LOG, [(0, 7)])
    assert offsets(held.take(10)) == [2, 3, 6]
    assert held.position(A) == 9


def test_who_does_not_ask_for_committed_records_gets_all() -> None:
    held = buffer(A)
    partition = held.partitions[A]
    held.put(partition, partition.generation, LOG, [(0, 7)])
    assert offsets(held.take(10)) == [0, 1, 2, 3, 4, 6]
    assert held.position(A) == 9


def test_a_producer_may_abort_twice_in_one_fetch() -> None:
    held = buffer(A, read_committed=True)
    partition = held.partitions[A]
    data = (
        sent(0, 1, 7)
        + marker(1, 7, commit=False)
        + sent(2, 1, 7)
        + marker(3, 7, commit=True)
        + sent(4, 1, 7)
        + marker(5, 7, commit=False)
        + sent(6, 1, 7)
    )
    held.put(partition, partition.generation, data, [(4, 7), (0, 7)])
    assert offsets(held.take(10)) == [2, 6]


def test_a_fetch_of_nothing_but_an_aborted_transaction_moves_the_position() -> None:
    held = buffer(A, read_committed=True)
    partition = held.partitions[A]
    held.put(partition, partition.generation, sent(0, 3, 7) + marker(3, 7, commit=False), [(0, 7)])
    assert held.position(A) == 4 and not held.ready


def test_a_damaged_batch_is_not_left_out_in_silence() -> None:
    held = buffer(A, read_committed=True)
    partition = held.partitions[A]
    bad = bytearray(sent(0, 3, 7))
    bad[-1] ^= 1
    held.put(partition, partition.generation, bytes(bad) + marker(3, 7, commit=False), [(0, 7)])
    assert held.take(10) == {}
    with pytest.raises(CorruptBatch):
        held.take(10)
    assert held.position(A) == 0


def test_a_batch_that_says_it_ends_before_it_begins_is_refused_and_not_passed_over() -> None:
    """Passed over it would be fetched again and again."""
    held = buffer(A)
    damaged = bytearray(batch(0, 3))
    damaged[23] = 0x80  # the last offset delta
    put(held, A, bytes(damaged))
    assert held.take(10) == {}
    with pytest.raises(CorruptBatch):
        held.take(10)


def test_a_fetch_that_brings_nothing_new_is_told_to_who_fetches() -> None:
    """So that it waits a while: no CRC covers the base offset of a batch."""
    held = buffer(A, offset=5)
    partition = held.partitions[A]
    assert not held.put(partition, partition.generation, batch(0, 5))
    assert not held.put(partition, partition.generation, batch(5, 5)[:-1])
    assert held.put(partition, partition.generation, batch(5, 5))


def test_who_is_interrupted_gets_the_same_records_again() -> None:
    """By a signal whose handler raises, for one."""
    interrupted = iter([False, False, True])

    def read(_topic: str, value: bytes) -> bytes:
        if next(interrupted, False):
            raise KeyboardInterrupt
        return value

    held = buffer(A, maker=RecordMaker(None, read))
    put(held, A, batch(0, 5))
    assert offsets(held.take(1)) == [0]
    with pytest.raises(KeyboardInterrupt):
        held.take(10)
    assert offsets(held.take(10)) == [1, 2, 3, 4]


def test_crcs_are_not_looked_at_if_they_are_not_to_be() -> None:
    held = buffer(A, check_crcs=False)
    bad = bytearray(batch(0, 1))
    bad[-2] ^= 1  # in the value
    put(held, A, bytes(bad))
    assert [record.value for record in held.take(10)[A]] == [b"v1"]


# Poison


def failing(_topic: str, value: bytes) -> int:
    return int(value.removeprefix(b"v"))


def poisoned() -> bytes:
    values = (b"v0", b"v1", b"bad", b"v3", None)
    return encode_batch([Record(0, 1000, b"k", value) for value in values])


def test_a_poison_record_is_told_after_those_before_it_until_the_caller_seeks() -> None:
    held = buffer(A, maker=RecordMaker(None, failing))
    put(held, A, poisoned())
    assert [record.value for record in held.take(10)[A]] == [0, 1]
    for _ in range(3):
        with pytest.raises(
            PoisonRecord, match=r"the value of the record at offset 2 of t-0.*seek.* 3\)"
        ) as told:
            held.take(10)
        assert held.position(A) == 2
    assert (told.value.raw, told.value.side, told.value.offset) == (b"bad", "value", 2)
    assert told.value.record.key == b"k" and isinstance(told.value.__cause__, ValueError)
    held.place(A, offset=3)
    put(held, A, poisoned())
    assert [record.value for record in held.take(10)[A]] == [3, None]


def test_the_key_may_be_what_is_wrong() -> None:
    held = buffer(A, maker=RecordMaker(failing, None))
    put(held, A, batch(0, 1))
    with pytest.raises(PoisonRecord, match="the key of the record at offset 0"):
        held.take(10)


def test_poison_may_be_skipped(caplog: pytest.LogCaptureFixture) -> None:
    held = buffer(A, maker=RecordMaker(None, failing, "skip"))
    put(held, A, poisoned())
    assert offsets(held.take(10)) == [0, 1, 3, 4]
    assert held.maker.poisoned == 1 and held.position(A) == 5
    assert "offset 2 of t-0" in caplog.text


def test_poison_may_be_replaced_or_left_out_by_the_callers_own_function() -> None:
    seen: list[PoisonRecord] = []

    def instead(poison: PoisonRecord) -> ConsumerRecord | None:
        seen.append(poison)
        return poison.record._replace(value=-1) if len(seen) == 1 else None

    held = buffer(A, maker=RecordMaker(None, failing, instead))
    put(held, A, poisoned())
    assert [record.value for record in held.take(10)[A]] == [0, 1, -1, 3, None]
    held.place(A, offset=0)
    put(held, A, poisoned())
    assert [record.value for record in held.take(10)[A]] == [0, 1, 3, None]
    assert [poison.raw for poison in seen] == [b"bad", b"bad"]


def test_what_the_callers_own_function_raises_comes_out_of_poll() -> None:
    def give_up(_: PoisonRecord) -> None:
        raise LookupError("no")

    held = buffer(A, maker=RecordMaker(None, failing, give_up))
    put(held, A, poisoned())
    assert offsets(held.take(10)) == [0, 1]
    with pytest.raises(LookupError):
        held.take(10)
    assert held.position(A) == 2


# Columns, and both twins


@pytest.mark.parametrize("twin", ["pure", "compiled"])
def test_records_and_columns_may_be_taken_in_turn(twin: Any) -> None:
    if twin == "compiled":
        pytest.importorskip("numba")
    held = buffer(A, decoding=DecoderSelector(twin))
    put(held, A, batch(0, 20) + batch(20, 1, control=True) + batch(21, 10))
    assert offsets(held.take(3)) == [0, 1, 2]
    columns = held.take_columns(9)[A]
    assert list(columns.offsets) == list(range(3, 12))
    assert held.position(A) == 12
    assert offsets(held.take(2)) == [12, 13]
    columns = held.take_columns(None)[A]
    assert list(columns.offsets) == [*range(14, 20), *range(21, 31)]
    assert columns.values == [b"v%d" % offset for offset in columns.offsets]
    assert held.position(A) == 31 and held.take_columns(None) == {}


@pytest.mark.parametrize("twin", ["pure", "compiled"])
def test_a_seek_into_a_batch_holds_for_columns(twin: Any) -> None:
    if twin == "compiled":
        pytest.importorskip("numba")
    held = buffer(A, offset=7, decoding=DecoderSelector(twin))
    put(held, A, batch(0, 10))
    assert list(held.take_columns(None)[A].offsets) == [7, 8, 9]


@pytest.mark.parametrize("twin", ["pure", "compiled"])
def test_a_batch_that_is_taken_in_parts_is_opened_once(twin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if twin == "compiled":
        pytest.importorskip("numba")
    decoding = DecoderSelector(twin)
    opened = []
    module, piece = decoding.twin, decoding.twin.piece
    monkeypatch.setattr(module, "piece", lambda data, **how: opened.append(1) or piece(data, **how))
    held = buffer(A, decoding=decoding)
    put(held, A, batch(0, 20) + batch(20, 5))
    taken = [list(held.take_columns(6)[A].offsets) for _ in range(3)]
    assert [offset for part in taken for offset in part] == list(range(18))
    assert len(opened) == 1
    assert list(held.take_columns(6)[A].offsets) == list(range(18, 24)) and len(opened) == 2
    # What is left is of no use after a seek.
    held.place(A, offset=20)
    put(held, A, batch(20, 5))
    assert list(held.take_columns(2)[A].offsets) == [20, 21]
