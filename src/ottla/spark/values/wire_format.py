"""The bytes around a value that was written with a schema registry.

    0   magic byte, 0
    1   schema id, 4 bytes, big-endian
    5   Protobuf only: which message of the .proto file, as zigzag varints: how many numbers follow, then the numbers, from the outermost
        message inwards. The usual one, [0], is written as the single byte 0.
    …   payload

Pure functions; a frame that is not one is a `BadValue` that says what was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ottla.records.errors import CorruptRecords
from ottla.records.varint import VARINTS, VARLONG_BYTES_MAX, read_varlong, zigzag
from ottla.spark.values.faults import BadValue

HEADER_BYTES: Final = 5
#: A message is nested in another at most so deep; more is no frame but noise.
_DEPTH_MAX: Final = 100


def schema_id_of(frame: bytes) -> int:
    """The id of the schema that this value was written with; its payload begins at `HEADER_BYTES`."""
    if len(frame) < HEADER_BYTES:
        raise BadValue(
            f"truncated: {len(frame)} bytes, where magic byte and schema id alone take {HEADER_BYTES}"
        )
    if frame[0]:
        raise BadValue(
            f"not written with a schema registry: it begins with byte {frame[0]}, not with magic byte 0"
        )
    return int.from_bytes(frame[1:HEADER_BYTES], "big")


def header(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


def message_indexes_of(frame: bytes, start: int = HEADER_BYTES) -> tuple[tuple[int, ...], int]:
    """Which message of its file a Protobuf value is, and where its payload begins."""
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
