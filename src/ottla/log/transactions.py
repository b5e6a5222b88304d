"""What a log knows of transactions: which are open, which ended just now, and which were aborted.

Open and just ended ones are in memory (`Transactions`, a part of `Producers`, so snapshots and replay rebuild
them); they say where the last stable offset is. Aborted ones are in a file beside each segment that holds
such a transaction's marker (`TransactionIndex`), for consumers that read committed records only. The format
is Kafka's:

    .txnindex    entries of 34 bytes:  version i16 = 0 | producer id i64 | first offset i64 | last offset i64, which is
                 the marker's | last stable offset i64, as it was once the transaction had ended

Entries stand in the order of their markers, so their last offsets grow. The file is made with its first
entry: most segments never have one. Like the other indexes it is durable with the flush that moves the
recovery point; what is past that is read from the log again by recovery.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import OrderedDict, deque
from typing import Final, NamedTuple

from ottla.ports.disk import Disk, DiskError, File

ENTRY: Final = struct.Struct(">hqqqq")
_VERSION: Final = 0
#: What is read of an index at once, and kept: whole entries.
_BLOCK_BYTES: Final = 32 * ENTRY.size


class Ended(NamedTuple):
    """A transaction that has its marker."""

    producer_id: int
    first_offset: int
    #: The marker's.
    last_offset: int
    #: Where the first transaction begins that was open when this one ended; without one, the offset after the
    #: marker.
    last_stable_offset: int


class Transactions:
    """The transactions of one log that hold its last stable offset back."""

    __slots__ = ("_ended", "open")

    def __init__(self) -> None:
        #: First offset → producer id, by offset: they begin at the end of the log.
        self.open: OrderedDict[int, int] = OrderedDict()
        #: (marker's offset, first offset) of those whose marker may not be below the high watermark yet. Both
        #: grow: one that began later and ended earlier than another decides nothing.
        self._ended: deque[tuple[int, int]] = deque()

    def begin(self, first_offset: int, producer_id: int) -> None:
        self.open[first_offset] = producer_id

    def end(self, first_offset: int, marker_offset: int) -> int:
        """The transaction that began there has its marker; returns the last stable offset that this leaves."""
        self.open.pop(first_offset, None)
        ended = self._ended
        while ended and ended[-1][1] >= first_offset:
            ended.pop()
        ended.append((marker_offset, first_offset))
        return next(iter(self.open), marker_offset + 1)

    def first_unstable(self, high_watermark: int) -> int | None:
        """The first offset of which is not known, to whoever reads up to the high watermark, if it was
        committed.
        """
        ended = self._ended
        while ended and ended[0][0] < high_watermark:
            ended.popleft()
        first = next(iter(self.open), None)
        if ended and (first is None or ended[0][1] < first):
            return ended[0][1]
        return first


class TransactionIndex:
    """The aborted transactions whose markers stand in one segment."""

    __slots__ = ("_block", "_block_at", "_disk", "_markers", "_path", "_pending", "_written", "file")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        #: None while there is no file: it comes with the first entry.
        self.file: File | None = None
        self._written = 0
        #: Entries that there was no room for; the next flush of the log tries again.
        self._pending = bytearray()
        #: What was read of the file last, and from where: who reads a log comes for the neighbours next.
        self._block: list[Ended] = []
        self._markers: list[int] = []
        self._block_at = -1

    @property
    def count(self) -> int:
        return (self._written + len(self._pending)) // ENTRY.size

    def load(self, base_offset: int) -> bool:
        """Take the file that is there. False if it cannot be the index of this segment: then it counts as
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
            # The marker stands in the log already and must not be refused (R13); the entry waits in memory.
            return

    def flush(self) -> None:
        """Hand pending entries to the file (not yet durable)."""
        if self._pending:
            if self.file is None:
                self.file = self._disk.open(self._path, create=True)
            self._written = self._disk.write(self.file, self._written, (bytes(self._pending),))
            self._pending.clear()
            self._forget()

    def truncate(self, offset: int) -> None:
        """Drop the transactions whose markers stand at `offset` or after it."""
        if self.count:
            self.flush()
            self._cut(self._place(offset) // ENTRY.size)

    def collect(self, offset: int, end_offset: int, found: list[Ended]) -> bool:
        """Add those that reach into these offsets; True if no later segment's index can have any more of
        them.
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
        """Where in the file the first entry stands whose marker is at this offset or after it; else the
        file's end.
        """
        low, high = 0, -(-self._written // _BLOCK_BYTES)
        while high - low > 1:
            # The block in which the first such entry is, or ends just before it: by the last entries of
            # blocks.
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
        """The entries of the block that begins there."""
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
