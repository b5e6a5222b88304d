"""Rebuilding state from the batches of a log: producers, transactions, leader epochs.

Called when a log is opened (`log/recovery.py`) and when it is truncated (`log/truncation.py`). Only batch
headers and transaction markers are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from crc32c import crc32c

from ottla.log.epochs import LeaderEpochs
from ottla.log.markers import replay_marker
from ottla.log.names import snapshot_offset
from ottla.log.producers import Producers
from ottla.log.segment import Segment
from ottla.model.limits import OFFSET_MAX, RELATIVE_OFFSET_MAX
from ottla.records.batch import (
    CONTROL_BIT,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
)

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog

_SCAN_BYTES: Final = 1 << 20

#: A batch header as `HEADER` unpacks it, and the indexes of its fields that are used here.
Header: TypeAlias = tuple[int, ...]
BASE: Final = 0
EPOCH: Final = 2
ATTRIBUTES: Final = 5
DELTA: Final = 6
MAX_TIMESTAMP: Final = 8
PRODUCER: Final = 9
#: A scan checks the fields up to the last offset delta.
_CHECKED_FIELDS: Final = 7


def scan(segment: Segment, position: int, size: int, *, check_from: int) -> Iterator[tuple[int, int, Header]]:
    """(position, size, header) of each complete batch up to `size`. Stops at the first that is torn or out of
    order.

    The CRC is checked for batches that reach beyond offset `check_from`. The results are plain tuples,
    because a start after a crash spends its time here.
    """
    read, file, unpack = segment.disk.read, segment.file, HEADER.unpack_from
    previous = segment.base_offset - 1
    # B4: no offset of this segment can be further from its base, whatever a damaged header has.
    offset_max = segment.base_offset + RELATIVE_OFFSET_MAX
    chunk = _SCAN_BYTES
    while position < size:
        data = read(file, position, min(chunk, size - position))
        view = memoryview(data)
        at, limit = 0, len(data)
        while limit - at >= HEADER_BYTES:
            header = unpack(data, at)
            base, length, _epoch, magic, crc, _attributes, delta = header[:_CHECKED_FIELDS]
            whole = length + LENGTH_OVERHEAD
            last = base + delta
            if magic != MAGIC or whole < HEADER_BYTES or not previous < base <= last <= offset_max:
                return
            end = at + whole
            if end > limit:
                break
            previous = last
            if last >= check_from and crc32c(view[at + CRC_START : end]) != crc:
                return
            yield position + at, whole, header
            at = end
        position += at
        if at:
            chunk = _SCAN_BYTES
        elif limit >= HEADER_BYTES and limit < whole <= size - position:
            # A batch larger than one read.
            chunk = whole
        else:
            return


def snapshot_offsets(names: list[str]) -> list[int]:
    """Offsets of the producer snapshots among these file names, newest first."""
    return sorted((offset for name in names if (offset := snapshot_offset(name)) is not None), reverse=True)


def load_producers(log: PartitionLog, now_ms: int, *, aborted_from: int = OFFSET_MAX) -> int:
    """Rebuild producer state from the newest valid snapshot and the batches after it; returns the bytes read.

    Producers of those batches expire as if they had sent them at `now_ms`, because timestamps can be years
    old. Transactions that were aborted at `aborted_from` or later are missing in the indexes of their
    segments, and are added.
    """
    # Not the log start offset: batches before it that still exist are read too.
    start = log.bases[0]
    log.producers = Producers()
    for offset in snapshot_offsets(log.disk.list(log.directory)):
        path = log.snapshot_path(offset)
        if offset > log.next_offset:
            # The snapshot is from records that were cut off. It must not be found again once the log has
            # grown past it.
            log.disk.remove(path)
            continue
        if offset < start:
            # The batches between are gone, so markers of transactions in the snapshot would be missed.
            break
        if offset > aborted_from:
            continue
        producers = Producers.parse(log.disk.read_file(path))
        if producers is not None:
            log.producers, start = producers, offset
            break
    read = 0
    for segment in log.segments[log.segment_for(start) :]:
        position = segment.locate(start)
        for at, size, header in scan(segment, position, segment.size, check_from=log.next_offset):
            read += size
            if header[BASE] < start or header[PRODUCER] < 0:
                continue
            if not header[ATTRIBUTES] & CONTROL_BIT:
                replay_producer(log.producers, header, now_ms)
                continue
            producer_id, epoch = header[PRODUCER], header[PRODUCER + 1]
            batch = segment.batch_at(at)
            aborted = replay_marker(log.producers, batch, producer_id, epoch, header[BASE], now_ms)
            if aborted is not None and aborted.last_offset >= aborted_from:
                log.note_aborted(segment, aborted)
    return read


def replay_producer(producers: Producers, header: Header, timestamp: int) -> None:
    if header[PRODUCER] >= 0 and not header[ATTRIBUTES] & CONTROL_BIT:
        base, delta = header[BASE], header[DELTA]
        producer_id, epoch, sequence, _count = header[PRODUCER:]
        transactional = header[ATTRIBUTES] & TRANSACTIONAL_BIT
        producers.appended(
            producer_id, epoch, sequence, delta + 1, base, base + delta, timestamp, transactional
        )


def find_epochs(log: PartitionLog) -> LeaderEpochs:
    """The leader epochs in the batches. They increase with the offset, so their starts are found by binary
    search.
    """
    epochs = LeaderEpochs()
    for segment in log.segments:
        first = segment.locate(max(segment.base_offset, log.log_start_offset))
        if first < segment.size:
            _find_epochs(
                segment, epochs, max(segment.base_offset, log.log_start_offset), segment.next_offset - 1
            )
    return epochs


def _find_epochs(segment: Segment, epochs: LeaderEpochs, low: int, high: int) -> None:
    first, last = _header(segment, low), _header(segment, high)
    if first is None:
        return
    epochs.assign(first[EPOCH], max(first[BASE], low))
    if last is None or last[EPOCH] <= epochs.latest or last[BASE] <= first[BASE]:
        return
    middle = (low + high) // 2
    if middle > low:
        _find_epochs(segment, epochs, low, middle)
        _find_epochs(segment, epochs, middle, high)
    else:
        epochs.assign(last[EPOCH], last[BASE])


def _header(segment: Segment, offset: int) -> Header | None:
    """The header of the first batch that ends at or after this offset."""
    data = segment.disk.read(segment.file, segment.locate(offset), HEADER_BYTES)
    return HEADER.unpack_from(data) if len(data) == HEADER_BYTES else None
