"""A segment: one `.log` file of batches and its two sparse indexes, named by the first offset it may hold (B1).

The active segment also remembers where its most recent batches begin, so that readers at the tail, which are most
readers, find their place without touching a file. Everything else is found by the index and a walk over at most an
index interval of batch headers (B2).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from ottla.log.index import SparseIndex, offset_index, time_index
from ottla.log.names import INDEX, LOG, TIME_INDEX, offset_name
from ottla.ports.disk import Buffer, Disk, File
from ottla.records.batch import DELTA_AND_TIMES, HEADER_BYTES, LENGTH_OVERHEAD, OFFSET_AND_LENGTH

_TAIL_BATCHES: Final = 1024
_WALK_BYTES: Final = 8192
#: Where the last offset delta stands in a batch header; the timestamps follow it.
_DELTA_AT: Final = 23


class Segment:
    __slots__ = (
        "base_offset", "created_ms", "directory", "disk", "file", "first_timestamp", "index", "max_timestamp",
        "max_timestamp_offset", "names_synced", "next_offset", "since_index_bytes", "size", "synced_offset",
        "tail_offsets", "tail_positions", "times",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        *,
        index_bytes_max: int,
        created_ms: int,
        create: bool,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.base_offset = base_offset
        stem = f"{directory}/{offset_name(base_offset)}"
        self.file: File = disk.open(stem + LOG, create=create)
        # An index of the largest size that holds whole entries, as Kafka rounds it.
        self.index: SparseIndex = offset_index(disk, stem + INDEX, index_bytes_max // 8 * 8, create=True)
        self.times: SparseIndex = time_index(disk, stem + TIME_INDEX, index_bytes_max // 12 * 12, create=True)
        self.size = 0
        #: The offset after the last record.
        self.next_offset = base_offset
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        #: Of the first batch: what rolling by time is measured from (B4). -1 while unknown.
        self.first_timestamp = -1
        self.created_ms = created_ms
        self.since_index_bytes = 0
        #: Records before this offset are durable.
        self.synced_offset = base_offset
        #: Whether the directory was synced since the files were made.
        self.names_synced = not create
        self.tail_offsets = array("q")
        self.tail_positions = array("q")

    def append(
        self,
        parts: tuple[Buffer, ...],
        size: int,
        *,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        index_interval_bytes: int,
    ) -> None:
        position = self.size
        self.disk.write(self.file, position, parts)
        # Only now, when the bytes are there: a failed write leaves the segment as it was.
        self.size = position + size
        self.note(base_offset, last_offset, max_timestamp, position, size, index_interval_bytes)

    def note(
        self,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        position: int,
        size: int,
        index_interval_bytes: int,
    ) -> None:
        """Account for a batch that stands in the file: tail, timestamps and, once an interval, the indexes."""
        self.next_offset = last_offset + 1
        tail = self.tail_offsets
        tail.append(base_offset)
        self.tail_positions.append(position)
        if len(tail) > _TAIL_BATCHES:
            del tail[: _TAIL_BATCHES // 2]
            del self.tail_positions[: _TAIL_BATCHES // 2]
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if position == 0:
            self.first_timestamp = max_timestamp
        if self.since_index_bytes > index_interval_bytes:
            self.index.append(last_offset - self.base_offset, position)
            self.note_time()
            self.since_index_bytes = 0
        self.since_index_bytes += size

    def note_time(self) -> None:
        """Add the largest timestamp so far to the time index, if it grew since the last entry."""
        last = self.times.last_key
        if self.max_timestamp >= 0 and (last is None or self.max_timestamp > last):
            self.times.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def finish(self) -> None:
        """The segment has been rolled: its last timestamp must be findable from the index alone."""
        self.note_time()
        self.index.flush()
        self.times.flush()
        self.tail_offsets = array("q")
        self.tail_positions = array("q")

    def locate(self, offset: int) -> int:
        """The position of the first batch that holds this offset or a later one; the size if there is none."""
        if offset >= self.next_offset:
            return self.size
        tail = self.tail_offsets
        if tail and offset >= tail[0]:
            at = bisect_right(tail, offset) - 1
            # The batch that begins at or before the offset holds it, unless the offset fell into a gap behind it.
            return self.tail_positions[at]
        entry = self.index.floor(offset - self.base_offset)
        for base, position, delta, _size, _time in self.headers(entry[1] if entry else 0):
            if base + delta >= offset:
                return position
        return self.size

    def headers(self, position: int = 0) -> Iterator[tuple[int, int, int, int, int]]:
        """(base offset, position, last offset delta, size, max timestamp) of each whole batch from a position on."""
        while position < self.size:
            data = self.disk.read(self.file, position, min(_WALK_BYTES, self.size - position))
            at, end = 0, len(data) - HEADER_BYTES
            while at <= end:
                base, length = OFFSET_AND_LENGTH.unpack_from(data, at)
                size = length + LENGTH_OVERHEAD
                if size < HEADER_BYTES:
                    return
                delta, _base_timestamp, max_timestamp = DELTA_AND_TIMES.unpack_from(data, at + _DELTA_AT)
                yield base, position + at, delta, size, max_timestamp
                at += size
            if at == 0:
                return
            position += at

    def position_for_time(self, timestamp: int) -> int:
        """From where to look for the first record not older than this."""
        entry = self.times.floor(timestamp)
        return self.locate(self.base_offset + entry[1]) if entry else 0

    def batch_at(self, position: int) -> bytes:
        """The whole batch that begins at a position."""
        head = self.disk.read(self.file, position, LENGTH_OVERHEAD)
        size = OFFSET_AND_LENGTH.unpack_from(head)[1] + LENGTH_OVERHEAD
        return self.disk.read(self.file, position, size)

    def truncate(self, offset: int) -> None:
        """Cut off the batch that holds this offset and all after it."""
        position = self.locate(offset)
        self.disk.truncate(self.file, position)
        self.size = position
        self.index.truncate(offset - self.base_offset)
        self.since_index_bytes = 0
        keep = bisect_left(self.tail_offsets, offset)
        del self.tail_offsets[keep:]
        del self.tail_positions[keep:]
        self.next_offset = min(self.next_offset, offset)
        self.synced_offset = min(self.synced_offset, offset)
        self.reload_times(offset)

    def reload_times(self, offset: int) -> None:
        """Drop time entries at or past the offset and learn the largest timestamp that is left."""
        while (entry := self.times.last()) is not None and entry[1] + self.base_offset >= offset:
            self.times.truncate_entries(self.times.count - 1)
        entry = self.times.last()
        self.max_timestamp, self.max_timestamp_offset = (
            (entry[0], entry[1] + self.base_offset) if entry else (-1, self.base_offset)
        )
        start = self.locate(self.max_timestamp_offset) if entry else 0
        for base, _position, delta, _size, timestamp in self.headers(start):
            if timestamp > self.max_timestamp:
                self.max_timestamp, self.max_timestamp_offset = timestamp, base + delta

    @property
    def files(self) -> tuple[File, File, File]:
        return self.file, self.index.file, self.times.file

    def close(self) -> None:
        self.disk.close(self.file)
        self.index.close()
        self.times.close()
