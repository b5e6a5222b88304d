"""The compiled version of `packed.py`: machine code by numba measures the strings, then copies each once.

Importing this module compiles it, or loads the cached result of an earlier process. Without numba the import
fails. Positions come from pieces, which were checked against their buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numba import njit, types

from ottla.records.packed import BYTES_MAX, Packed, Part, TooManyBytes

_BYTES: Final = types.Array(types.uint8, 1, "C", readonly=True)
_PLACES: Final = types.Array(types.int64, 1, "A", readonly=True)
_NUMBER: Final = types.int64


def _measure(starts: Any, ends: Any) -> tuple[int, int]:
    """Total size, and number of nulls."""
    size = 0
    nulls = 0
    for row in range(len(starts)):
        length = ends[row] - starts[row]
        if length < 0:
            nulls += 1
        else:
            size += length
    return size, nulls


def _fill(
    data: Any, starts: Any, ends: Any, first_row: int, at: int, offsets: Any, out: Any, validity: Any
) -> int:
    """Copy them after the existing bytes; returns the position after the last."""
    for number in range(len(starts)):
        row = first_row + number
        start = starts[number]
        length = ends[number] - start
        if length >= 0:
            validity[row >> 3] |= np.uint8(1) << np.uint8(row & 7)
            # Unsigned: with a signed index numba copies byte by byte, which takes ten times as long.
            source = np.uint64(start)
            target = np.uint64(at)
            for byte in range(np.uint64(length)):
                out[target + byte] = data[source + byte]
            at += length
        offsets[row + 1] = at
    return at


def compile_with(**options: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Both functions, compiled at the call, so that the caller sees a failure."""
    sizes = njit([types.UniTuple(_NUMBER, 2)(_PLACES, _PLACES)], **options)
    copies = njit(
        [
            _NUMBER(
                _BYTES,
                _PLACES,
                _PLACES,
                _NUMBER,
                _NUMBER,
                types.int32[::1],
                types.uint8[::1],
                types.uint8[::1],
            )
        ],
        **options,
    )
    return sizes(_measure), copies(_fill)


try:
    measure, fill = compile_with(cache=True, nogil=True)
except RuntimeError:
    # numba finds no directory for its cache: not beside this file, not the user's, and no NUMBA_CACHE_DIR.
    measure, fill = compile_with(nogil=True)


def pack(parts: Sequence[Part]) -> Packed:
    """As `packed.pack`."""
    sizes = [measure(starts, ends) for _, starts, ends in parts]
    rows = sum(len(starts) for _, starts, _ in parts)
    size, nulls = sum(size for size, _ in sizes), sum(nulls for _, nulls in sizes)
    if size > BYTES_MAX:
        raise TooManyBytes(size)
    validity = np.zeros((rows + 7) >> 3, np.uint8)
    offsets = np.zeros(rows + 1, np.int32)
    out = np.empty(size, np.uint8)
    # Without bytes to copy the rows need no visit: often all keys are null.
    if nulls < rows:
        row = at = 0
        for data, starts, ends in parts:
            at = fill(np.frombuffer(data, np.uint8), starts, ends, row, at, offsets, out, validity)
            row += len(starts)
    return Packed(rows, nulls, validity if nulls else None, offsets, out)
