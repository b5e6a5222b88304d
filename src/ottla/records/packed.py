"""Concatenated byte strings, in the layout of Arrow's binary arrays.

    offsets    32-bit integers, one more than strings: where each begins in `data`, and where the last one ends
    data       the strings, without gaps
    validity   one bit per string, lowest bit of a byte first, 0 for null; None if there is no null

This is the pure version; `packed_compiled.py` produces the same with compiled code.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

#: A buffer, and arrays with start and end of each string in it. An end before its start means null.
Part: TypeAlias = tuple[bytes | memoryview, Any, Any]

BYTES_MAX: Final = 2**31 - 1


class Packed(NamedTuple):
    """See above. The bytes are in any object that supports the buffer protocol."""

    rows: int
    nulls: int
    validity: Any
    offsets: Any
    data: Any


class TooManyBytes(ValueError):
    """More bytes than 32-bit offsets can address."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"{size} bytes of keys or values at once are more than the {BYTES_MAX} of one array: poll fewer records"
        )


def pack(parts: Sequence[Part]) -> Packed:
    """All strings of these parts, concatenated."""
    pieces: list[bytes] = []
    offsets = array("i", [0])
    validity = bytearray()
    row = nulls = end_of_last = 0
    for source, starts, ends in parts:
        data = bytes(source)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            if not row & 7:
                validity.append(0)
            if end < start:
                nulls += 1
            else:
                validity[-1] |= 1 << (row & 7)
                pieces.append(data[start:end])
                end_of_last += end - start
                if end_of_last > BYTES_MAX:
                    raise TooManyBytes(end_of_last)
            offsets.append(end_of_last)
            row += 1
    return Packed(row, nulls, bytes(validity) if nulls else None, offsets, b"".join(pieces))
