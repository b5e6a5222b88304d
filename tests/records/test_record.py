"""The record codec: round trips, batches of other libraries, and everything that must be refused."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from collections.abc import Callable
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.records.batch import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    crc_of,
    with_append_time,
)
from ottla.records.compression import GZIP, NONE, ZSTD
from ottla.records.record import (
    CorruptRecords,
    Record,
    decode_batches,
    encode_batch,
    iter_batch,
    validate_records,
    whole_batches,
)
from ottla.records.varint import VARINTS

MIB = 1 << 20
NOW_MS = 1_700_000_000_000

#: Either version of the decoder: the fixture of conftest.py.
Decode: TypeAlias = Callable[..., list[Record]]

maybe_bytes = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=10), maybe_bytes), max_size=4).map(tuple)
timestamps = st.integers(-1, NOW_MS * 4) | st.integers(NOW_MS, NOW_MS + 20_000)
bodies = st.lists(st.tuples(timestamps, maybe_bytes, maybe_bytes, headers), min_size=1, max_size=30)
codecs = st.integers(0, 4)


def some_records(count: int = 5, offset: int = 0) -> list[Record]:
    return [Record(offset + i, NOW_MS + 10 * i, b"k%d" % i, b"value %d" % i, ()) for i in range(count)]


def sealed(batch: bytes) -> bytes:
    """The same batch with a valid length and CRC: only the rest can be wrong."""
    changed = bytearray(batch)
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    struct.pack_into(">I", changed, 17, crc_of(changed))
    return bytes(changed)


def with_field(batch: bytes, offset: int, layout: str, value: int) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(layout, changed, offset, value)
    return sealed(bytes(changed))


def record_bytes(
    delta: int = 0,
    *,
    timestamp: bytes = b"\0",
    key: bytes = b"\1",
    value: bytes = b"\1",
    tail: bytes = b"\0",
    length: int | None = None,
) -> bytes:
    body = b"\0" + timestamp + VARINTS[delta] + key + value + tail
    return VARINTS[len(body) if length is None else length] + body


def find_timestamp(batch: bytes, target_ms: int, size_max: int = 8 * MIB) -> tuple[int, int] | None:
    """Offset and timestamp of the first record at or after a time, as a lookup finds it."""
    records = iter_batch(batch, size_max, headers_max=0)
    return next(
        ((each.offset, each.timestamp_ms) for each in records if each.timestamp_ms >= target_ms), None
    )


def keyless(batch: bytes, size_max: int = 8 * MIB) -> bool:
    """Whether any record lacks a key."""
    return any(record.key is None for record in iter_batch(batch, size_max))


def hand_made(*records: bytes, count: int | None = None, last: int | None = None) -> bytes:
    """A batch of these record bytes, valid or not."""
    count = len(records) if count is None else count
    last = count - 1 if last is None else last
    fields = (0, 0, -1, 2, 0, 0, last, NOW_MS, NOW_MS, -1, -1, -1, count)
    return sealed(HEADER.pack(*fields) + b"".join(records))


@given(bodies, codecs, st.integers(0, 1 << 50))
def test_round_trip(
    decode_batch: Decode, rows: list[tuple[int, bytes, bytes, tuple]], codec: int, base_offset: int
) -> None:  # type: ignore[type-arg]
    records = [Record(base_offset + i, *row) for i, row in enumerate(rows)]
    batch = encode_batch(records, codec=codec, base_offset=base_offset)
    assert decode_batch(batch, size_max=MIB) == records
    assert decode_batch(memoryview(bytearray(batch)), size_max=MIB) == records
    assert list(decode_batches(batch * 3)) == records * 3
    validate_records(batch, MIB)
    assert keyless(batch, MIB) == any(record.key is None for record in records)
    fields = HEADER.unpack_from(batch)
    assert fields[0] == base_offset
    assert fields[1] == len(batch) - 12
    assert fields[7] == rows[0][0]
    assert fields[8] == max(row[0] for row in rows)
    assert (fields[6], fields[12]) == (len(rows) - 1, len(rows))


@given(
    st.lists(st.integers(0, (1 << 31) - 1), min_size=1, max_size=20, unique=True), codecs, st.integers(0, 9)
)
def test_gaps_of_compaction_survive(decode_batch: Decode, deltas: list[int], codec: int, more: int) -> None:
    records = [Record(1000 + delta, NOW_MS, b"k", None, ()) for delta in sorted(deltas)]
    last = min(max(deltas) + more, (1 << 31) - 1)
    batch = encode_batch(records, codec=codec, base_offset=1000, keep_offsets=True, last_offset_delta=last)
    assert decode_batch(batch, size_max=MIB) == records
    assert HEADER.unpack_from(batch)[6] == last
    if last + 1 != len(deltas):
        with pytest.raises(CorruptRecords):
            validate_records(batch, MIB)


def test_large_values_and_many_records(decode_batch: Decode) -> None:
    records = [Record(i, NOW_MS + i * 50, b"k" * (i % 300), b"v" * (i * 7 % 9000), ()) for i in range(9000)]
    records.append(Record(9000, NOW_MS - (1 << 40), None, bytes(3 * MIB), (("h" * 100, b"x" * 9000),)))
    assert decode_batch(encode_batch(records, codec=ZSTD)) == records


def test_extreme_timestamps(decode_batch: Decode) -> None:
    for base, other in ((0, (1 << 63) - 1), (0, -(1 << 63)), (-1, (1 << 63) - 2), ((1 << 63) - 1, 5)):
        records = [Record(0, base, b"", b"", ()), Record(1, other, b"", b"", ())]
        assert decode_batch(encode_batch(records)) == records
    with pytest.raises(ValueError, match="64 bits"):
        encode_batch([Record(0, -5, b"", b"", ()), Record(1, (1 << 63) - 1, b"", b"", ())])


def test_timestamps_beyond_64_bits_are_refused(decode_batch: Decode) -> None:
    batch = encode_batch([Record(0, (1 << 63) - 10, b"", b"", ()), Record(1, (1 << 63) - 1, b"", b"", ())])
    assert decode_batch(batch)[1].timestamp_ms == (1 << 63) - 1
    with pytest.raises(CorruptRecords, match="timestamp"):
        decode_batch(with_field(batch, 27, ">q", (1 << 63) - 5))
    wide = hand_made(record_bytes(timestamp=VARINTS[(1 << 63) - 1]))
    with pytest.raises(CorruptRecords, match="timestamp"):
        decode_batch(wide)


def test_attributes_and_producer_fields() -> None:
    batch = encode_batch(
        some_records(),
        codec=GZIP,
        base_offset=42,
        partition_leader_epoch=3,
        producer_id=1 << 40,
        producer_epoch=7,
        base_sequence=99,
        transactional=True,
        control=True,
    )
    fields = HEADER.unpack_from(batch)
    assert fields[:4] == (42, len(batch) - 12, 3, 2)
    assert fields[5] == GZIP | TRANSACTIONAL_BIT | CONTROL_BIT
    assert fields[9:] == (1 << 40, 7, 99, 5)


def test_log_append_time_rules_every_record(decode_batch: Decode) -> None:
    for batch in (
        encode_batch(some_records(), append_time_ms=NOW_MS + 999),
        bytes(with_append_time(encode_batch(some_records()), NOW_MS + 999)),
    ):
        assert HEADER.unpack_from(batch)[5] & TIMESTAMP_TYPE_BIT
        assert {record.timestamp_ms for record in decode_batch(batch)} == {NOW_MS + 999}
        assert find_timestamp(batch, NOW_MS + 999) == (0, NOW_MS + 999)
        assert find_timestamp(batch, NOW_MS + 1000) is None


def test_delete_horizon_is_a_base_that_changes_no_timestamp(decode_batch: Decode) -> None:
    batch = encode_batch(some_records(), delete_horizon_ms=NOW_MS + 5000)
    fields = HEADER.unpack_from(batch)
    assert fields[5] & DELETE_HORIZON_BIT
    assert fields[7] == NOW_MS + 5000
    assert decode_batch(batch) == some_records()


def test_empty_batches_hold_their_place(decode_batch: Decode) -> None:
    for codec in (NONE, ZSTD):
        batch = encode_batch([], codec=codec, base_offset=10, last_offset_delta=4)
        assert len(batch) == HEADER_BYTES
        assert decode_batch(batch) == []
    with pytest.raises(ValueError, match="empty"):
        encode_batch([])


def test_encode_refuses_what_does_not_fit() -> None:
    backwards = [Record(5, 0, None, None, ()), Record(5, 0, None, None, ())]
    with pytest.raises(ValueError, match="offset"):
        encode_batch(backwards, base_offset=0, keep_offsets=True)
    with pytest.raises(ValueError, match="offset"):
        encode_batch(backwards, base_offset=6, keep_offsets=True)
    with pytest.raises(ValueError, match="delta"):
        encode_batch(some_records(3), last_offset_delta=1)
    with pytest.raises(ValueError, match="range"):
        encode_batch(some_records(), producer_epoch=1 << 15)


def test_header_keys_that_are_no_utf8_survive(decode_batch: Decode) -> None:
    body = record_bytes(tail=VARINTS[1] + VARINTS[3] + b"a\xff\xfe" + VARINTS[1] + b"v")
    batch = hand_made(body)
    assert encode_batch(decode_batch(batch))[HEADER_BYTES:] == batch[HEADER_BYTES:]


def test_find_timestamp_is_the_first_at_or_after() -> None:
    times = [50, 40, 70, 60, 70]
    records = [Record(100 + i, NOW_MS + t, b"k", b"v", ()) for i, t in enumerate(times)]
    for codec in range(5):
        batch = encode_batch(records, codec=codec, base_offset=100)
        for target in range(30, 80, 5):
            expected = next(
                ((r.offset, r.timestamp_ms) for r in records if r.timestamp_ms >= NOW_MS + target), None
            )
            assert find_timestamp(batch, NOW_MS + target, MIB) == expected


def test_keyless() -> None:
    records = some_records(4)
    assert not keyless(encode_batch(records))
    records[2] = records[2]._replace(key=None)
    assert keyless(encode_batch(records, codec=ZSTD))
    assert not keyless(encode_batch([Record(0, 0, b"", b"", ())]))


def test_fetched_bytes_end_anywhere() -> None:
    first, second = encode_batch(some_records(3)), encode_batch(some_records(4, 3), base_offset=3, codec=GZIP)
    data = first + second
    for size in range(len(data) + 1):
        expected = 7 if size == len(data) else 3 if size >= len(first) else 0
        assert len(list(decode_batches(memoryview(data)[:size]))) == expected


def test_control_batches_are_skipped_between_others(decode_batch: Decode) -> None:
    marker = encode_batch([Record(3, NOW_MS, b"\0\0\0\1", b"\0\0\0\0\0\0", ())], base_offset=3, control=True)
    data = encode_batch(some_records(3)) + marker + encode_batch(some_records(2, 4), base_offset=4)
    assert [record.offset for record in decode_batches(data)] == [0, 1, 2, 4, 5]
    assert [len(batch) for batch in whole_batches(data)][1] == len(marker)
    assert decode_batch(marker)[0].key == b"\0\0\0\1"


GOOD = encode_batch(some_records())
BROKEN: dict[str, bytes] = {
    "nothing": b"",
    "half a header": GOOD[:60],
    "cut": GOOD[:-1],
    "a byte behind": GOOD + b"\0",
    "length field": GOOD[:8] + struct.pack(">i", len(GOOD) - 11) + GOOD[12:],
    "magic": GOOD[:16] + b"\1" + GOOD[17:],
    "crc": GOOD[:17] + bytes(4) + GOOD[21:],
    "a flipped bit": GOOD[:-1] + bytes([GOOD[-1] ^ 1]),
    "codec 5": with_field(GOOD, 21, ">h", 5),
    "not compressed": with_field(GOOD, 21, ">h", ZSTD),
    "count below zero": with_field(GOOD, 57, ">i", -1),
    "count below zero in an empty batch": hand_made(count=-1, last=3),
    "count too small": with_field(GOOD, 57, ">i", 4),
    "count too large": with_field(with_field(GOOD, 57, ">i", 6), 23, ">i", 5),
    "count beyond the last delta": with_field(GOOD, 23, ">i", 3),
    "last delta below zero": with_field(GOOD, 23, ">i", -2),
    "count of billions": with_field(with_field(GOOD, 57, ">i", (1 << 31) - 1), 23, ">i", (1 << 31) - 2),
    "sealed with a byte behind": sealed(GOOD + b"\0"),
    "sealed and cut": sealed(GOOD[:-1]),
    "record length below zero": hand_made(record_bytes(length=-3)),
    "record length too long": hand_made(record_bytes(length=7)),
    "record length too short": hand_made(record_bytes(length=5)),
    "record length varint of six bytes": hand_made(b"\x8c\x80\x80\x80\x80\x00" + record_bytes()[1:]),
    "key length -2": hand_made(record_bytes(key=VARINTS[-2])),
    "key beyond the record": hand_made(record_bytes(key=VARINTS[3]), record_bytes(1)),
    "key of 2 GiB": hand_made(record_bytes(key=VARINTS[(1 << 31) - 1])),
    "value length -2": hand_made(record_bytes(value=VARINTS[-2])),
    "value beyond the record": hand_made(record_bytes(value=VARINTS[4]), record_bytes(1)),
    "offset deltas that repeat": hand_made(record_bytes(0), record_bytes(0)),
    "offset deltas that fall": hand_made(record_bytes(1), record_bytes(0)),
    "offset delta below zero": hand_made(record_bytes(-1)),
    "offset delta beyond the last": hand_made(record_bytes(0), record_bytes(2)),
    "timestamp varlong of eleven bytes": hand_made(record_bytes(timestamp=b"\x80" * 10 + b"\x01")),
    "header count below zero": hand_made(record_bytes(tail=VARINTS[-1])),
    "header count of billions": hand_made(record_bytes(tail=VARINTS[(1 << 31) - 1])),
    "header count without headers": hand_made(record_bytes(tail=VARINTS[1])),
    "header key null": hand_made(record_bytes(tail=VARINTS[1] + VARINTS[-1] + VARINTS[-1])),
    "header key too long": hand_made(record_bytes(tail=VARINTS[1] + VARINTS[9] + b"a")),
    "header value -2": hand_made(record_bytes(tail=VARINTS[1] + VARINTS[1] + b"a" + VARINTS[-2])),
    "header value too long": hand_made(record_bytes(tail=VARINTS[1] + VARINTS[1] + b"a" + VARINTS[5] + b"b")),
    "bytes after the headers": hand_made(record_bytes(tail=b"\0\0")),
}


def test_hand_made_batches_are_good_unless_meant_otherwise(decode_batch: Decode) -> None:
    assert len(decode_batch(hand_made(record_bytes(0), record_bytes(1)))) == 2
    assert decode_batch(hand_made(record_bytes(tail=VARINTS[1] + VARINTS[1] + b"a" + VARINTS[-1])))[
        0
    ].headers == (("a", None),)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_batches_are_refused(decode_batch: Decode, name: str) -> None:
    for read in (decode_batch, validate_records):
        with pytest.raises(CorruptRecords):
            read(BROKEN[name])
    # The first record may be complete and have its key: only then the fault is not reached.
    for look in (keyless, lambda batch: find_timestamp(batch, 1 << 62)):
        with contextlib.suppress(CorruptRecords):
            look(BROKEN[name])


def test_false_counts_are_refused_before_any_record_is_read() -> None:
    with pytest.raises(CorruptRecords, match="2147483647 records in"):
        next(decode_batches(BROKEN["count of billions"]))


def test_a_record_that_overruns_the_batch_is_never_seen() -> None:
    # The record claims one byte more than there is, and its last header value would use it.
    tail = VARINTS[1] + VARINTS[1] + b"a" + VARINTS[3] + b"bc"
    with pytest.raises(CorruptRecords, match="are left"):
        next(decode_batches(hand_made(record_bytes(tail=tail, length=len(tail) + 6))))


@pytest.mark.parametrize("data", [b"\0" * 61, GOOD[:8] + b"\xff\xff\xff\xff" + GOOD[12:], BROKEN["magic"]])
def test_fetched_bytes_that_are_no_batches(data: bytes) -> None:
    with pytest.raises(CorruptRecords):
        list(decode_batches(data))


@given(
    codecs,
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=5),
    st.booleans(),
)
def test_mutated_batches_give_records_or_corrupt_records(
    decode_batch: Decode, codec: int, changes: list[tuple[int, int]], only_records: bool
) -> None:
    records = [r._replace(headers=(("h", b"v"), ("n", None))) for r in some_records(20)]
    batch = bytearray(encode_batch(records, codec=codec))
    floor = HEADER_BYTES if only_records else 0
    for position, byte in changes:
        batch[floor + position % (len(batch) - floor)] = byte
    data = sealed(bytes(batch))
    for read in (decode_batch, validate_records, keyless, lambda data: list(decode_batches(data))):
        with contextlib.suppress(CorruptRecords):
            read(data)


@given(st.binary(max_size=200), st.integers(0, 8))
def test_noise_gives_records_or_corrupt_records(decode_batch: Decode, noise: bytes, count: int) -> None:
    with contextlib.suppress(CorruptRecords):
        assert len(decode_batch(hand_made(noise, count=count))) == count


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_decompression_is_capped(decode_batch: Decode, codec: int) -> None:
    batch = encode_batch([Record(0, 0, b"k", bytes(8 * MIB), ())], codec=codec)
    for look in (
        lambda: decode_batch(batch, size_max=MIB),
        lambda: keyless(batch, MIB),
        lambda: validate_records(batch, MIB),
        lambda: find_timestamp(batch, 0, MIB),
    ):
        with pytest.raises(CorruptRecords):
            look()
    assert decode_batch(batch)[0].value == bytes(8 * MIB)


def test_looking_at_many_records_takes_no_memory() -> None:
    count = 5000
    batch = encode_batch((Record(0, 0, b"", None, ()) for _ in range(count)), codec=ZSTD)
    size_max = 12 * count
    tracemalloc.start()
    try:
        assert not keyless(batch, size_max)
        validate_records(batch, size_max)
        assert find_timestamp(batch, 1, size_max) is None
        assert tracemalloc.get_traced_memory()[1] < 3 * size_max
    finally:
        tracemalloc.stop()
