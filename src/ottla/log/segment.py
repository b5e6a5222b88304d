"""A segment: one `.log` file of batches and its indexes, named by its base offset (B1).

The active segment remembers the positions of its most recent batches, so that readers at the log end, which
are the majority, need no file access. Other lookups use the index, and read at most one index interval of
batch headers (B2).

Invariant for lookups by timestamp: when a batch gets an entry in the offset index, the time index has the
largest timestamp up to and including that batch.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from ottla.log.index import SparseIndex, offset_index, time_index
from ottla.log.names import DELETED, INDEX, LOG, TIME_INDEX, TXN_INDEX, offset_name
from ottla.log.transactions import TransactionIndex
from ottla.model.limits import RELATIVE_OFFSET_MAX
from ottla.ports.disk import Buffer, DamagedFile, Disk, DiskError, File
from ottla.records.batch import DELTA_AND_TIMES, HEADER_BYTES, LENGTH_OVERHEAD, OFFSET_AND_LENGTH

#: Size of the tail: at least half of these batches are remembered, at most all (two arrays of eight bytes
#: each).
_TAIL_BATCHES: Final = 512
_WALK_BYTES: Final = 8192
#: Position of the last offset delta in a batch header; the timestamps follow.
_DELTA_AT: Final = 23
_NO_TIMESTAMP: Final = -1


class Head(NamedTuple):
    """Bytes of each batch that a walk over batches reads."""

    base_offset: int
    last_offset: int
    position: int
    size: int
    max_timestamp: int


class Segment:
    __slots__ = (
        "aborted", "base_offset", "created_ms", "directory", "disk", "file", "first_timestamp", "index", "max_timestamp",
        "max_timestamp_offset", "names_synced", "next_offset", "since_index_bytes", "size", "synced_offset",
        "tail_ends", "tail_positions", "times",
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
        suffix: str = "",
        indexed: bool = False,
    ) -> None:
        """`suffix`: for files that do not have their final name yet (`log/swap.py`). `indexed`: both index
        files exist, and are opened at their first use.
        """
        self.disk = disk
        self.directory = directory
        self.base_offset = base_offset
        stem = f"{directory}/{offset_name(base_offset)}"
        self.file: File = disk.open(stem + LOG + suffix, create=create)
        #: The first entry creates the file. Opening a log loads an existing one.
        self.aborted = TransactionIndex(disk, stem + TXN_INDEX + suffix)
        try:
            # The index file may be missing; it is rebuilt.
            self.index: SparseIndex = offset_index(
                disk, stem + INDEX + suffix, index_bytes_max, create=not indexed
            )
            try:
                self.times: SparseIndex = time_index(
                    disk, stem + TIME_INDEX + suffix, index_bytes_max, create=not indexed
                )
            except DiskError:
                self.index.close()
                raise
            if create:
                # A leftover file of an earlier attempt.
                for file in self.files:
                    if disk.size(file):
                        disk.truncate(file, 0)
                disk.remove(stem + TXN_INDEX + suffix)
        except DiskError:
            disk.close(self.file)
            if create:
                # A smaller batch may still fit into the previous segment: an empty segment must not be left
                # behind it.
                with suppress(DiskError):
                    disk.remove(stem + LOG + suffix)
            raise
        self.size = 0
        #: The offset after the last record.
        self.next_offset = base_offset
        self.max_timestamp = _NO_TIMESTAMP
        #: Last offset of the first batch with the largest timestamp.
        self.max_timestamp_offset = base_offset
        #: Timestamp of the first batch: the start for the roll by age (B4). -1: unknown.
        self.first_timestamp = _NO_TIMESTAMP
        self.created_ms = created_ms
        #: Bytes since the batch of the last index entry.
        self.since_index_bytes = 0
        #: Records below this offset are durable.
        self.synced_offset = base_offset
        #: Whether the directory was synced after the files were created.
        self.names_synced = not create
        #: Last offsets and positions of the most recent batches.
        self.tail_ends = array("q")
        self.tail_positions = array("q")

    # --- append ---------------------------------------------------------------------------------------------

    def append(
        self,
        parts: tuple[Buffer, ...],
        size: int,
        last_offset: int,
        max_timestamp: int,
        index_interval_bytes: int,
    ) -> None:
        position = self.size
        self.disk.write(self.file, position, parts)
        # After the write: a failed write leaves the segment unchanged.
        self.note(last_offset, max_timestamp, position, size, index_interval_bytes)

    def note(
        self, last_offset: int, max_timestamp: int, position: int, size: int, index_interval_bytes: int
    ) -> None:
        """Register a batch that is in the file: log end, tail, timestamps and, once per interval, index
        entries.
        """
        self.size = position + size
        self.next_offset = last_offset + 1
        ends = self.tail_ends
        ends.append(last_offset)
        self.tail_positions.append(position)
        if len(ends) > _TAIL_BATCHES:
            del ends[: _TAIL_BATCHES // 2]
            del self.tail_positions[: _TAIL_BATCHES // 2]
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if position == 0:
            self.first_timestamp = max_timestamp
        if self.since_index_bytes > index_interval_bytes:
            self.index.append(last_offset - self.base_offset, position)
            self.note_time()
            self.since_index_bytes = size
        else:
            self.since_index_bytes += size

    def note_time(self) -> None:
        """Add the largest timestamp to the time index, if it is above that of the last entry."""
        last = self.times.last_key
        if self.max_timestamp >= 0 and (last is None or self.max_timestamp > last):
            self.times.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def flush_indexes(self) -> None:
        """Write the indexes to their files, so that the largest timestamp can be found from them."""
        self.note_time()
        self.index.flush()
        self.times.flush()
        self.aborted.flush()

    def finish(self) -> None:
        """The segment has rolled: nothing more is appended."""
        self.flush_indexes()
        self.tail_ends = array("q")
        self.tail_positions = array("q")

    # --- read -----------------------------------------------------------------------------------------------

    def locate(self, offset: int, *, checked: bool = False) -> int:
        """The position of the first batch that ends at or after this offset; the segment size if there is
        none.

        With `checked`, raises DamagedFile if the batches before it are not contiguous. A reader would
        otherwise skip records without notice, or wait for the rest of half a batch without end.
        """
        if offset >= self.next_offset:
            return self.size
        positions = self.tail_positions
        if positions:
            at = bisect_left(self.tail_ends, offset)
            # The first batch of the tail may be too late: the offset can be before it.
            if at > 0 or positions[0] == 0:
                return positions[at]
        end = self._indexed(offset)
        before = self.base_offset - 1
        for head in self.heads(end):
            if checked and not self._follows(head, before):
                break
            if head.last_offset >= offset:
                return head.position
            before, end = head.last_offset, head.position + head.size
        if checked and end != self.size:
            raise DamagedFile(
                f"{self.file.path} is damaged after offset {before}, at byte {end}: fetches from there are refused "
                "with CORRUPT_MESSAGE. Restore it from a copy, or move consumers past it"
            )
        return self.size

    def _indexed(self, offset: int) -> int:
        """The position to start from: that of the last valid index entry at or before the offset, or 0.

        Opening a log checks only both ends of an index. A damaged entry in the middle must not lead past
        records.
        """
        bound = offset - self.base_offset
        while (entry := self.index.floor(bound)) is not None and entry[0] <= bound:
            key, position = entry
            if self._fits(key, position, offset):
                return position
            bound = key - 1
        return 0

    def _fits(self, key: int, position: int, offset: int) -> bool:
        """Whether an index entry points at a batch, and no earlier batch can contain the offset."""
        if not 0 <= position <= self.size - HEADER_BYTES:
            return False
        header = self.disk.read(self.file, position, HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return False
        base, length = OFFSET_AND_LENGTH.unpack_from(header)
        delta = DELTA_AND_TIMES.unpack_from(header, _DELTA_AT)[0]
        # Kafka's entry for several batches has the last offset of all of them.
        fits: bool = (
            length >= HEADER_BYTES - LENGTH_OVERHEAD
            and self.base_offset <= base <= offset
            and base + delta <= self.base_offset + key
        )
        return fits

    def _follows(self, head: Head, before: int) -> bool:
        """Whether this can be the next batch after one with this last offset."""
        return (
            before < head.base_offset <= head.last_offset < self.next_offset
            and head.position + head.size <= self.size
        )

    def heads(self, position: int = 0) -> Iterator[Head]:
        """Each complete batch from a position on, which must be the start of a batch."""
        while position < self.size:
            data = self.disk.read(self.file, position, min(_WALK_BYTES, self.size - position))
            at, end = 0, len(data) - HEADER_BYTES
            while at <= end:
                base, length = OFFSET_AND_LENGTH.unpack_from(data, at)
                size = length + LENGTH_OVERHEAD
                if size < HEADER_BYTES:
                    return
                delta, _base_timestamp, max_timestamp = DELTA_AND_TIMES.unpack_from(data, at + _DELTA_AT)
                yield Head(base, base + delta, position + at, size, max_timestamp)
                at += size
            if at == 0:
                return
            position += at

    def head_at(self, position: int) -> Head | None:
        return next(self.heads(position), None)

    def position_for_time(self, timestamp: int, start_offset: int) -> int:
        """The position to start a search from: for the first batch at or after an offset with a record at or
        after this timestamp.

        It is at most an index interval before that batch, unless only `start_offset` hides earlier matches.
        """
        _rank, floor, above = self.times.place(timestamp)
        if floor is not None and floor[0] == timestamp:
            position = self.locate(self.base_offset + floor[1])
        else:
            # Between two entries of the time index, the timestamp grew after the last offset entry before the
            # second one. Without a second entry, it grew after the last offset entry.
            position = self._indexed(
                self.base_offset + (above[1] - 1 if above is not None else RELATIVE_OFFSET_MAX)
            )
        return max(position, self.locate(start_offset)) if start_offset > self.base_offset else position

    def batch_at(self, position: int) -> bytes:
        """The complete batch at a position."""
        head = self.disk.read(self.file, position, LENGTH_OVERHEAD)
        size = OFFSET_AND_LENGTH.unpack_from(head)[1] + LENGTH_OVERHEAD
        return self.disk.read(self.file, position, size)

    # --- shorten --------------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Cut off the batch that contains this offset, and everything after it."""
        if offset >= self.next_offset:
            return
        position = self.locate(offset)
        first = self.head_at(position)
        # Batches are removed whole, so the log can end before the offset.
        end = min(offset, first.base_offset) if first is not None else offset
        self.disk.truncate(self.file, position)
        self.size = position
        self.next_offset = max(end, self.base_offset)
        self.synced_offset = min(self.synced_offset, self.next_offset)
        keep = bisect_left(self.tail_positions, position)
        del self.tail_ends[keep:]
        del self.tail_positions[keep:]
        self.index.truncate_keys(self.next_offset - self.base_offset)
        self.times.truncate_values(self.next_offset - self.base_offset)
        self.aborted.truncate(self.next_offset)
        self.reload()

    def reload(self) -> None:
        """Restore the in-memory state from the files, except for the tail."""
        entry = self.index.last()
        start = entry[1] if entry is not None else 0
        self.since_index_bytes = self.size - start
        newest = self.times.last()
        self.max_timestamp, self.max_timestamp_offset = (
            (newest[0], newest[1] + self.base_offset) if newest else (_NO_TIMESTAMP, self.base_offset)
        )
        # Batches before the last offset entry are in the time index, or an older entry has a larger
        # timestamp.
        for head in self.heads(start):
            if head.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.max_timestamp_offset = head.max_timestamp, head.last_offset
        first = self.head_at(0)
        self.first_timestamp = first.max_timestamp if first is not None else _NO_TIMESTAMP

    def offset_bound(self, position: int) -> int:
        """An offset that no batch before this position reaches; at most about an index interval too high."""
        at = bisect_left(self.tail_positions, position)
        if at > 0:
            return self.tail_ends[at - 1] + 1
        entry = self.index.first_from(position)
        return self.base_offset + entry[0] if entry is not None else self.next_offset

    @property
    def files(self) -> tuple[File, ...]:
        files = (self.file, self.index.file, self.times.file)
        return files if self.aborted.file is None else (*files, self.aborted.file)

    def set_aside(self) -> list[str]:
        """Rename the files to .deleted, so that another segment can use their names; returns the new paths.

        Reads and syncs in progress continue with the renamed files.
        """
        for file in self.files:
            if not file.path.endswith(DELETED):
                self.disk.move(file, file.path + DELETED)
        return [file.path for file in self.files]

    @property
    def is_set_aside(self) -> bool:
        return self.file.path.endswith(DELETED)

    def close(self) -> None:
        for file in self.files:
            self.disk.close(file)
