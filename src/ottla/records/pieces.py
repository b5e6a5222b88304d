"""The records of a batch as columns, for consumers.

A piece is one buffer and, for each record, the positions of key and value in it. An end before its start
means null, so moving both keeps it null. The arrays are numpy's if numpy is installed, else those of the
`array` module. This is the pure version; `compiled.py` produces the same with compiled code. Only the client
uses them: no broker imports numpy.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, dropwhile, islice
from typing import Any, NamedTuple, Protocol, TypeAlias

from ottla.records.batch import ATTRIBUTES_LOW, TIMESTAMP_TYPE_BIT
from ottla.records.compression import Buffer
from ottla.records.packed import pack
from ottla.records.record import DECODED_BYTES_MAX, Headers, Record, decode_batch, iter_batch

__all__ = ["Piece", "Rows", "open_rows", "pack", "piece"]

#: One record: topic, partition, offset, timestamp, key, value, headers, timestamp type.
Row: TypeAlias = tuple[str, int, int, int, bytes | None, bytes | None, Headers, str]

#: int64, numpy's or `array('q')`: the type checker cannot know which.
Integers: TypeAlias = Any


class Piece(NamedTuple):
    """The records of one batch. `headers` is None if no record has headers."""

    offsets: Integers
    timestamps: Integers
    key_data: bytes | memoryview
    key_starts: Integers
    key_ends: Integers
    value_data: bytes | memoryview
    value_starts: Integers
    value_ends: Integers
    headers: Sequence[Headers] | None
    #: Whether the timestamps are the broker's.
    is_append_time: bool = False

    def since(self, row: int) -> Piece:
        """The piece without the rows before this one; the buffers are not copied."""
        return self._cut(slice(row, None))

    def until(self, row: int) -> Piece:
        return self._cut(slice(row))

    def _cut(self, rows: slice) -> Piece:
        return Piece(
            self.offsets[rows],
            self.timestamps[rows],
            self.key_data,
            self.key_starts[rows],
            self.key_ends[rows],
            self.value_data,
            self.value_starts[rows],
            self.value_ends[rows],
            None if self.headers is None else self.headers[rows],
            self.is_append_time,
        )


def integers(numbers: Sequence[int]) -> Integers:
    """The numbers as an array of 64-bit integers."""
    try:
        import numpy as np
    except ImportError:
        return array("q", numbers)
    return np.array(numbers, dtype=np.int64)


class Rows(Protocol):
    """The remaining records of a batch."""

    def skip_to(self, offset: int) -> None:
        """Skip the records before this offset. Called before the first `take`."""

    def take(self, count: int, topic: str, partition: int, kind: str) -> Iterable[Row]:
        """The next records, at most this many. Raises CorruptRecords if a record is damaged."""


class DecodedRows:
    """Records that are decoded when they are taken."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Iterator[Record]) -> None:
        self._rows = rows

    def skip_to(self, offset: int) -> None:
        self._rows = dropwhile(lambda row: row[0] < offset, self._rows)

    def take(self, count: int, topic: str, partition: int, kind: str) -> Iterable[Row]:
        return (
            (topic, partition, offset, timestamp, key, value, headers, kind)
            for offset, timestamp, key, value, headers in islice(self._rows, count)
        )


def open_rows(batch: Buffer, *, size_max: int = DECODED_BYTES_MAX, check_crc: bool = True) -> Rows:
    """The records of one complete batch. An error of the batch is raised here or at the first `take`."""
    return DecodedRows(iter_batch(batch, size_max, check_crc=check_crc))


def piece(batch: Buffer, *, size_max: int = DECODED_BYTES_MAX, check_crc: bool = True) -> Piece:
    """The same as columns."""
    records = decode_batch(batch, size_max=size_max, check_crc=check_crc)
    return Piece(
        integers([record.offset for record in records]),
        integers([record.timestamp_ms for record in records]),
        *_joined([record.key for record in records]),
        *_joined([record.value for record in records]),
        [record.headers for record in records] if any(record.headers for record in records) else None,
        bool(batch[ATTRIBUTES_LOW] & TIMESTAMP_TYPE_BIT),
    )


def _joined(things: list[bytes | None]) -> tuple[bytes, Integers, Integers]:
    ends = list(accumulate(0 if thing is None else len(thing) for thing in things))
    starts = [end + 1 if thing is None else end - len(thing) for end, thing in zip(ends, things, strict=True)]
    return b"".join(thing for thing in things if thing), integers(starts), integers(ends)
