"""The compiled twin of `layout.py`: numba machine code lays out a batch directly from Arrow buffers.

Importing this module compiles it, or loads numba's cache of an earlier process. `encoder.py` decides when to
import it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numba import njit, types

from ottla.spark.topic_sink.layout import Bytes

_SEED: Final = np.uint32(0x9747B28C)
_MULTIPLIER: Final = np.uint32(0x5BD1E995)

_BYTES: Final = types.Array(types.uint8, 1, "C", readonly=True)
_OUT: Final = types.uint8[::1]
_NUMBERS: Final = types.Array(types.int64, 1, "C", readonly=True)
_FLAGS: Final = types.Array(types.boolean, 1, "C", readonly=True)
_COLUMN: Final = (_NUMBERS, _BYTES, _FLAGS)
_INT: Final = types.int64


def _size(number: Any) -> Any:
    """The size in bytes of a zigzag varint; `number` is not negative."""
    raw = number << 1
    size = 1
    while raw > 0x7F:
        raw >>= 7
        size += 1
    return size


def _put(out: Any, position: Any, number: Any) -> Any:
    raw = number << 1
    while raw > 0x7F:
        out[position] = np.uint8((raw & 0x7F) | 0x80)
        raw >>= 7
        position += 1
    out[position] = np.uint8(raw)
    return position + 1


def _lay_out(
    rows: Any,
    start: Any,
    key_offsets: Any,
    key_data: Any,
    key_valid: Any,
    value_offsets: Any,
    value_data: Any,
    value_valid: Any,
    header_offsets: Any,
    header_data: Any,
    header_valid: Any,
    stamp_delta: Any,
    first_delta: Any,
    out: Any,
    position: Any,
    limit: Any,
) -> Any:
    fixed = 1 + size(stamp_delta)
    done = 0
    for index in range(start, len(rows)):
        row = rows[index]
        delta = first_delta + done
        length = fixed + size(delta)
        key_length = value_length = -1
        header_length = 0
        if key_valid[row]:
            key_length = key_offsets[row + 1] - key_offsets[row]
            length += size(key_length) + key_length
        else:
            length += 1
        if value_valid[row]:
            value_length = value_offsets[row + 1] - value_offsets[row]
            length += size(value_length) + value_length
        else:
            length += 1
        if header_valid[row]:
            header_length = header_offsets[row + 1] - header_offsets[row]
            length += header_length
        else:
            length += 1
        if position + size(length) + length > limit:
            break
        position = put(out, position, length)
        out[position] = 0
        position = put(out, position + 1, stamp_delta)
        position = put(out, position, delta)
        if key_length < 0:
            out[position] = 1
            position += 1
        else:
            position = put(out, position, key_length)
            at = key_offsets[row]
            for each in range(key_length):
                out[position + each] = key_data[at + each]
            position += key_length
        if value_length < 0:
            out[position] = 1
            position += 1
        else:
            position = put(out, position, value_length)
            at = value_offsets[row]
            for each in range(value_length):
                out[position + each] = value_data[at + each]
            position += value_length
        if header_length:
            at = header_offsets[row]
            for each in range(header_length):
                out[position + each] = header_data[at + each]
            position += header_length
        else:
            out[position] = 0
            position += 1
        done += 1
    return done, position


def _choose(rows: Any, offsets: Any, data: Any, valid: Any, count: Any, spread: Any, out: Any) -> None:
    """Kafka's murmur2, as in `records/partitioner.py`."""
    for row in rows:
        if out[row] >= 0:
            continue
        if not valid[row]:
            out[row] = spread
            continue
        at = offsets[row]
        length = offsets[row + 1] - at
        mixed = np.uint32(_SEED ^ np.uint32(length))
        for _ in range(length >> 2):
            word = np.uint32(data[at]) | np.uint32(data[at + 1]) << np.uint32(8)
            word = np.uint32(
                word | np.uint32(data[at + 2]) << np.uint32(16) | np.uint32(data[at + 3]) << np.uint32(24)
            )
            word = np.uint32(word * _MULTIPLIER)
            word = np.uint32((word ^ (word >> np.uint32(24))) * _MULTIPLIER)
            mixed = np.uint32(np.uint32(mixed * _MULTIPLIER) ^ word)
            at += 4
        rest = length & 3
        if rest:
            tail = np.uint32(0)
            for each in range(rest):
                tail = np.uint32(tail | np.uint32(data[at + each]) << np.uint32(8 * each))
            mixed = np.uint32((mixed ^ tail) * _MULTIPLIER)
        mixed = np.uint32((mixed ^ (mixed >> np.uint32(13))) * _MULTIPLIER)
        mixed = np.uint32(mixed ^ (mixed >> np.uint32(15)))
        out[row] = np.int64(mixed & np.uint32(0x7FFFFFFF)) % count


def compile_with(**options: Any) -> tuple[Callable[..., Any], ...]:
    """Compile all functions now, so that the caller sees a failure."""
    global size, put
    size = njit([_INT(_INT)], **options)(_size)
    put = njit([_INT(_OUT, _INT, _INT)], **options)(_put)
    lay = njit(
        [types.UniTuple(_INT, 2)(_NUMBERS, _INT, *_COLUMN * 3, _INT, _INT, _OUT, _INT, _INT)], **options
    )(_lay_out)
    choosing = njit([types.void(_NUMBERS, *_COLUMN, _INT, _INT, types.int64[::1])], **options)(_choose)
    return size, put, lay, choosing


size: Callable[..., Any]
put: Callable[..., Any]
try:
    size, put, _fast_lay_out, _fast_choose = compile_with(cache=True, nogil=True)
except RuntimeError:
    # numba finds no writable cache folder: next to this file, in the user's cache, or in NUMBA_CACHE_DIR.
    size, put, _fast_lay_out, _fast_choose = compile_with(nogil=True)


def lay_out(
    rows: Any,
    start: int,
    keys: Bytes,
    values: Bytes,
    headers: Bytes,
    stamp_delta: int,
    first_delta: int,
    out: Any,
    position: int,
    limit: int,
) -> tuple[int, int]:
    """As `layout.lay_out`."""
    done, end = _fast_lay_out(
        rows, start, *keys, *values, *headers, stamp_delta, first_delta, out, position, limit
    )
    return int(done), int(end)


def choose(rows: Any, keys: Bytes, count: int, spread: int, out: Any) -> None:
    """As `layout.choose`."""
    _fast_choose(rows, *keys, count, spread, out)
