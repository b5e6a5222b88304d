"""Zigzag varints of the record format: seven bits per byte, least significant first.

The record codec reads values of one and two bytes inline, and calls `read_varint` or `read_varlong` for the
rest. Both return the raw unsigned value: the lowest bit tells a caller that a length is negative. A varint
has at most 5 bytes and 32 bits, a varlong at most 10 bytes and 64 bits.

`VARINTS[n]` is the encoding of n. The table fills itself, so its import costs nothing, and each small number
is encoded once. Unsigned varints of the protocol are in `wire/guard.py` and `wire/encode.py`.
"""

from __future__ import annotations

from typing import Final

from ottla.records.errors import CorruptRecords

_VARINT_BYTES_MAX: Final = 5
VARLONG_BYTES_MAX: Final = 10
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
#: Numbers below this magnitude are cached: deltas and lengths of ordinary batches, at most 3 MB.
_KEPT_MAX: Final = 1 << 14


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The raw (still zigzag) value of at most 32 bits at `position`, and the position after it."""
    return _read(data, position, _VARINT_BYTES_MAX, 32)


def read_varlong(data: bytes, position: int) -> tuple[int, int]:
    """The raw (still zigzag) value of at most 64 bits at `position`, and the position after it."""
    return _read(data, position, VARLONG_BYTES_MAX, 64)


def _read(data: bytes, position: int, bytes_max: int, bits_max: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * bytes_max, 7):
        if position >= len(data):
            raise CorruptRecords("the records end inside a varint")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> bits_max:
                raise CorruptRecords(f"a varint exceeds {bits_max} bits")
            return value, position
    raise CorruptRecords(f"a varint exceeds {bytes_max} bytes")


def zigzag(raw: int) -> int:
    """The signed value of a raw varint."""
    return (raw >> 1) ^ -(raw & 1)


class _Varints(dict[int, bytes]):
    """Signed number to its encoding. Large numbers are encoded each time."""

    def __missing__(self, number: int) -> bytes:
        if not _INT64_MIN <= number <= _INT64_MAX:
            raise ValueError(f"{number} does not fit in 64 bits")
        raw = number << 1 if number >= 0 else ~(number << 1)
        encoded = bytearray()
        while raw > 0x7F:
            encoded.append(raw & 0x7F | 0x80)
            raw >>= 7
        encoded.append(raw)
        varint = bytes(encoded)
        if -_KEPT_MAX < number < _KEPT_MAX:
            self[number] = varint
        return varint


VARINTS: Final = _Varints()
