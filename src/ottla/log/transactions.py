"""Transactions of a log: open, recently ended, and aborted ones.

Open and recently ended transactions are in memory (`Transactions`, part of `Producers`, so snapshots and
replay restore them). They determine the last stable offset. Aborted transactions are in a file beside the
segment that has their marker (`TransactionIndex`), for read_committed consumers. The format is Kafka's:

    .txnindex    entries of 34 bytes:  version i16 = 0 | producer id i64 | first offset i64 |
                 last offset i64, which is the marker's | last stable offset i64 after the transaction ended

Entries are in the order of their markers, so their last offsets increase. The first entry creates the file:
most segments have none. Like the other indexes it becomes durable with the flush that moves the recovery
point. Recovery reads later markers from the log.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import OrderedDict, deque
from typing import Final, NamedTuple

from ottla.ports.disk import Disk, DiskError, File

ENTRY: Final = struct.Struct(">hqqqq")
_VERSION: Final = 0
#: Bytes of an index that are read at once, and cached: whole entries.
_BLOCK_BYTES: Final = 32 * ENTRY.size


class Ended(NamedTuple):
    """A transaction with a marker."""

    producer_id: int
    first_offset: int
    #: The offset of the marker.
    last_offset: int
    #: The first offset of the oldest transaction that was open when this one ended; if there was none, the
    #: offset after the marker.
    last_stable_offset: int


class Transactions:
    """The transactions of one log that hold back its last stable offset."""

    __slots__ = ("_ended", "open")

    def __init__(self) -> None:
        #: First offset → producer id. Sorted by offset, because transactions begin at the log end.
        self.open: OrderedDict[int, int] = OrderedDict()
        #: (offset of the marker, first offset) of transactions whose marker may be above the high watermark.
        #: Both increase: a transaction that began later and ended earlier than another changes nothing.
        self._ended: deque[tuple[int, int]] = deque()

    def begin(self, first_offset: int, producer_id: int) -> None:
        self.open[first_offset] = producer_id

    def end(self, first_offset: int, marker_offset: int) -> int:
        """The transaction with this first offset has its marker; returns the resulting last stable offset."""
        self.open.pop(first_offset, None)
        ended = self._ended
        while ended and ended[-1][1] >= first_offset:
            ended.pop()
        ended.append((marker_offset, first_offset))
        return next(iter(self.open), marker_offset + 1)

    def first_unstable(self, high_watermark: int) -> int | None:
        """The first offset that belongs to a transaction which is undecided below the high watermark."""
        ended = self._ended
        while ended and ended[0][0] < high_watermark:
            ended.popleft()
        first = next(iter(self.open), None)
        if ended and (first is None or ended[0][1] < first):
            return ended[0][1]
        return first


class TransactionIndex:
    """The aborted transactions with markers in one segment."""

    __slots__ = ("_block", "_block_at", "_disk", "_markers", "_path", "_pending", "_written", "file")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        #: None while there is no file: the first entry creates it.
        self.file: File | None = None
        self._written = 0
        #: Entries that did not fit on the disk; the next flush of the log writes them.
        self._pending = bytearray()
        #: The cached block of the file, and its position. The next lookup is often close by.
        self._block: list[Ended] = []
        self._markers: list[int] = []
        self._block_at = -1

    @property
    def count(self) -> int:
        return (self._written + len(self._pending)) // ENTRY.size

    def load(self, base_offset: int) -> bool:
        """Use the existing file. False if it cannot be the index of this segment: then it is treated as
        empty.
        """
        file = self.file = self._disk.open(self._path)
        size = self._disk.size(file)
        self._written = size
        last = base_offset - 1
        sound = size % ENTRY.size == 0
        for position in range(0, size if sound else 0, _BLOCK_BYTES):
            for version, _producer_id, first, end, stable in ENTRY.iter_unpack(self._bytes(position)):
                if version != _VERSION or not last < end or not 0 <= first <= end or stable > end + 1:
                    sound = False
                    break
                last = end
        if not sound:
            self._cut(0)
        return sound

    def append(self, ended: Ended) -> None:
        self._pending += ENTRY.pack(_VERSION, *ended)
        try:
            self.flush()
        except DiskError:
            # The marker is in the log already and must not be refused (R13); the entry stays in memory.
            return

    def flush(self) -> None:
        """Write pending entries to the file, without a sync."""
        if self._pending:
            if self.file is None:
                self.file = self._disk.open(self._path, create=True)
            self._written = self._disk.write(self.file, self._written, (bytes(self._pending),))
            self._pending.clear()
            self._forget()

    def truncate(self, offset: int) -> None:
        """Drop the transactions with markers at or after `offset`."""
        if self.count:
            self.flush()
            self._cut(self._place(offset) // ENTRY.size)

    def collect(self, offset: int, end_offset: int, found: list[Ended]) -> bool:
        """Add the transactions that overlap these offsets; True if the indexes of later segments cannot have
        more.
        """
        position = self._place(offset)
        while position < self._written:
            start = position // _BLOCK_BYTES * _BLOCK_BYTES
            block = self._read(start)
            for ended in block[(position - start) // ENTRY.size :]:
                if ended[1] < end_offset:
                    found.append(ended)
                if ended[3] >= end_offset:
                    return True
            position = start + _BLOCK_BYTES
        for _version, *fields in ENTRY.iter_unpack(bytes(self._pending)) if self._pending else ():
            ended = Ended(*fields)
            if ended.first_offset < end_offset and ended.last_offset >= offset:
                found.append(ended)
            if ended.last_stable_offset >= end_offset:
                return True
        return False

    def _cut(self, count: int) -> None:
        if self.file is not None and self._written != count * ENTRY.size:
            self._written = count * ENTRY.size
            self._disk.truncate(self.file, self._written)
            self._forget()

    def _place(self, offset: int) -> int:
        """The position of the first entry with a marker at or after this offset; else the end of the file."""
        low, high = 0, -(-self._written // _BLOCK_BYTES)
        while high - low > 1:
            # Binary search by the last entries of blocks: the block with the first such entry, or the one
            # before it.
            middle = (low + high) // 2
            if self._last_offset(middle * _BLOCK_BYTES - ENTRY.size) < offset:
                low = middle
            else:
                high = middle
        start = low * _BLOCK_BYTES
        self._read(start)
        return start + bisect_left(self._markers, offset) * ENTRY.size

    def _last_offset(self, position: int) -> int:
        at = position - self._block_at
        if 0 <= at < len(self._block) * ENTRY.size:
            return self._markers[at // ENTRY.size]
        assert self.file is not None, "entries were written, so there is a file"
        return int(ENTRY.unpack(self._disk.read(self.file, position, ENTRY.size))[3])

    def _read(self, start: int) -> list[Ended]:
        """The entries of the block at this position."""
        if start != self._block_at:
            self._block = [Ended(*fields) for _version, *fields in ENTRY.iter_unpack(self._bytes(start))]
            self._markers = [ended.last_offset for ended in self._block]
            self._block_at = start
        return self._block

    def _bytes(self, start: int) -> bytes:
        size = min(_BLOCK_BYTES, self._written - start)
        if self.file is None or size <= 0:
            return b""
        data = self._disk.read(self.file, start, size)
        return data[: len(data) // ENTRY.size * ENTRY.size]

    def _forget(self) -> None:
        self._block, self._markers, self._block_at = [], [], -1
