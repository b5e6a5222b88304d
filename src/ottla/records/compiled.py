"""The compiled version of `pieces.py`: machine code by numba that scans a batch once and indexes its records.

It makes exactly the checks of `record.py`, and reads no byte outside the batch. A batch that it refuses, or
that exceeds 64 bits, goes to the pure version, which raises CorruptRecords with the reason. So both refuse
the same bytes with the same message. Importing this module compiles it, or loads the cached result of an
earlier process. Without numba the import fails; `client/` decides whether to use it. For each record
`index_records` writes one row of `out`:

    0 offset   1 timestamp   2 3 start and end of the key   4 5 of the value   6 start of the headers (-1: none)   7 end
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, overload

import numpy as np
from numba import njit, types

from ottla.records import pieces
from ottla.records.batch import (
    ATTRIBUTES_LOW,
    CODEC_MASK,
    COUNT_START,
    HEADER_BYTES,
    TIMESTAMP_TYPE_BIT,
)
from ottla.records.compression import Buffer
from ottla.records.packed_compiled import pack
from ottla.records.pieces import Piece, Row, Rows
from ottla.records.record import DECODED_BYTES_MAX, Headers, decode_headers, read_header, read_payload

__all__ = ["open_rows", "pack", "piece"]

#: A batch with fewer records is decoded faster without the arrays.
ROWS_MIN: Final = 8

#: At least this many keys or values of the same, small width are cut out together: 0.06 µs each at 200 bytes,
#: instead of 0.17 one by one.
_ALIKE_MIN: Final = 100
_ALIKE_BYTES_MAX: Final = 400

_COLUMNS: Final = 8
_VARINT_BYTES: Final = 5
_VARLONG_BYTES: Final = 10
#: Bits of the result of `index_records`.
_KEYS: Final = 1
_NULL_KEYS: Final = 2
_VALUES: Final = 4
_NULL_VALUES: Final = 8
_HEADERS: Final = 16
_REFUSED: Final = -1

_BYTES: Final = types.Array(types.uint8, 1, "C", readonly=True)
_POSITION: Final = types.int64


def _varint(data: Any, position: int, size: int, bytes_max: int) -> tuple[Any, int]:
    """The raw value at `position` and the position after it, which is -1 if the varint does not end or is too
    large.
    """
    raw = np.uint64(0)
    shift = np.uint64(0)
    for _ in range(bytes_max):
        if position >= size:
            return raw, -1
        byte = data[position]
        position += 1
        # The tenth byte of a varlong has only one significant bit.
        if shift == np.uint64(63) and (byte & np.uint8(0x7F)) > 1:
            return raw, -1
        raw |= np.uint64(byte & np.uint8(0x7F)) << shift
        if byte < 0x80:
            if bytes_max == _VARINT_BYTES and raw >> np.uint64(32):
                return raw, -1
            return raw, position
        shift += np.uint64(7)
    return raw, -1


def _headers_end(data: Any, position: Any, end: int, size: int) -> Any:
    """The position after the headers at `position`, or -1."""
    raw, position = varint(data, position, size, _VARINT_BYTES)
    if position < 0 or raw & np.uint64(1):
        return -1
    count = np.int64(raw >> np.uint64(1))
    if count > (end - position) >> 1:
        return -1
    for number in range(2 * count):
        raw, position = varint(data, position, size, _VARINT_BYTES)
        if position < 0:
            return -1
        # Every second field is a value, which may be null.
        if raw == np.uint64(1) and number & 1:
            continue
        if raw & np.uint64(1):
            return -1
        position += np.int64(raw >> np.uint64(1))
        if position > end:
            return -1
    return position


def _index_records(
    data: Any,
    position: Any,
    count: int,
    delta_max: int,
    base_offset: int,
    base_timestamp: int,
    append_timestamp: int,
    is_append_time: int,
    out: Any,
) -> int:
    """Fill `out` for `count` records; returns bits that describe them, or -1 if the batch must be refused."""
    size = len(data)
    seen = 0
    previous: Any = -1
    for row in range(count):
        raw, position = varint(data, position, size, _VARINT_BYTES)
        if position < 0 or raw & np.uint64(1):
            return _REFUSED
        end = position + np.int64(raw >> np.uint64(1))
        if end > size:
            return _REFUSED
        raw, position = varint(data, position + 1, size, _VARLONG_BYTES)
        if position < 0:
            return _REFUSED
        if is_append_time:
            out[1, row] = append_timestamp
        else:
            delta = np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))
            timestamp = base_timestamp + delta
            # Both have the same sign, and the sum has the other: it exceeds 64 bits.
            if (base_timestamp ^ timestamp) & (delta ^ timestamp) < 0:
                return _REFUSED
            out[1, row] = timestamp
        raw, position = varint(data, position, size, _VARINT_BYTES)
        if position < 0 or raw & np.uint64(1):
            return _REFUSED
        delta = np.int64(raw >> np.uint64(1))
        if delta <= previous or delta > delta_max:
            return _REFUSED
        previous = delta
        out[0, row] = base_offset + delta
        for field in range(2):
            raw, position = varint(data, position, size, _VARINT_BYTES)
            if position < 0:
                return _REFUSED
            out[2 + 2 * field, row] = position
            if raw & np.uint64(1):
                if raw != np.uint64(1):
                    return _REFUSED
                out[3 + 2 * field, row] = position - 1
                seen |= _NULL_VALUES if field else _NULL_KEYS
            else:
                position += np.int64(raw >> np.uint64(1))
                out[3 + 2 * field, row] = position
                seen |= _VALUES if field else _KEYS
            if position >= size:
                return _REFUSED
        out[6, row] = -1
        out[7, row] = end
        if data[position]:
            seen |= _HEADERS
            out[6, row] = position
            position = headers_end(data, position, end, size)
        else:
            position += 1
        if position != end:
            return _REFUSED
    return seen if position == size else _REFUSED


def compile_with(**options: Any) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """The three functions, compiled at the call, so that the caller sees a failure."""
    walk = njit([types.Tuple((types.uint64, _POSITION))(_BYTES, _POSITION, _POSITION, _POSITION)], **options)
    ends = njit([_POSITION(_BYTES, _POSITION, _POSITION, _POSITION)], **options)
    index = njit([_POSITION(_BYTES, *[_POSITION] * 7, types.int64[:, ::1])], **options)
    global varint, headers_end
    varint = walk(_varint)
    headers_end = ends(_headers_end)
    return varint, headers_end, index(_index_records)


varint: Callable[..., Any]
headers_end: Callable[..., Any]
try:
    varint, headers_end, index_records = compile_with(cache=True, nogil=True)
except RuntimeError:
    # numba finds no directory for its cache: not beside this file, not the user's, and no NUMBA_CACHE_DIR.
    varint, headers_end, index_records = compile_with(nogil=True)


def _index(batch: Buffer, size_max: int, check_crc: bool) -> tuple[int, bytes | memoryview, Any]:
    header = read_header(batch, check_crc)
    base_offset, _, _, _, _, attributes, delta_max, base_timestamp, timestamp_max, _, _, _, count = header
    data: bytes | memoryview
    data, position = read_payload(batch, attributes & CODEC_MASK, count, size_max, copied=False)
    out = np.empty((_COLUMNS, count), np.int64)
    seen = index_records(
        np.frombuffer(data, np.uint8),
        position,
        count,
        delta_max,
        base_offset,
        base_timestamp,
        timestamp_max,
        attributes & TIMESTAMP_TYPE_BIT,
        out,
    )
    return seen, data, out


class IndexedRows:
    """The records of an indexed batch, created when they are taken."""

    __slots__ = ("_cursor", "_data", "_out", "_seen")

    def __init__(self, seen: int, data: bytes | memoryview, out: Any) -> None:
        self._seen = seen
        self._data = data
        self._out = out
        self._cursor = 0

    def skip_to(self, offset: int) -> None:
        self._cursor = max(self._cursor, int(np.searchsorted(self._out[0], offset)))

    def take(self, count: int, topic: str, partition: int, kind: str) -> Iterable[Row]:
        start = self._cursor
        out = self._out[:, start : start + count]
        self._cursor = start + out.shape[1]
        seen = self._seen
        # Constant columns are zipped in too: no step of the hot loop runs in Python.
        return zip(
            repeat(topic),
            repeat(partition),
            out[0].tolist(),
            out[1].tolist(),
            self._cut(out[2], out[3], seen & _KEYS, seen & _NULL_KEYS),
            self._cut(out[4], out[5], seen & _VALUES, seen & _NULL_VALUES),
            _decoded(self._whole(), out[6], out[7]) if seen & _HEADERS else repeat(()),
            repeat(kind),
        )

    def _cut(self, starts: Any, ends: Any, some: int, nulls: int) -> Iterable[bytes | None]:
        if not some:
            return repeat(None)
        alike = None if nulls else _alike(self._data, starts, ends)
        if alike is not None:
            return alike
        data = self._whole()
        both = zip(starts.tolist(), ends.tolist(), strict=True)
        if nulls:
            return [data[start:end] if start <= end else None for start, end in both]
        return [data[start:end] for start, end in both]

    def _whole(self) -> bytes:
        """Bytes, not a view: a slice of a view would be a view."""
        if not isinstance(self._data, bytes):
            self._data = bytes(self._data)
        return self._data


def open_rows(batch: Buffer, *, size_max: int = DECODED_BYTES_MAX, check_crc: bool = True) -> Rows:
    """As `pieces.open_rows`."""
    if len(batch) < HEADER_BYTES or int.from_bytes(batch[COUNT_START:HEADER_BYTES], "big") < ROWS_MIN:
        return pieces.open_rows(batch, size_max=size_max, check_crc=check_crc)
    seen, data, out = _index(batch, size_max, check_crc)
    if seen < 0:
        return pieces.open_rows(batch, size_max=size_max, check_crc=False)
    return IndexedRows(seen, data, out)


def piece(batch: Buffer, *, size_max: int = DECODED_BYTES_MAX, check_crc: bool = True) -> Piece:
    """The same as columns."""
    seen, data, out = _index(batch, size_max, check_crc)
    if seen < 0:
        return pieces.piece(batch, size_max=size_max, check_crc=False)
    headers = PlacedHeaders(data, out[6], out[7]) if seen & _HEADERS else None
    is_append_time = bool(batch[ATTRIBUTES_LOW] & TIMESTAMP_TYPE_BIT)
    return Piece(out[0], out[1], data, out[2], out[3], data, out[4], out[5], headers, is_append_time)


class PlacedHeaders(Sequence[Headers]):
    """Headers of records, decoded only when one is read: few readers of columns do."""

    __slots__ = ("_data", "_ends", "_starts")

    def __init__(self, data: bytes | memoryview, starts: Any, ends: Any) -> None:
        self._data = data
        self._starts = starts
        self._ends = ends

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, row: int) -> Headers: ...

    @overload
    def __getitem__(self, row: slice) -> PlacedHeaders: ...

    def __getitem__(self, row: int | slice) -> Headers | PlacedHeaders:
        if isinstance(row, slice):
            return PlacedHeaders(self._data, self._starts[row], self._ends[row])
        return _decoded(bytes(self._data), self._starts[row : row + 1], self._ends[row : row + 1])[0]

    def __iter__(self) -> Iterator[Headers]:
        return iter(_decoded(bytes(self._data), self._starts, self._ends))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


def _alike(data: bytes | memoryview, starts: Any, ends: Any) -> list[bytes | None] | None:
    """Keys or values of one width, cut out together; None if their widths differ, or there are too few."""
    if len(starts) < _ALIKE_MIN:
        return None
    widths = ends - starts
    width = int(widths[0])
    if not 0 < width <= _ALIKE_BYTES_MAX or not (widths == width).all():
        return None
    # Windows of that width at every byte; C selects these.
    windows: Any = np.ndarray((len(data) - width + 1,), np.dtype((np.void, width)), data, strides=(1,))
    picked: list[bytes | None] = windows[starts].tolist()
    return picked


def _decoded(data: bytes, starts: Any, ends: Any) -> list[Headers]:
    places = zip(starts.tolist(), ends.tolist(), strict=True)
    return [() if start < 0 else decode_headers(data, start, end)[0] for start, end in places]
