"""The compiled twin of `packed.py`: numba's machine code measures the strings, then copies each to its place,
once.

Importing this module compiles it, or loads what an earlier process has compiled; without numba the import
fails. Places come from pieces, which were checked against their buffers when they were made.
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
    """How many bytes they take, and how many are null."""
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
    """Copy them behind what is there; the position after the last."""
    for number in range(len(starts)):
        row = first_row + number
        start = starts[number]
        length = ends[number] - start
        if length >= 0:
            validity[row >> 3] |= np.uint8(1) << np.uint8(row & 7)
            # Unsigned: a place that may be negative is looked at byte by byte, which takes ten times as long.
            source = np.uint64(start)
            target = np.uint64(at)
            for byte in range(np.uint64(length)):
                out[target + byte] = data[source + byte]
            at += length
        offsets[row + 1] = at
    return at


def compile_with(**options: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Both functions, compiled now: a caller can see whether that works."""
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
    # numba finds no folder to keep its work in: neither beside this file, nor the user's own, nor
    # NUMBA_CACHE_DIR.
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
    # Where nothing is there to copy, the rows need no visit: keys are often null in all of them.
    if nulls < rows:
        row = at = 0
        for data, starts, ends in parts:
            at = fill(np.frombuffer(data, np.uint8), starts, ends, row, at, offsets, out, validity)
            row += len(starts)
    return Packed(rows, nulls, validity if nulls else None, offsets, out)
