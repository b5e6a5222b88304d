"""The sparse indexes of a segment (B2).

    .index       entries of 8 bytes:   last offset of a batch, relative to the base, i32 | position of that batch i32
    .timeindex   entries of 12 bytes:  largest timestamp so far i64 | relative offset of the batch that had it first i32

Keys and values both increase along the file, so a lookup is a binary search with `pread`. New entries are
collected in memory and written in blocks. Recovery restores entries that a crash lost: it reads the log after
the recovery point anyway, and entries before it are durable.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from ottla.ports.disk import Disk, DiskError, File

#: Entries kept in memory before they are written.
_PENDING_BYTES_MAX: Final = 4096
#: Below this size the rest of the search range is read at once, and cached.
_BLOCK_BYTES: Final = 2048
_SALVAGE_BYTES: Final = 1 << 16

OFFSET_ENTRY: Final = struct.Struct(">ii")
TIME_ENTRY: Final = struct.Struct(">qi")

Entry: TypeAlias = tuple[int, int]

_KEY: Final = 0
_VALUE: Final = 1


#: Keys and values of some entries.
Columns: TypeAlias = tuple[Sequence[int], Sequence[int]]
_NOTHING: Final[Columns] = ((), ())


class Place(NamedTuple):
    """The result of a search: how many entries are not above the bound, the last of those, and the first
    above it.
    """

    rank: int
    floor: Entry | None
    above: Entry | None


class SparseIndex:
    """A sorted file of (key, value) pairs."""

    __slots__ = (
        "_before", "_block", "_block_rank", "_disk", "_entry", "_pending", "bytes_max", "file", "last_key", "written",
    )  # fmt: skip

    def __init__(self, disk: Disk, path: str, entry: struct.Struct, bytes_max: int, *, create: bool) -> None:
        self._disk = disk
        self._entry = entry
        self._pending = bytearray()
        #: The file content at the call of `begin_rebuild`, until the first flush after it.
        self._before = b""
        #: The cached block of the last search: keys, values, and the number of entries before it. The next
        #: lookup is often close by. Entries inside the block do not change; later ones can be added.
        self._block: Columns = _NOTHING
        self._block_rank = 0
        #: The segment rolls at this size; always a whole number of entries.
        self.bytes_max = bytes_max // entry.size * entry.size
        self.file: File = disk.open(path, create=create)
        #: Size of the file, whole entries only.
        self.written = 0
        self.last_key: int | None = None

    @property
    def count(self) -> int:
        return (self.written + len(self._pending)) // self._entry.size

    @property
    def full(self) -> bool:
        return self.written + len(self._pending) + self._entry.size > self.bytes_max

    def load(self) -> bool:
        """Use the existing file; False if it is not a sorted list of whole entries and must be rebuilt."""
        size = self._disk.size(self.file)
        width = self._entry.size
        self._pending.clear()
        self._block = _NOTHING
        self.written = size - size % width
        self.last_key = None
        if self.written:
            first, last = self._at(0), self._at(self.written - width)
            # Kafka fills the index of an active segment with zeros: such a file ends below its first key.
            if min(*first, *last) < 0 or (
                self.written > width and (first[0] >= last[0] or first[1] >= last[1])
            ):
                return False
            self.last_key = last[0]
        return self.written == size

    def salvage(self) -> None:
        """Keep the entries that a power failure left intact: those before the first that is out of order."""
        width = self._entry.size
        block = _SALVAGE_BYTES // width * width
        count, last = 0, (-1, -1)
        # In chunks: Kafka's index of an active segment has ten megabytes, almost all zeros.
        whole = True
        while whole:
            data = self._disk.read(self.file, count * width, block)
            whole = len(data) == block
            for key, value in self._entry.iter_unpack(data[: len(data) // width * width]):
                if key <= last[0] or value <= last[1]:
                    whole = False
                    break
                last = key, value
                count += 1
        self._pending.clear()
        self._block = _NOTHING
        self.written = count * self._entry.size
        if self.written != self._disk.size(self.file):
            self._disk.truncate(self.file, self.written)
        self.last_key = last[0] if count else None

    def append(self, key: int, value: int) -> None:
        self._pending += self._entry.pack(key, value)
        self.last_key = key
        if len(self._pending) >= _PENDING_BYTES_MAX:
            try:
                self.flush()
            except DiskError:
                # The batch is in the log already and must not be refused (R13). The entry stays in memory;
                # the next flush of the log writes it, or reports the error.
                return

    def flush(self) -> None:
        """Write pending entries to the file, without a sync."""
        if self._before:
            before, self._before = self._before, b""
            if before == self._pending:
                self.written = len(before)
                self._pending.clear()
            elif len(before) > len(self._pending):
                # Truncating to zero is avoided: some file systems take milliseconds for it.
                self._disk.truncate(self.file, len(self._pending))
        if self._pending:
            self.written = self._disk.write(self.file, self.written, (bytes(self._pending),))
            self._pending.clear()

    def floor(self, key: int) -> Entry | None:
        """The last entry with a key <= `key`, or None."""
        return self._place(key, _KEY).floor

    def place(self, key: int) -> Place:
        return self._place(key, _KEY)

    def first_from(self, value: int) -> Entry | None:
        """The first entry with a value >= `value`, or None."""
        return self._place(value - 1, _VALUE).above

    def last(self) -> Entry | None:
        if self._pending:
            return self._unpack(self._pending, len(self._pending) - self._entry.size)
        return self._at(self.written - self._entry.size) if self.written else None

    def truncate_keys(self, key: int) -> None:
        """Drop all entries with a key >= `key`."""
        self.truncate(self._place(key - 1, _KEY).rank)

    def truncate_values(self, value: int) -> None:
        """Drop all entries with a value >= `value`."""
        self.truncate(self._place(value - 1, _VALUE).rank)

    def truncate(self, count: int) -> None:
        """Keep the first `count` entries."""
        self.flush()
        if self.written == count * self._entry.size:
            return
        self._block = _NOTHING
        self._disk.truncate(self.file, count * self._entry.size)
        self.written = count * self._entry.size
        self.last_key = self._at(self.written - self._entry.size)[0] if count else None

    def reset(self) -> None:
        """Drop all entries, and an incomplete entry at the end of the file."""
        self._pending.clear()
        self._before = b""
        self._block = _NOTHING
        if self._disk.size(self.file):
            self._disk.truncate(self.file, 0)
        self.written = 0
        self.last_key = None

    def begin_rebuild(self) -> None:
        """Drop all entries in order to add them again. If the same entries are added, the file is not
        rewritten.
        """
        self._pending.clear()
        self._block = _NOTHING
        self._before = self._disk.read(self.file, 0, self.written) if self.written else b""
        self.written = 0
        self.last_key = None

    def close(self) -> None:
        self._disk.close(self.file)

    def _place(self, bound: int, column: int) -> Place:
        keys, values = columns = self._block
        searched = columns[column]
        if searched and searched[0] <= bound < searched[-1]:
            rank = bisect_right(searched, bound)
            return Place(
                self._block_rank + rank, (keys[rank - 1], values[rank - 1]), (keys[rank], values[rank])
            )
        width = self._entry.size
        written = self.written // width
        pending = self._pending
        if pending and self._unpack(pending, 0)[column] <= bound:
            rank = self._rank(pending, bound, column)
            return Place(
                written + rank,
                self._unpack(pending, (rank - 1) * width),
                self._unpack(pending, rank * width) if rank * width < len(pending) else None,
            )
        low, high = 0, written
        while (high - low) * width > _BLOCK_BYTES:
            middle = (low + high) // 2
            if self._at(middle * width)[column] <= bound:
                low = middle + 1
            else:
                high = middle
        # One more entry at each end, so that both neighbours are in the block.
        start, end = max(low - 1, 0), min(high + 1, written)
        block = self._disk.read(self.file, start * width, (end - start) * width) if end > start else b""
        self._block, self._block_rank = _columns(self._entry, block), start
        rank = self._rank(block, bound, column)
        above: Entry | None = None
        if rank * width < len(block):
            above = self._unpack(block, rank * width)
        elif pending:
            above = self._unpack(pending, 0)
        return Place(start + rank, self._unpack(block, (rank - 1) * width) if rank else None, above)

    def _rank(self, data: bytes | bytearray, bound: int, column: int) -> int:
        unpack, width = self._entry.unpack_from, self._entry.size
        low, high = 0, len(data) // width
        while low < high:
            middle = (low + high) // 2
            if unpack(data, middle * width)[column] <= bound:
                low = middle + 1
            else:
                high = middle
        return low

    def _at(self, position: int) -> Entry:
        return self._unpack(self._disk.read(self.file, position, self._entry.size), 0)

    def _unpack(self, data: bytes | bytearray, position: int) -> Entry:
        key, value = self._entry.unpack_from(data, position)
        return key, value


def _columns(entry: struct.Struct, block: bytes) -> Columns:
    if entry is not OFFSET_ENTRY:
        keys, values = zip(*entry.iter_unpack(block), strict=True) if block else ((), ())
        return keys, values
    # Most fetches read this value.
    numbers = array("i", block)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers[::2], numbers[1::2]


def offset_index(disk: Disk, path: str, bytes_max: int, *, create: bool) -> SparseIndex:
    return SparseIndex(disk, path, OFFSET_ENTRY, bytes_max, create=create)


def time_index(disk: Disk, path: str, bytes_max: int, *, create: bool) -> SparseIndex:
    # One entry stays free for the last timestamp of a segment that rolls because this index is full.
    return SparseIndex(disk, path, TIME_ENTRY, max(bytes_max - TIME_ENTRY.size, 0), create=create)
