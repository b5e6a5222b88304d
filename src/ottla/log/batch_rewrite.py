"""Compaction of one batch: unchanged, with fewer records, as a header without records, or removed.

- A record stays if no newer record has its key.
- A tombstone stays until the delete horizon of its batch (KIP-534). The first pass that meets the tombstone
  writes the horizon into the batch, in place of the base timestamp. So the tombstone lives for
  delete.retention.ms from then on.
- A transaction marker goes like a tombstone, once no record of its transaction is left.
- Records that stay keep their offset, timestamp, headers and order.

A rewritten batch keeps base offset, last offset delta, producer id, producer epoch and base sequence. Records
are copied as raw bytes, because neither base changes. An empty batch stays if its header carries the last
sequences of a producer (R14) or the last offset of a segment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from crc32c import crc32c

from ottla.log.keymap import KeyMap
from ottla.log.transactions import Ended
from ottla.model.limits import DECOMPRESSED_BYTES_MAX
from ottla.ports.disk import Buffer
from ottla.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from ottla.records.compression import NONE, compress, decompress
from ottla.records.errors import CorruptRecords
from ottla.records.spans import Span, moved, spans

_NO_TIMESTAMP: Final = -1
_ABORT: Final = 0


class RewrittenBatch:
    """A batch within the bytes that were read, with its header unpacked."""

    __slots__ = (
        "at", "attributes", "base_offset", "base_timestamp", "count", "data", "epoch", "last_offset",
        "leader_epoch", "max_timestamp", "producer_id", "sequence", "size",
    )  # fmt: skip

    def __init__(self, data: bytes, at: int, size: int, header: tuple[int, ...]) -> None:
        (
            self.base_offset, _length, self.leader_epoch, _magic, _crc, self.attributes, delta, self.base_timestamp,
            self.max_timestamp, self.producer_id, self.epoch, self.sequence, self.count,
        ) = header  # fmt: skip
        self.last_offset = self.base_offset + delta
        self.data = data
        self.at = at
        self.size = size

    @property
    def whole(self) -> memoryview:
        return memoryview(self.data)[self.at : self.at + self.size]

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def horizon_ms(self) -> int | None:
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    def payload(self) -> tuple[bytes, int, int]:
        """The uncompressed records: the bytes, and the start and end of the records in them."""
        codec = self.attributes & CODEC_MASK
        if codec == NONE or not self.count:
            return self.data, self.at + HEADER_BYTES, self.at + self.size
        data = decompress(codec, self.whole[HEADER_BYTES:], DECOMPRESSED_BYTES_MAX)
        return data, 0, len(data)

    def spans(self) -> Iterable[Span]:
        data, start, end = self.payload()
        return spans(data, start, end, self.count)

    def check(self, crc: int) -> None:
        """A damaged batch must not get a new CRC."""
        if crc32c(self.whole[CRC_START:]) != crc:
            raise CorruptRecords(f"the CRC of the batch at offset {self.base_offset} does not match")


class TransactionsRead:
    """Follows the transactions of a run of batches: which records are aborted, and which markers are
    obsolete.
    """

    def __init__(self, aborted: Iterable[Ended]) -> None:
        self._ahead = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        #: By producer id: the aborted transaction that it is in, and whether a record of it was seen.
        self._open: dict[int, tuple[Ended, bool]] = {}
        self._committed: set[int] = set()
        self._seen: list[Ended] = []

    def is_aborted(self, batch: RewrittenBatch) -> bool:
        """For a batch with records."""
        if not batch.attributes & TRANSACTIONAL_BIT:
            return False
        self._reach(batch)
        found = self._open.get(batch.producer_id)
        if found is None or found[0].last_offset < batch.base_offset:
            self._committed.add(batch.producer_id)
            return False
        self._open[batch.producer_id] = (found[0], True)
        return True

    def is_idle(self, marker: RewrittenBatch) -> bool:
        """Whether the run has no batch of the transaction that this marker ends."""
        self._reach(marker)
        if _control_type(marker) != _ABORT:
            was_met = marker.producer_id in self._committed
            self._committed.discard(marker.producer_id)
            return not was_met
        entry, was_met = self._open.pop(marker.producer_id, (None, False))
        if entry is not None and was_met:
            self._seen.append(entry)
        return not was_met

    def take_seen(self) -> list[Ended]:
        """Aborted transactions with records here whose markers were seen since the last call: the index
        entries of these batches.
        """
        seen, self._seen = self._seen, []
        return seen

    def _reach(self, batch: RewrittenBatch) -> None:
        ahead = self._ahead
        while ahead and ahead[-1].first_offset <= batch.last_offset:
            entry = ahead.pop()
            # A transaction that ended before this batch has no records left, and its marker may be gone too.
            if entry.last_offset >= batch.base_offset:
                self._open[entry.producer_id] = (entry, False)


def _control_type(batch: RewrittenBatch) -> int:
    """0 abort, 1 commit; -1 for a marker that has lost its record."""
    for _start, _end, _time, _delta, key, _has_value in batch.spans():
        return int.from_bytes(key[2:4], "big", signed=True) if key is not None and len(key) >= 4 else -1
    return -1


class Rewriter:
    """The rules of one pass, applied to the batches in the order of the log."""

    def __init__(
        self,
        newest: KeyMap,
        *,
        map_end: int,
        transactions: TransactionsRead,
        producer_ends: frozenset[int],
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._newest = newest
        #: Records from this offset on are not in the map: they stay.
        self._map_end = map_end
        self._transactions = transactions
        #: Last offsets of the batches that producer state depends on.
        self._producer_ends = producer_ends
        self._now_ms = now_ms
        self._horizon_ms = now_ms + delete_retention_ms

    def rewrite(self, batch: RewrittenBatch) -> tuple[Buffer, int] | None:
        """The batch to write and its largest timestamp; None if nothing of it stays."""
        # This comes first: the rest depends on every marker having been seen.
        is_idle = batch.is_control and self._transactions.is_idle(batch)
        is_aborted = not batch.is_control and self._transactions.is_aborted(batch)
        if batch.base_offset >= self._map_end:
            return batch.whole, batch.max_timestamp
        horizon = batch.horizon_ms
        is_due = horizon is not None and horizon <= self._now_ms
        if batch.is_control:
            if not is_idle or (horizon is not None and not is_due):
                return batch.whole, batch.max_timestamp
            if horizon is None and batch.count:
                return _rebuild(batch, list(batch.spans()), self._horizon_ms)
            kept: list[Span] = []
        elif is_aborted:
            kept = []
        else:
            kept, has_tombstone = self._retained(batch, is_due)
            if kept and has_tombstone and horizon is None:
                return _rebuild(batch, kept, self._horizon_ms)
            if kept and len(kept) == batch.count:
                return batch.whole, batch.max_timestamp
        if kept:
            return _rebuild(batch, kept, None)
        if batch.producer_id >= 0 and batch.last_offset in self._producer_ends:
            return emptied(batch), batch.max_timestamp
        return None

    def _retained(self, batch: RewrittenBatch, is_due: bool) -> tuple[list[Span], bool]:
        kept: list[Span] = []
        keep, newest = kept.append, self._newest.newest
        base, map_end = batch.base_offset, self._map_end
        has_tombstone = False
        for span in batch.spans():
            offset, key = base + span[3], span[4]
            if offset < map_end:
                # A compacted topic accepts no record without a key. Older ones, from before compaction, are
                # removed.
                if key is None or newest(key) > offset:
                    continue
                if not span[5]:
                    if is_due:
                        continue
                    has_tombstone = True
            keep(span)
        return kept, has_tombstone


def _rebuild(batch: RewrittenBatch, kept: list[Span], horizon_ms: int | None) -> tuple[bytes, int]:
    """The batch with these records only, with a new delete horizon if one is given."""
    data, _start, _end = batch.payload()
    base_timestamp, attributes = batch.base_timestamp, batch.attributes
    if horizon_ms is None:
        records = b"".join(_runs(data, kept))
    else:
        by = horizon_ms - base_timestamp
        records = b"".join([moved(data, span[0], span[1], by) for span in kept])
        base_timestamp, attributes = horizon_ms, attributes | DELETE_HORIZON_BIT
    max_timestamp = batch.max_timestamp
    if not attributes & TIMESTAMP_TYPE_BIT:
        max_timestamp = batch.base_timestamp + max(span[2] for span in kept)
    if codec := attributes & CODEC_MASK:
        records = compress(codec, records)
    return _pack(batch, attributes, base_timestamp, max_timestamp, len(kept), records), max_timestamp


def _runs(data: bytes, kept: list[Span]) -> Iterable[bytes]:
    """The bytes of these records; adjacent records are copied together."""
    start, end = kept[0][0], kept[0][1]
    for span in kept:
        if span[0] > end:
            yield data[start:end]
            start = span[0]
        end = span[1]
    yield data[start:end]


def emptied(batch: RewrittenBatch) -> Buffer:
    """The header without records."""
    if not batch.count:
        return batch.whole
    attributes = batch.attributes & (TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    # The timestamp stays: retention by age uses it.
    return _pack(batch, attributes, _NO_TIMESTAMP, batch.max_timestamp, 0, b"")


def _pack(
    batch: RewrittenBatch,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    count: int,
    records: bytes,
) -> bytes:
    length = HEADER_BYTES - LENGTH_OVERHEAD + len(records)
    before = (batch.base_offset, length, batch.leader_epoch, MAGIC)
    after = (
        attributes, batch.last_offset - batch.base_offset, base_timestamp, max_timestamp,
        batch.producer_id, batch.epoch, batch.sequence, count,
    )  # fmt: skip
    crc = crc32c(records, crc32c(HEADER.pack(*before, 0, *after)[CRC_START:]))
    return HEADER.pack(*before, crc, *after) + records
