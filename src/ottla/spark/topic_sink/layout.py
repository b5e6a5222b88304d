"""Lays out rows as the records of a batch, without the batch header: the pure twin of `layout_compiled.py`.

    record: length | attributes 0 | timestamp delta | offset delta | key length, key | value length, value |
        headers

Lengths and deltas are zigzag varints; null has the length -1. Rows come as Arrow buffers: offsets, data and
validity of each column. Headers are already encoded, with their count first. Both twins write the same bytes
to `out`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ottla.records.partitioner import partition_for_key
from ottla.records.varint import VARINTS

#: Rows that are sliced together. When a batch is full, the rest is left for the next one.
_AT_ONCE: Final = 256


class Bytes(NamedTuple):
    """A column of byte strings: row `i` is `data[offsets[i]:offsets[i + 1]]` if `valid[i]`.

    All are numpy arrays.
    """

    offsets: Any
    data: Any
    valid: Any


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
    """Write the records of `rows[start:]` to `out` from `position`, while they fit below `limit`.

    `first_delta` is the offset delta of the first record. Returns the number of records and the next
    position.
    """
    view = memoryview(out)
    stamp = b"\0" + VARINTS[stamp_delta]
    done = 0
    for at in range(start, len(rows), _AT_ONCE):
        some = rows[at : at + _AT_ONCE]
        for key, value, header in zip(
            _cut_all(keys, some), _cut_all(values, some), _cut_all(headers, some), strict=True
        ):
            body = b"".join(
                (
                    stamp,
                    VARINTS[first_delta + done],
                    b"\1" if key is None else VARINTS[len(key)] + key,
                    b"\1" if value is None else VARINTS[len(value)],
                    value or b"",
                    header or b"\0",
                )
            )
            record = VARINTS[len(body)] + body
            end = position + len(record)
            if end > limit:
                return done, position
            view[position:end] = record
            position = end
            done += 1
    return done, position


def choose(rows: Any, keys: Bytes, count: int, spread: int, out: Any) -> None:
    """Set `out` where it is -1: the partition of the row's key, or `spread` for a row without a key."""
    left = rows[out[rows] < 0]
    out[left] = [spread if key is None else partition_for_key(key, count) for key in _cut_all(keys, left)]


def _cut_all(column: Bytes, rows: Any) -> list[bytes | None]:
    view = memoryview(column.data)
    places = (column.offsets[rows], column.offsets[rows + 1], column.valid[rows])
    return [
        bytes(view[start:end]) if there else None
        for start, end, there in zip(*(each.tolist() for each in places), strict=True)
    ]


def cut(column: Bytes, row: int) -> bytes | None:
    if not column.valid[row]:
        return None
    start, end = column.offsets[row], column.offsets[row + 1]
    return bytes(column.data[start:end])
