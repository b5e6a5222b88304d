"""The compiled decoder and the pure one agree on any bytes: same records, same columns, same error."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.records import pieces
from ottla.records.batch import HEADER, HEADER_BYTES, crc_of
from ottla.records.record import CorruptRecords, Record, encode_batch
from ottla.records.varint import VARINTS

compiled = pytest.importorskip("ottla.records.compiled", reason="numba is not here")

maybe_bytes = st.none() | st.binary(max_size=150)
bodies = st.lists(
    st.tuples(
        st.integers(-(1 << 62), 1 << 62) | st.integers(0, 1000),
        maybe_bytes,
        maybe_bytes,
        st.lists(st.tuples(st.text(max_size=5), maybe_bytes), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=20,
)


@pytest.fixture(autouse=True, scope="module")
def every_batch_is_compiled(checked: Callable[..., Any]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "ROWS_MIN", 0)
        patch.setattr(compiled, "index_records", checked)
        yield


def said(twin: Any, batch: bytes) -> object:
    """All records, or the error message."""
    try:
        return list(twin.open_rows(batch).take(1 << 31, "t", 0, "CreateTime"))
    except CorruptRecords as error:
        return str(error)


def columns(twin: Any, batch: bytes) -> object:
    try:
        piece = twin.piece(batch)
    except CorruptRecords as error:
        return str(error)

    def cut(data: bytes, starts: Any, ends: Any) -> list[bytes | None]:
        return [None if end < start else data[start:end] for start, end in zip(starts, ends, strict=True)]

    return (
        piece.offsets.tolist(),
        piece.timestamps.tolist(),
        cut(piece.key_data, piece.key_starts, piece.key_ends),
        cut(piece.value_data, piece.value_starts, piece.value_ends),
        piece.headers or [()] * len(piece.offsets),
    )


def sealed(batch: bytes) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    struct.pack_into(">I", changed, 17, crc_of(changed))
    return bytes(changed)


@given(bodies, st.integers(0, 4), st.integers(0, 1 << 50), st.none() | st.integers(0, 1 << 40))
def test_the_same_records_and_columns(
    rows: list[tuple[Any, ...]], codec: int, base_offset: int, append_time_ms: int | None
) -> None:
    # Differences of two timestamps may take 64 bits and not more.
    rows = [(row[0] // 2, *row[1:]) for row in rows]
    records = [Record(0, *row) for row in rows]
    batch = encode_batch(records, codec=codec, base_offset=base_offset, append_time_ms=append_time_ms)
    assert said(compiled, batch) == said(pieces, batch) != []
    assert columns(compiled, batch) == columns(pieces, batch)
    assert isinstance(columns(compiled, batch), tuple)


@settings(max_examples=500)
@given(bodies, st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=4))
def test_the_same_refusal_of_every_damage(
    rows: list[tuple[Any, ...]], changes: list[tuple[int, int]]
) -> None:
    batch = bytearray(encode_batch([Record(0, row[0] // 2, *row[1:]) for row in rows]))
    for position, byte in changes:
        # Mostly in the records; sometimes in the part of the header that describes them.
        floor = HEADER_BYTES if position % 8 else 21
        batch[floor + position % (len(batch) - floor)] = byte
    data = sealed(bytes(batch))
    assert said(compiled, data) == said(pieces, data)
    assert columns(compiled, data) == columns(pieces, data)


@given(st.binary(max_size=120), st.integers(0, 8), st.integers(-3, 9))
def test_the_same_of_noise(noise: bytes, count: int, last: int) -> None:
    fields = (0, 0, -1, 2, 0, 0, last, 1 << 62, 1 << 62, -1, -1, -1, count)
    data = sealed(HEADER.pack(*fields) + noise)
    assert said(compiled, data) == said(pieces, data)


@pytest.mark.parametrize("cut", range(140))
def test_the_same_of_a_batch_cut_anywhere(cut: int) -> None:
    whole = encode_batch([Record(0, n, b"k" * n, None, (("h", b"v"),)) for n in range(5)])
    for data in (whole[:cut], sealed(whole[:cut]) if cut >= HEADER_BYTES else whole[:cut]):
        assert said(compiled, data) == said(pieces, data)


#: Lengths and numbers of every width, and some that do not fit.
VARINT_EDGES = [
    *(VARINTS[n] for n in (0, -1, 1, 63, 64, -65, 8191, 8192, (1 << 31) - 1, -(1 << 31), 1 << 31, 1 << 40)),
    *(VARINTS[n] for n in ((1 << 63) - 1, -(1 << 63))),
    b"\x80\x00", b"\x80\x80\x80\x80\x00", b"\x80\x80\x80\x80\x80\x00", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x1f",
    b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x02", b"\xff" * 10, b"\x80" * 9 + b"\x00", b"\xff",
]  # fmt: skip


@pytest.mark.parametrize("field", ["length", "timestamp", "offset", "key", "value", "headers"])
def test_the_same_of_every_varint_everywhere(field: str) -> None:
    for edge in VARINT_EDGES:
        parts = {"timestamp": b"\0", "offset": b"\0", "key": b"\1", "value": b"\1", "headers": b"\0"}
        length: bytes | None = None
        if field == "length":
            length = edge
        else:
            parts[field] = edge
        body = b"\0" + b"".join(parts.values())
        for base in (0, 5, -5, (1 << 63) - 1, -(1 << 63)):
            for last in (0, (1 << 31) - 1):
                fields = (0, 0, -1, 2, 0, 0, last, base, base, -1, -1, -1, 1)
                head = VARINTS[len(body)] if length is None else length
                data = sealed(HEADER.pack(*fields) + head + body + bytes(3) * (field == "length"))
                assert said(compiled, data) == said(pieces, data), edge


def test_offsets_beyond_64_bits_are_refused() -> None:
    batch = encode_batch([Record(0, 0, b"", b""), Record(0, 0, b"", b"")])
    good = (1 << 63) - 2
    for base, expected in ((good, True), (good + 1, False)):
        moved = struct.pack(">q", base) + batch[8:]
        for twin in (pieces, compiled):
            assert isinstance(said(twin, moved), list) is expected
            assert isinstance(columns(twin, moved), tuple) is expected


def test_rows_are_taken_in_parts_and_skipped() -> None:
    records = [Record(10 + 3 * n, n, b"%d" % n, None if n % 2 else b"v") for n in range(10)]
    batch = encode_batch(records, base_offset=10, keep_offsets=True)
    for twin in (pieces, compiled):
        rows = twin.open_rows(batch)
        rows.skip_to(14)
        assert [row[2] for row in rows.take(3, "t", 0, "CreateTime")] == [16, 19, 22]
        assert [row[2] for row in rows.take(100, "t", 0, "CreateTime")] == [25, 28, 31, 34, 37]
        assert list(rows.take(1, "t", 0, "CreateTime")) == []


def test_the_crc_is_looked_at_unless_told_otherwise() -> None:
    batch = bytearray(encode_batch([Record(0, 0, b"k", b"v")] * 9))
    batch[-2] ^= 1
    for twin in (pieces, compiled):
        with pytest.raises(CorruptRecords, match="CRC"):
            list(twin.open_rows(bytes(batch)).take(1, "t", 0, "CreateTime"))
        with pytest.raises(CorruptRecords, match="CRC"):
            twin.piece(bytes(batch))
        with contextlib.suppress(CorruptRecords):
            assert len(list(twin.open_rows(bytes(batch), check_crc=False).take(9, "t", 0, "CreateTime"))) == 9
            assert len(twin.piece(bytes(batch), check_crc=False).offsets) == 9


@pytest.mark.parametrize("width", [1, 7, 400, 401])
@pytest.mark.parametrize("odd", [None, b"", b"\0", b"longer" * 100])
def test_many_things_of_one_width_are_cut_out_at_once(width: int, odd: bytes | None) -> None:
    values: list[bytes | None] = [bytes([number % 3]) * width for number in range(150)]
    for row in (0, 75, 149):
        for keys in (values, [*values[:row], odd, *values[row + 1 :]]):
            records = [
                Record(0, 7, key, value, ()) for key, value in zip(keys, reversed(values), strict=True)
            ]
            batch = encode_batch(records)
            assert said(compiled, batch) == said(pieces, batch)
