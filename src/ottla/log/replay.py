"""Reading batches of a log again, to rebuild what is remembered beside it: producers, transactions, leader
epochs.

Called when a log is opened (`log/recovery.py`) and when it is cut (`PartitionLog.truncate`). Only headers are
looked at, and the markers of transactions.
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

#: A batch header as `HEADER` unpacks it, and the fields of it that are used here.
Header: TypeAlias = tuple[int, ...]
BASE: Final = 0
EPOCH: Final = 2
ATTRIBUTES: Final = 5
DELTA: Final = 6
MAX_TIMESTAMP: Final = 8
PRODUCER: Final = 9
#: All up to the last offset delta, which is what a scan checks.
_CHECKED_FIELDS: Final = 7


def scan(segment: Segment, position: int, size: int, *, check_from: int) -> Iterator[tuple[int, int, Header]]:
    """(position, size, header) of each whole batch up to `size`; stops at the first that is torn or out of
    order.

    The CRC is checked of batches that reach beyond the offset `check_from`. Plain tuples, because this is
    what the time to start after a crash is made of.
    """
    read, file, unpack = segment.disk.read, segment.file, HEADER.unpack_from
    previous = segment.base_offset - 1
    # B4: no record of this segment can be further from its base, whatever a damaged header says.
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
    """The offsets of the producer snapshots among these names, newest first."""
    return sorted((offset for name in names if (offset := snapshot_offset(name)) is not None), reverse=True)


def load_producers(log: PartitionLog, now_ms: int, *, aborted_from: int = OFFSET_MAX) -> int:
    """Rebuild the producers from the newest snapshot that is whole, and the batches after it; returns bytes
    read.

    Those of the batches count as heard of now: their own timestamps may be years old. Transactions that were
    aborted at `aborted_from` or later are not in their segments' indexes, and are put there.
    """
    # Not the log's start: batches before it that are still there have something to say.
    start = log.bases[0]
    log.producers = Producers()
    for offset in snapshot_offsets(log.disk.list(log.directory)):
        path = log.snapshot_path(offset)
        if offset > log.next_offset:
            # Of a history that is no more; it must not be found once the log has grown past it again.
            log.disk.remove(path)
            continue
        if offset < start:
            # What lies between is gone, or was never here: nobody would ever hear that what was open then has
            # ended.
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
    """The leader epochs as the batches tell them. They grow with the offset, so their starts are searched
    for.
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
    """Of the first batch that holds this offset or a later one."""
    data = segment.disk.read(segment.file, segment.locate(offset), HEADER_BYTES)
    return HEADER.unpack_from(data) if len(data) == HEADER_BYTES else None
