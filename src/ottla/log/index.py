"""The sparse indexes of a segment.

    .index       entries of 8 bytes, sorted:   relative offset i32 | position i32
    .timeindex   entries of 12 bytes, sorted:  timestamp i64 | relative offset i32

Both are a sorted file of (key, value): a look-up is a binary search by `pread`, never a scan. New entries gather in
memory and go to the file in blocks; those that a crash loses are written again by recovery, which reads the log past
the recovery point anyway (entries below it were flushed and synced before it moved).
"""

from __future__ import annotations

import struct

from ottla.ports.disk import Disk, File

#: Entries kept in memory before they go to the file.
_PENDING_BYTES_MAX = 4096
#: Once the search is down to this many bytes they are read at once.
_BLOCK_BYTES = 4096


class SparseIndex:
    """A sorted file of (key, value) pairs. `floor` finds the last entry whose key is not above the one asked for."""

    __slots__ = ("_disk", "_entry", "_file", "_pending", "bytes_max", "last_key", "path", "written")

    def __init__(self, disk: Disk, path: str, entry: struct.Struct, bytes_max: int, *, create: bool) -> None:
        self._disk = disk
        self._entry = entry
        self.path = path
        self.bytes_max = bytes_max
        self._file: File = disk.open(path, create=create)
        self._pending = bytearray()
        #: Bytes in the file: whole entries only.
        self.written = 0
        self.last_key: int | None = None

    @property
    def file(self) -> File:
        return self._file

    @property
    def count(self) -> int:
        return (self.written + len(self._pending)) // self._entry.size

    @property
    def full(self) -> bool:
        return self.written + len(self._pending) + self._entry.size > self.bytes_max

    def load(self) -> bool:
        """Take the file as it is; False if it cannot be a sorted list of whole entries and must be rebuilt."""
        size = self._disk.size(self._file)
        self._pending.clear()
        self.written = size - size % self._entry.size
        self.last_key = None
        if self.written:
            first, last = self._at(0)[0], self._at(self.written - self._entry.size)[0]
            if first > last or last < 0:
                return False
            self.last_key = last
        return self.written == size

    def append(self, key: int, value: int) -> None:
        self._pending += self._entry.pack(key, value)
        self.last_key = key
        if len(self._pending) >= _PENDING_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Hand pending entries to the file (not yet durable)."""
        if self._pending:
            self.written = self._disk.write(self._file, self.written, (bytes(self._pending),))
            self._pending.clear()

    def floor(self, key: int) -> tuple[int, int] | None:
        """The last entry with a key not above `key`, or None if all are above."""
        pending = self._pending
        if pending and self._entry.unpack_from(pending)[0] <= key:
            return self._search(pending, key)
        width = self._entry.size
        low, high = 0, self.written
        while high - low > _BLOCK_BYTES:
            middle = low + (high - low) // width // 2 * width
            if self._at(middle)[0] <= key:
                low = middle
            else:
                high = middle
        return self._search(self._disk.read(self._file, low, high - low), key)

    def last(self) -> tuple[int, int] | None:
        if self._pending:
            return self._unpack(self._pending, len(self._pending) - self._entry.size)
        return self._at(self.written - self._entry.size) if self.written else None

    def truncate(self, key: int) -> None:
        """Drop all entries whose key is `key` or above."""
        self.flush()
        width = self._entry.size
        low, high = 0, self.written // width
        while low < high:
            middle = (low + high) // 2
            if self._at(middle * width)[0] < key:
                low = middle + 1
            else:
                high = middle
        self.truncate_entries(low)

    def truncate_entries(self, count: int) -> None:
        self.flush()
        self.written = count * self._entry.size
        self._disk.truncate(self._file, self.written)
        self.last_key = self._at(self.written - self._entry.size)[0] if count else None

    def close(self) -> None:
        self._disk.close(self._file)

    def _at(self, position: int) -> tuple[int, int]:
        return self._unpack(self._disk.read(self._file, position, self._entry.size), 0)

    def _unpack(self, data: bytes | bytearray, position: int) -> tuple[int, int]:
        key, value = self._entry.unpack_from(data, position)
        return key, value

    def _search(self, data: bytes | bytearray, key: int) -> tuple[int, int] | None:
        width = self._entry.size
        low, high = 0, len(data) // width
        while low < high:
            middle = (low + high) // 2
            if self._entry.unpack_from(data, middle * width)[0] <= key:
                low = middle + 1
            else:
                high = middle
        return self._unpack(data, (low - 1) * width) if low else None


OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")


def offset_index(disk: Disk, path: str, bytes_max: int, *, create: bool) -> SparseIndex:
    return SparseIndex(disk, path, OFFSET_ENTRY, bytes_max, create=create)


def time_index(disk: Disk, path: str, bytes_max: int, *, create: bool) -> SparseIndex:
    return SparseIndex(disk, path, TIME_ENTRY, bytes_max, create=create)
