"""Position and key of each record in a batch: for compaction, without creating records.

A compacted batch is joined from the raw bytes of the records that stay, so their values and headers are not
needed. There is one span per record, in the order of offsets. Lengths are checked so that no span leaves its
batch; invalid bytes raise CorruptRecords. Only `log/compaction.py` calls this, millions of times: numbers of
one and two bytes are read inline.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from ottla.records.errors import CorruptRecords
from ottla.records.varint import VARINTS, read_varint, read_varlong, zigzag

#: (start, end, timestamp delta, offset delta, key, whether it has a value)
Span: TypeAlias = tuple[int, int, int, int, bytes | None, bool]


def spans(data: bytes, position: int, limit: int, count: int) -> Iterator[Span]:
    """The `count` records in `data` from `position` to exactly `limit`."""
    previous = -1
    try:
        for _ in range(count):
            start = position
            number = data[position]
            position += 1
            if number > 0x7F:
                if (high := data[position]) < 0x80:
                    number += (high << 7) - 0x80
                    position += 1
                else:
                    number, position = read_varint(data, position - 1)
            end = position + (number >> 1)
            if number & 1 or end > limit:
                raise CorruptRecords(f"a record of {zigzag(number)} bytes where {limit - position} are left")
            number = data[position + 1]  # past the attributes
            position += 2
            if number > 0x7F:
                if (high := data[position]) < 0x80:
                    number += (high << 7) - 0x80
                    position += 1
                else:
                    number, position = read_varlong(data, position - 1)
            time = (number >> 1) ^ -(number & 1)
            number = data[position]
            position += 1
            if number > 0x7F:
                if (high := data[position]) < 0x80:
                    number += (high << 7) - 0x80
                    position += 1
                else:
                    number, position = read_varint(data, position - 1)
            delta = number >> 1
            if number & 1 or delta <= previous:
                raise CorruptRecords(f"offset delta {zigzag(number)} after {previous}")
            previous = delta
            number = data[position]
            position += 1
            if number > 0x7F:
                if (high := data[position]) < 0x80:
                    number += (high << 7) - 0x80
                    position += 1
                else:
                    number, position = read_varint(data, position - 1)
            key: bytes | None = None
            if not number & 1:
                begin = position
                position += number >> 1
                key = data[begin:position]
            elif number != 1:
                raise CorruptRecords("a key of negative length")
            if position >= end:
                raise CorruptRecords("a record that ends inside its key")
            yield start, end, time, delta, key, data[position] != 1
            position = end
    except IndexError:
        raise CorruptRecords("the records end inside a record") from None
    if position != limit:
        raise CorruptRecords(f"{limit - position} bytes after the last record")


def moved(data: bytes, start: int, end: int, by: int) -> bytes:
    """The record with its timestamp delta reduced by `by`, for a batch with another base timestamp."""
    _, position = read_varint(data, start)
    raw, after = read_varlong(data, position + 1)
    body = data[position : position + 1] + VARINTS[zigzag(raw) - by] + data[after:end]
    return VARINTS[len(body)] + body
