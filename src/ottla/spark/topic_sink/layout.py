"""Rows as the records of a batch: the bytes, without the batch's header. The pure twin; `layout_compiled.py` is the other.

    record: length | attributes 0 | timestamp delta | offset delta | key length, key | value length, value | headers

Lengths and deltas are zigzag varints, a null has the length -1. Rows come as Arrow's buffers: for each column where each row begins in its bytes, and
whether it is there. Headers come as bytes already, with their count before them. Both twins fill the same `out` with the same bytes.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ottla.records.partitioner import partition_for_key
from ottla.records.varint import VARINTS

#: So many rows are cut out of their columns together: a batch that is full leaves the rest to the next.
_AT_ONCE: Final = 256


class Bytes(NamedTuple):
    """A column of byte strings: row `i` is `data[offsets[i]:offsets[i + 1]]`, if `valid[i]`. All three are numpy arrays."""

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
    """Write the records of `rows[start:]`, in this order, to `out` from `position` while they fit below `limit`.

    The first one is number `first_delta` of its batch. How many were written, and the position behind them.
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
    """Into `out` for these rows, where it is -1: the partition, of `count`, of the row's key; `spread` for one that has none."""
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
