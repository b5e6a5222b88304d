"""Searches in segments: bytes by offset, aborted transactions, records by timestamp (A7, B2).

Functions of a log's segments and log start offset, called by `PartitionLog`. They use the indexes instead of
scanning segments. Searches by timestamp decode batches, so they run in steps (`model/steps.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from ottla.log.replay import BASE, DELTA, MAX_TIMESTAMP, scan
from ottla.log.segment import Head, Segment
from ottla.log.transactions import Ended
from ottla.model.limits import DECOMPRESSED_BYTES_MAX, RECORDS_LOOKED_AT_MAX
from ottla.model.steps import STEP_COST, Steps
from ottla.ports.disk import File
from ottla.records.batch import HEADER, HEADER_BYTES, LENGTH_OVERHEAD, OFFSET_AND_LENGTH
from ottla.records.record import Record, iter_batch

#: How many empty batches a fetch skips before it returns them.
_HOLLOW_MAX: Final = 64
#: Batch headers that a search by timestamp reads in one step.
_HEADS_AT_ONCE: Final = 500
#: Smaller batches are decompressed at once.
_UNPACK_AT_ONCE_BYTES: Final = 64 * 1024


class Slice(NamedTuple):
    """A run of complete batches in the file of one segment; the last may be cut off."""

    file: File
    position: int
    size: int


def slice_of(
    segment: Segment, offset: int, end_offset: int, bytes_max: int, whole_first: bool
) -> Slice | None:
    """The part of one segment for `PartitionLog.slice`: None if there is nothing, empty if the first batch
    does not fit.
    """
    position = segment.locate(offset, checked=True)
    end = segment.size if end_offset >= segment.next_offset else segment.locate(end_offset)
    size = end - position
    if size > bytes_max:
        head = segment.disk.read(segment.file, position, LENGTH_OVERHEAD)
        first = OFFSET_AND_LENGTH.unpack(head)[1] + LENGTH_OVERHEAD
        if first > bytes_max and not whole_first:
            # Part of a batch is useless, and some clients take it for a batch that they can never fetch.
            return Slice(segment.file, position, 0)
        size = max(bytes_max, first)
    return Slice(segment.file, position, size) if size > 0 else None


def is_hollow(segment: Segment, found: Slice) -> bool:
    """Whether a slice reaches the end of a closed segment and has only empty batches, which compaction left."""
    count, rest = divmod(found.size, HEADER_BYTES)
    if rest or not 0 < count <= _HOLLOW_MAX or found.position + found.size < segment.size:
        return False
    data = segment.disk.read(found.file, found.position, found.size)
    return not any(
        HEADER.unpack_from(data, at)[1] != HEADER_BYTES - LENGTH_OVERHEAD or HEADER.unpack_from(data, at)[-1]
        for at in range(0, found.size, HEADER_BYTES)
    )


def find_aborted(
    segments: Sequence[Segment], number: int, offset: int, end_offset: int, piece: Slice
) -> list[Ended]:
    """Aborted transactions with records in a slice; `offset` is in segment `number`.

    The result can include transactions that begin up to an index interval after the slice.
    """
    found: list[Ended] = []
    at = number
    while segments[at].file is not piece.file:
        # The rest of a segment may have only empty batches, which the slice skipped.
        at += 1
    end_offset = min(end_offset, segments[at].offset_bound(piece.position + piece.size))
    for at in range(number, len(segments)):
        # A marker can be in any segment after the records of its transaction.
        aborted = segments[at].aborted
        if aborted.count and aborted.collect(offset, end_offset, found):
            break
    return found


def find_time(
    segments: Sequence[Segment], timestamp: int, start_offset: int
) -> Steps[tuple[int, int] | None]:
    """(offset, timestamp) of the first record at or after `start_offset` with a timestamp >= `timestamp`."""
    for segment in segments:
        if segment.max_timestamp < timestamp or segment.next_offset <= start_offset:
            continue
        for passed, head in enumerate(segment.heads(segment.position_for_time(timestamp, start_offset)), 1):
            if not passed % _HEADS_AT_ONCE:
                yield STEP_COST
            if head.max_timestamp < timestamp or head.last_offset < start_offset:
                continue
            found = yield from _find_in_batch(segment, head, timestamp, start_offset)
            if found is not None:
                return found
    return None


def find_newest(segments: Sequence[Segment], start_offset: int) -> Steps[tuple[int, int] | None]:
    """(offset, timestamp) of the first record at or after `start_offset` with the largest timestamp."""
    newest = -1
    for segment in segments:
        newest = max(newest, (yield from _newest(segment, start_offset)))
    if newest < 0:
        return None
    found = yield from find_time(segments, newest, start_offset)
    if found is None:
        # The timestamp is of a batch whose records were compacted away. The indexes do not have those of
        # other batches.
        newest = -1
        for segment in segments:
            newest = max(newest, (yield from _newest_left(segment, start_offset)))
        found = (yield from find_time(segments, newest, start_offset)) if newest >= 0 else None
    return found


def _newest_left(segment: Segment, start_offset: int) -> Steps[int]:
    """The largest timestamp, by their headers, of batches that still have records."""
    newest = -1
    batches = scan(segment, 0, segment.size, check_from=segment.next_offset)
    for passed, (_position, _size, header) in enumerate(batches, 1):
        if not passed % _HEADS_AT_ONCE:
            yield STEP_COST
        if header[-1] and header[BASE] + header[DELTA] >= start_offset:
            newest = max(newest, header[MAX_TIMESTAMP])
    return newest


def _newest(segment: Segment, start_offset: int) -> Steps[int]:
    """The largest timestamp in the rest of a segment; -1 if it has no records."""
    if segment.next_offset <= start_offset:
        return -1
    if segment.max_timestamp_offset >= start_offset and segment.base_offset >= start_offset:
        return segment.max_timestamp
    # The log starts inside this segment, possibly after the record that the indexes refer to.
    newest = -1
    for passed, head in enumerate(segment.heads(segment.locate(start_offset)), 1):
        if not passed % _HEADS_AT_ONCE:
            yield STEP_COST
        if head.max_timestamp > newest:
            if head.base_offset < start_offset:
                batch = segment.batch_at(head.position)
                newest = max(newest, (yield from _newest_in_batch(batch, start_offset)))
            else:
                newest = head.max_timestamp
    return newest


def _find_in_batch(
    segment: Segment, head: Head, timestamp: int, start_offset: int
) -> Steps[tuple[int, int] | None]:
    batch = segment.batch_at(head.position)
    if not HEADER.unpack_from(batch)[-1]:
        # Compaction left only the header, so no record has its timestamp.
        return None
    for passed, record in enumerate((yield from _records(batch)), 1):
        if not passed % STEP_COST:
            yield STEP_COST
        if record.timestamp_ms >= timestamp and record.offset >= start_offset:
            return record.offset, record.timestamp_ms
    if head.base_offset < start_offset:
        # The log starts inside this batch, after the record with that timestamp.
        return None
    # The header has a larger timestamp than the records. The header is believed: otherwise a log full of such
    # batches would be decoded completely by each search.
    return head.base_offset, head.max_timestamp


def _newest_in_batch(batch: bytes, start_offset: int) -> Steps[int]:
    newest = -1
    for passed, record in enumerate((yield from _records(batch)), 1):
        if not passed % STEP_COST:
            yield STEP_COST
        if record.offset >= start_offset:
            newest = max(newest, record.timestamp_ms)
    return newest


def _records(batch: bytes) -> Steps[Iterator[Record]]:
    """The records of a batch without their headers. A large batch is decompressed in a step of its own."""
    records = iter_batch(batch, DECOMPRESSED_BYTES_MAX, RECORDS_LOOKED_AT_MAX, headers_max=0)
    if len(batch) < _UNPACK_AT_ONCE_BYTES:
        return records
    first = yield partial(next, records, None)
    return chain(() if first is None else (first,), records)
