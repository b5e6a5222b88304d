import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from ottla.log.producers import Producers
from ottla.model.errors import ErrorCode, Refusal
from tests.log.log_bench import NOW, Bench, sequenced

MAX = 2**31 - 1


def sent(producers: Producers, sequence: int, count: int = 1, *, epoch: int = 0, offset: int = 0) -> None:
    assert producers.check(1, epoch, sequence, count) is None
    producers.appended(1, epoch, sequence, count, offset, offset + count - 1, NOW)


def code(producers: Producers, sequence: int, count: int = 1, *, epoch: int = 0) -> ErrorCode:
    with pytest.raises(Refusal) as caught:
        producers.check(1, epoch, sequence, count)
    return caught.value.code


def test_an_unknown_producer_may_start_anywhere() -> None:
    assert Producers().check(1, 3, 12_345, 2) is None


def test_the_next_sequence_is_the_only_new_one() -> None:
    producers = Producers()
    sent(producers, 0, 3)
    assert producers.check(1, 0, 3, 1) is None
    assert code(producers, 4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code(producers, 1000) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_each_of_the_last_five_batches_answers_with_its_offset() -> None:
    producers = Producers()
    for at in range(8):
        sent(producers, 2 * at, 2, offset=100 + 2 * at)
    for at in range(3, 8):
        repeated = producers.check(1, 0, 2 * at, 2)
        assert repeated is not None
        assert repeated[2:4] == (100 + 2 * at, 101 + 2 * at)
    assert len(producers.by_id[1].batches) == 5


def test_an_older_duplicate_is_never_out_of_order() -> None:
    """R14"""
    producers = Producers()
    for at in range(8):
        sent(producers, at)
    assert code(producers, 2) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    # Part of a batch is not a duplicate of it.
    assert code(producers, 3, 2) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def test_what_was_never_accepted_is_no_duplicate() -> None:
    """The first batch was refused and is resent; the second was accepted as the first of an unknown producer.
    A client takes the response to a duplicate for an acknowledgement.
    """
    producers = Producers()
    sent(producers, 3, 2)
    assert code(producers, 0, 3) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    for at in range(5, 8):
        sent(producers, at)
        assert code(producers, 0, 3) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    # From now on it is unknown whether there were earlier batches.
    sent(producers, 8)
    assert code(producers, 0, 3) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    wrapped = Producers()
    sent(wrapped, 1)
    assert code(wrapped, MAX) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_around() -> None:
    producers = Producers()
    sent(producers, MAX - 3, 3)
    sent(producers, MAX, 1, offset=3)
    sent(producers, 0, 2, offset=4)
    sent(producers, 2, 1, offset=6)
    assert [entry[:2] for entry in producers.by_id[1].batches] == [
        (MAX - 3, MAX - 1), (MAX, MAX), (0, 1), (2, 2),
    ]  # fmt: skip
    repeated = producers.check(1, 0, MAX, 1)
    assert repeated is not None and repeated[2] == 3
    assert code(producers, 10) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    sent(producers, 3, 1, offset=7)
    assert code(producers, MAX - 10) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def test_a_batch_may_lie_across_the_wrap() -> None:
    producers = Producers()
    sent(producers, MAX - 1, 4)
    assert producers.by_id[1].batches[0][:2] == (MAX - 1, 1)
    assert producers.check(1, 0, MAX - 1, 4) is not None
    assert producers.check(1, 0, 2, 1) is None
    again = Producers.parse(producers.render())
    assert again is not None
    assert again.by_id[1].batches == producers.by_id[1].batches


def test_a_new_epoch_begins_at_zero_and_fences_the_old_one() -> None:
    producers = Producers()
    sent(producers, 0, 5)
    assert code(producers, 5, epoch=1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    sent(producers, 0, 2, epoch=1, offset=5)
    assert len(producers.by_id[1].batches) == 1
    assert code(producers, 5, epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert code(producers, 0, epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producers.check(1, 1, 2, 1) is None


def test_silent_producers_are_forgotten_except_in_a_transaction() -> None:
    producers = Producers()
    for producer_id, timestamp in ((1, NOW - 10), (2, NOW), (3, NOW - 10)):
        producers.appended(producer_id, 0, 0, 1, 0, 0, timestamp)
    producers.by_id[3].transaction_start = 0
    producers.expire(NOW - 5)
    assert set(producers.by_id) == {2, 3}


def test_the_snapshot_has_kafkas_layout() -> None:
    producers = Producers()
    producers.appended(1234, 7, 10, 3, 500, 502, NOW)
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 1234, 7, 12, 502, 2, NOW, -1, -1)
    assert producers.render() == struct.pack(">hI", 1, crc32c(body)) + body
    assert Producers().render() == struct.pack(">hIi", 1, crc32c(bytes(4)), 0)


def test_the_newest_batch_of_a_producer_is_its_last_entry() -> None:
    """So that a reader that keeps one entry per producer keeps the right one."""
    producers = Producers()
    for at in range(7):
        sent(producers, at, offset=at)
    producers.by_id[1].transaction_start = 3
    data = producers.render()
    entries = list(struct.iter_unpack(">qhiqiqiq", data[10:]))
    assert [entry[2] for entry in entries] == [2, 3, 4, 5, 6]
    assert [entry[7] for entry in entries] == [-1, -1, -1, -1, 3]


@given(
    st.dictionaries(
        st.integers(0, 2**62),
        st.tuples(st.integers(0, 2**15 - 1), st.integers(0, 9), st.integers(0, MAX)),
        max_size=8,
    )
)
def test_a_snapshot_brings_everything_back(made: dict[int, tuple[int, int, int]]) -> None:
    producers = Producers()
    for producer_id, (epoch, batches, sequence) in made.items():
        for at in range(batches):
            first = (sequence + at) & MAX
            producers.appended(producer_id, epoch, first, 1, at, at, NOW + at)
    again = Producers.parse(producers.render())
    assert again is not None
    assert again.render() == producers.render()
    assert {key: (p.epoch, p.batches, p.timestamp) for key, p in again.by_id.items()} == {
        key: (p.epoch, p.batches, p.timestamp) for key, p in producers.by_id.items()
    }


def test_a_torn_snapshot_is_none() -> None:
    producers = Producers()
    sent(producers, 0)
    data = producers.render()
    assert Producers.parse(None) is None
    for size in range(len(data)):
        assert Producers.parse(data[:size]) is None
        assert (
            Producers.parse(data[:size] + bytes(len(data) - size)) is None or data[size:].strip(b"\0") == b""
        )
    assert Producers.parse(data + b"\0") is None
    assert Producers.parse(struct.pack(">hIi", 1, crc32c(b"\xff" * 4), -1)) is None


@pytest.mark.parametrize("how", ["clean", "killed", "killed after a flush", "killed between"])
def test_duplicates_get_their_first_offset_after_a_restart(bench: Bench, how: str) -> None:
    """R14: whatever came between, and whatever the size of the batches."""
    log = bench.create(segment_bytes=2_000_000)
    sizes = [100, 700_000, 800_000, 900_000, 300_000, 5]
    offsets = {}
    for sequence, size in enumerate(sizes):
        if how == "killed between" and sequence == 3:
            bench.flush(log)
        offsets[sequence] = log.append(sequenced(sequence, b"v" * size), 0, NOW).base_offset
        log.append(sequenced(sequence, b"w" * 50_000, producer=8), 0, NOW)
    if how == "clean":
        bench.stop(log)
    elif how == "killed after a flush":
        bench.flush(log)
    again = bench.recover(clean=how == "clean").log
    for sequence in range(1, 6):
        answer = again.append(sequenced(sequence, b"v" * sizes[sequence]), 0, NOW)
        assert answer == (offsets[sequence], offsets[sequence], -1, True)
    assert again.next_offset == log.next_offset
    with pytest.raises(Refusal) as caught:
        again.append(sequenced(8, b"v"), 0, NOW)
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert not again.append(sequenced(6, b"v"), 0, NOW).duplicate


def test_a_snapshot_with_more_than_five_batches_is_cut_to_the_newest() -> None:
    rows = [struct.pack(">qhiqiqiq", 1, 0, at, at, 0, NOW, -1, -1) for at in range(9)]
    body = struct.pack(">i", len(rows)) + b"".join(rows)
    producers = Producers.parse(struct.pack(">hI", 1, crc32c(body)) + body)
    assert producers is not None
    assert [entry[1] for entry in producers.by_id[1].batches] == [4, 5, 6, 7, 8]


def test_batches_before_the_logs_start_still_tell_of_their_producers(bench: Bench) -> None:
    log = bench.create()
    log.append(sequenced(0, b"a"), 0, NOW)
    log.append(sequenced(0, b"b", producer=8), 0, NOW)
    log.delete_before(1)
    log.truncate(1, NOW)
    assert log.append(sequenced(0, b"a"), 0, NOW).duplicate
    assert not log.append(sequenced(0, b"b", producer=8), 0, NOW).duplicate
