"""Finding things in segments: the bytes of a range of offsets, what of it was aborted, records by timestamp
(A7, B2).

Functions of a log's segments and its start, called by `PartitionLog`. None scans a segment that has an index.
Look-ups by time decode batches, so they go in steps (`model/steps.py`).
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

#: Batches without records that are looked at before a fetch is answered with them.
_HOLLOW_MAX: Final = 64
#: Batch headers that a look-up by time passes before others have their turn.
_HEADS_AT_ONCE: Final = 500
#: A batch below this size is unpacked on the spot.
_UNPACK_AT_ONCE_BYTES: Final = 64 * 1024


class Slice(NamedTuple):
    """A run of whole batches, the last perhaps cut, in one segment's file."""

    file: File
    position: int
    size: int


def slice_of(
    segment: Segment, offset: int, end_offset: int, bytes_max: int, whole_first: bool
) -> Slice | None:
    """The part of a segment that `PartitionLog.slice` asks for: None if there is nothing, empty if it does
    not fit.
    """
    position = segment.locate(offset, checked=True)
    end = segment.size if end_offset >= segment.next_offset else segment.locate(end_offset)
    size = end - position
    if size > bytes_max:
        head = segment.disk.read(segment.file, position, LENGTH_OVERHEAD)
        first = OFFSET_AND_LENGTH.unpack(head)[1] + LENGTH_OVERHEAD
        if first > bytes_max and not whole_first:
            # A piece of a batch helps nobody, and some clients take it for a batch that they can never fetch.
            return Slice(segment.file, position, 0)
        size = max(bytes_max, first)
    return Slice(segment.file, position, size) if size > 0 else None


def is_hollow(segment: Segment, found: Slice) -> bool:
    """Whether a closed segment has nothing from a slice on but headers, which compaction left."""
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
    """The aborted transactions with records in a slice; `offset` is in the segment of this number.

    Some that begin a little after the slice may be among them: where it ends is known to about an index
    interval.
    """
    found: list[Ended] = []
    at = number
    while segments[at].file is not piece.file:
        # Of what is left of a segment nothing may be records.
        at += 1
    end_offset = min(end_offset, segments[at].offset_bound(piece.position + piece.size))
    for at in range(number, len(segments)):
        # A marker may come long after its transaction's records, in any later segment.
        aborted = segments[at].aborted
        if aborted.count and aborted.collect(offset, end_offset, found):
            break
    return found


def find_time(
    segments: Sequence[Segment], timestamp: int, start_offset: int
) -> Steps[tuple[int, int] | None]:
    """(offset, timestamp) of the first record at or after `start_offset` that is not older than this."""
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
        # It is that of a batch whose records compaction took away: what others have is not in the indexes.
        newest = -1
        for segment in segments:
            newest = max(newest, (yield from _newest_left(segment, start_offset)))
        found = (yield from find_time(segments, newest, start_offset)) if newest >= 0 else None
    return found


def _newest_left(segment: Segment, start_offset: int) -> Steps[int]:
    """The largest timestamp of the batches that still have records, by their headers."""
    newest = -1
    batches = scan(segment, 0, segment.size, check_from=segment.next_offset)
    for passed, (_position, _size, header) in enumerate(batches, 1):
        if not passed % _HEADS_AT_ONCE:
            yield STEP_COST
        if header[-1] and header[BASE] + header[DELTA] >= start_offset:
            newest = max(newest, header[MAX_TIMESTAMP])
    return newest


def _newest(segment: Segment, start_offset: int) -> Steps[int]:
    """The largest timestamp that is left of a segment, -1 if there is none."""
    if segment.next_offset <= start_offset:
        return -1
    if segment.max_timestamp_offset >= start_offset and segment.base_offset >= start_offset:
        return segment.max_timestamp
    # The log begins inside this segment, perhaps behind the record that its indexes speak of.
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
        # Compaction left its header alone, and whatever its timestamp says is gone.
        return None
    for passed, record in enumerate((yield from _records(batch)), 1):
        if not passed % STEP_COST:
            yield STEP_COST
        if record.timestamp_ms >= timestamp and record.offset >= start_offset:
            return record.offset, record.timestamp_ms
    if head.base_offset < start_offset:
        # The log begins inside this batch: its first records do not count any more.
        return None
    # A header that promises more than its records hold is believed, as a producer's word for the whole batch:
    # who wrote a log full of them must not make a look-up decode it all.
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
    """The records of a batch, without their headers. It is unpacked before the first one."""
    records = iter_batch(batch, DECOMPRESSED_BYTES_MAX, RECORDS_LOOKED_AT_MAX, headers_max=0)
    if len(batch) < _UNPACK_AT_ONCE_BYTES:
        return records
    first = yield partial(next, records, None)
    return chain(() if first is None else (first,), records)
