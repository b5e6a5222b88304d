"""Rows as the records of a batch: the bytes, without the batch's header. The pure twin; `layout_compiled.py` is the other.

    record: length | attributes 0 | timestamp delta | offset delta | key length, key | value length, value | headers

Lengths and deltas are zigzag varints, a null has the length -1. Rows come as Arrow's buffers: for each column where each row begins in its bytes, and
whether it is there. Headers come as bytes already, with their count before them. Both twins fill the same `out` with the same bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ottla.records.partitioner import partition_for_key
from ottla.records.varint import VARINTS


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
    for row in rows[start:].tolist():
        parts = [stamp, VARINTS[first_delta + done]]
        for column in (keys, values):
            content = cut(column, row)
            parts += (b"\1",) if content is None else (VARINTS[len(content)], content)
        parts.append(cut(headers, row) or b"\0")
        body = b"".join(parts)
        length = VARINTS[len(body)]
        end = position + len(length) + len(body)
        if end > limit:
            break
        view[position : position + len(length)] = length
        view[position + len(length) : end] = body
        position = end
        done += 1
    return done, position


def choose(keys: Bytes, count: int, spread: int, out: Any) -> None:
    """Into `out`, where it is -1: the partition, of `count`, of each row's key; `spread` for rows that have none."""
    for row in (out < 0).nonzero()[0].tolist():
        key = cut(keys, row)
        out[row] = spread if key is None else partition_for_key(key, count)


def cut(column: Bytes, row: int) -> bytes | None:
    if not column.valid[row]:
        return None
    start, end = column.offsets[row], column.offsets[row + 1]
    return bytes(column.data[start:end])
