"""The bytes around a value that was written with a schema registry.

    0   magic byte, 0
    1   schema id, 4 bytes, big-endian
    5   Protobuf only: message indexes, as zigzag varints: their count, then the indexes, from the outermost
        message inward. The usual [0] is written as the single byte 0.
    …   payload

Pure functions. An invalid frame raises a `BadValue` that says what was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.records.errors import CorruptRecords
from ottla.records.varint import VARINTS, VARLONG_BYTES_MAX, read_varlong, zigzag
from ottla.spark.values.errors import BadValue

HEADER_BYTES: Final = 5
#: Maximum nesting of messages; a frame with more is invalid.
_DEPTH_MAX: Final = 100


def schema_id_of(frame: bytes) -> int:
    """The schema id of a value. The payload starts at `HEADER_BYTES`."""
    if len(frame) < HEADER_BYTES:
        raise BadValue(f"truncated: {len(frame)} bytes; magic byte and schema id alone take {HEADER_BYTES}")
    if frame[0]:
        raise BadValue(
            f"not written with a schema registry: the first byte is {frame[0]}, not the magic byte 0"
        )
    return int.from_bytes(frame[1:HEADER_BYTES], "big")


def header(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


def message_indexes_of(frame: bytes, start: int = HEADER_BYTES) -> tuple[tuple[int, ...], int]:
    """The message indexes of a Protobuf value, and the start of its payload."""
    count, position = _varint(frame, start)
    if count == 0:
        return (0,), position
    if not 0 < count <= _DEPTH_MAX:
        raise BadValue(f"not a Protobuf value of a registry: {count} message indexes")
    indexes = []
    for _ in range(count):
        index, position = _varint(frame, position)
        if index < 0:
            raise BadValue(f"not a Protobuf value of a registry: message index {index}")
        indexes.append(index)
    return tuple(indexes), position


def message_indexes(indexes: Sequence[int]) -> bytes:
    if tuple(indexes) == (0,):
        return b"\0"
    return b"".join(VARINTS[number] for number in (len(indexes), *indexes))


def _varint(frame: bytes, position: int) -> tuple[int, int]:
    try:
        raw, position = read_varlong(frame, position)
    except CorruptRecords as error:
        if position + VARLONG_BYTES_MAX > len(frame):
            raise BadValue("truncated: it ends within the message indexes") from None
        raise BadValue(f"not a Protobuf value of a registry: {error}") from None
    return zigzag(raw), position
