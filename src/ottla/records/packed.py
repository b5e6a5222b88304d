"""Byte strings behind one another, as Arrow's binary arrays want them: what keys and values become on their
way out of pieces.

    offsets    32-bit integers, one more than there are strings: where each begins in `data`, and where the last one ends
    data       the strings, without gaps
    validity   one bit a string, the lowest bit of a byte first, 0 for null; None where nothing is null

This is the pure twin; `packed_compiled.py` makes the same out of machine code.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

#: A buffer, and arrays of where each string begins and ends in it; an end below its start stands for null.
Part: TypeAlias = tuple[bytes | memoryview, Any, Any]

BYTES_MAX: Final = 2**31 - 1


class Packed(NamedTuple):
    """See above. What holds the bytes is any object with a buffer."""

    rows: int
    nulls: int
    validity: Any
    offsets: Any
    data: Any


class TooManyBytes(ValueError):
    """More than 32-bit offsets can tell apart."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"{size} bytes of keys or values at once are more than the {BYTES_MAX} of one array: poll fewer records"
        )


def pack(parts: Sequence[Part]) -> Packed:
    """All strings of these parts, one part behind the other."""
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
