"""Opening a log that is already on disk, after a clean stop or after a crash (R12).

Everything before the recovery point was synced with its indexes and a producer snapshot, so it is taken as it stands.
What comes after it is read once: each batch's CRC is checked, the first bad or torn one ends the log, and the index
entries, leader epochs and producer states of the good ones are made anew. So the time to start depends on what was
written since the last background flush, not on the size of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from ottla.config.topic import TopicConfig
from ottla.log.epochs import LeaderEpochs
from ottla.log.names import (
    DELETED,
    EPOCHS,
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    offset_name,
    segment_base,
    snapshot_offset,
)
from ottla.log.partition_log import PartitionLog
from ottla.log.producers import Producers
from ottla.log.segment import Segment
from ottla.ports.disk import Disk
from ottla.records.batch import CONTROL_BIT, CRC_START, HEADER, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC

_SCAN_BYTES: Final = 1 << 20
#: How far before a snapshot batch headers are read again, to remember more than a producer's last batch.
_REFILL_BYTES: Final = 1 << 18


class Recovered(NamedTuple):
    log: PartitionLog
    #: Bytes that were read again, and bytes of a torn or damaged tail that were cut off.
    scanned_bytes: int
    cut_bytes: int


class Batch(NamedTuple):
    position: int
    size: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    sequence: int
    count: int
    attributes: int


def scan(segment: Segment, position: int, *, check: bool = True) -> Iterator[Batch]:
    """Each whole batch from a position on, in order; stops at the first that is torn, damaged or out of order."""
    disk, size = segment.disk, segment.size
    previous = segment.base_offset - 1
    while position < size:
        data = disk.read(segment.file, position, min(_SCAN_BYTES, size - position))
        at, limit = 0, len(data)
        view = memoryview(data)
        while limit - at >= HEADER_BYTES:
            (
                base,
                length,
                epoch,
                magic,
                crc,
                attributes,
                delta,
                _time,
                max_time,
                producer_id,
                producer_epoch,
                sequence,
                count,
            ) = HEADER.unpack_from(data, at)
            whole = length + LENGTH_OVERHEAD
            if magic != MAGIC or whole < HEADER_BYTES or base <= previous or delta < 0:
                return
            if at + whole > limit:
                break
            if check and crc32c(view[at + CRC_START : at + whole]) != crc:
                return
            previous = base + delta
            yield Batch(
                position + at,
                whole,
                base,
                previous,
                epoch,
                max_time,
                producer_id,
                producer_epoch,
                sequence,
                count,
                attributes,
            )
            at += whole
        if at == 0:
            # A batch larger than one read, or a torn end.
            if limit < HEADER_BYTES:
                return
            whole = HEADER.unpack_from(data)[1] + LENGTH_OVERHEAD
            if whole <= limit or position + whole > size:
                return
            data = disk.read(segment.file, position, whole)
            head = HEADER.unpack_from(data)
            if len(data) < whole or (check and crc32c(memoryview(data)[CRC_START:]) != head[4]):
                return
            previous = head[0] + head[6]
            yield Batch(
                position,
                whole,
                head[0],
                previous,
                head[2],
                head[8],
                head[9],
                head[10],
                head[11],
                head[12],
                head[5],
            )
            at = whole
        position += at


def open_log(
    disk: Disk,
    directory: str,
    config: TopicConfig,
    *,
    recovery_point: int,
    log_start_offset: int,
    clean: bool,
    now_ms: int,
) -> Recovered | None:
    """The log in a partition's directory, or None if there is no segment in it."""
    names = disk.list(directory)
    for name in names:
        if name.endswith((DELETED, ".tmp", ".swap", ".cleaned")):
            disk.remove(f"{directory}/{name}")
    bases = sorted(base for name in names if (base := segment_base(name)) is not None)
    for name in names:
        stem, dot, suffix = name.rpartition(".")
        if dot + suffix in (INDEX, TIME_INDEX) and f"{stem}{LOG}" not in names:
            disk.remove(f"{directory}/{name}")
    if not bases:
        return None

    segments = [
        Segment(
            disk, directory, base, index_bytes_max=config.segment_index_bytes, created_ms=now_ms, create=False
        )
        for base in bases
    ]
    scanned = cut = 0
    for at, segment in enumerate(segments):
        segment.size = disk.size(segment.file)
        following = segments[at + 1].base_offset if at + 1 < len(segments) else None
        indexed = segment.index.load() and segment.times.load()
        if following is not None and following <= recovery_point and indexed:
            # Wholly before the recovery point: nothing to read but its last timestamp.
            segment.next_offset = following
            last = segment.times.last()
            if last is not None:
                segment.max_timestamp, segment.max_timestamp_offset = last[0], segment.base_offset + last[1]
        else:
            good = _rebuild(
                segment, config, trust_before=recovery_point if indexed else segment.base_offset, clean=clean
            )
            scanned += good[0]
            cut += good[1]
            if good[1] or (following is not None and segment.next_offset > following):
                # R12: what comes after a damaged batch was never acknowledged as following it.
                for lost in segments[at + 1 :]:
                    cut += disk.size(lost.file)
                    _remove(disk, lost)
                del segments[at + 1 :]
                break
        segment.synced_offset = segment.next_offset
    log = PartitionLog(
        disk, directory, config, segments, log_start_offset=max(log_start_offset, segments[0].base_offset)
    )
    log.log_start_offset = min(log.log_start_offset, log.next_offset)
    log.recovery_point = min(max(recovery_point, segments[0].base_offset), log.next_offset)
    # A crash may have come before the names were durable, however empty the files behind them are.
    log.fresh = not clean
    log.active.names_synced = clean
    _mark_unsynced(log)
    _load_epochs(log)
    scanned += _load_producers(log, names)
    return Recovered(log, scanned, cut)


def _rebuild(segment: Segment, config: TopicConfig, *, trust_before: int, clean: bool) -> tuple[int, int]:
    """Read a segment from the recovery point on, cut its bad tail and make its index entries anew."""
    segment.next_offset = max(trust_before, segment.base_offset + 1) if segment.size else segment.base_offset
    start = 0
    if trust_before > segment.base_offset and segment.size:
        entry = segment.index.floor(trust_before - 1 - segment.base_offset)
        start = entry[1] if entry else 0
        segment.index.truncate(trust_before - segment.base_offset)
    else:
        segment.index.truncate_entries(0)
        segment.times.truncate_entries(0)
    while (last := segment.times.last()) is not None and last[1] + segment.base_offset >= trust_before:
        segment.times.truncate_entries(segment.times.count - 1)
    last = segment.times.last()
    if last is not None:
        segment.max_timestamp, segment.max_timestamp_offset = last[0], last[1] + segment.base_offset
    if start > segment.size:
        start = 0
    end = start
    next_offset = segment.base_offset
    for batch in scan(segment, start, check=not clean):
        end = batch.position + batch.size
        next_offset = batch.last_offset + 1
        if batch.last_offset < trust_before and start > 0:
            # Already in the index; only the tail and the newest timestamp want to know of it.
            segment.note(
                batch.base_offset, batch.last_offset, batch.max_timestamp, batch.position, 0, 1 << 62
            )
        else:
            segment.note(
                batch.base_offset, batch.last_offset, batch.max_timestamp, batch.position, batch.size,
                config.index_interval_bytes,
            )  # fmt: skip
    if end == start and start > 0:
        next_offset = segment.base_offset
        # The index pointed at nothing readable: believe the log alone.
        segment.index.truncate_entries(0)
        segment.times.truncate_entries(0)
        segment.max_timestamp = -1
        return _rebuild(segment, config, trust_before=segment.base_offset, clean=clean)
    torn = segment.size - end
    if torn:
        segment.disk.truncate(segment.file, end)
        segment.size = end
    segment.next_offset = next_offset
    if segment.first_timestamp < 0 and segment.size:
        for _base, _position, _delta, _size, timestamp in segment.headers(0):
            segment.first_timestamp = timestamp
            break
    return end - start, torn


def _mark_unsynced(log: PartitionLog) -> None:
    """What was read again is in the page cache only, as far as we know: it counts as flushed after the next sync."""
    for segment in log.segments:
        if segment.next_offset > log.recovery_point:
            segment.synced_offset = max(segment.base_offset, min(log.recovery_point, segment.next_offset))
            segment.names_synced = False
            log.unsynced.append(segment)
    if log.unsynced:
        log.flushed_offset = log.recovery_point


def _load_epochs(log: PartitionLog) -> None:
    epochs = LeaderEpochs.parse(log.disk.read_file(f"{log.directory}/{EPOCHS}"))
    if epochs is None:
        epochs = LeaderEpochs()
        for segment in log.segments:
            for batch in scan(segment, 0, check=False):
                epochs.assign(batch.leader_epoch, batch.base_offset)
    else:
        epochs.truncate_end(log.next_offset + 1)
        for segment in log.unsynced:
            for batch in scan(segment, segment.locate(segment.synced_offset), check=False):
                epochs.assign(batch.leader_epoch, batch.base_offset)
    log.epochs = epochs


def _load_producers(log: PartitionLog, names: list[str]) -> int:
    """The newest usable snapshot, then the batches after it; and those shortly before it, to fill the window (R14)."""
    offsets = sorted(
        (offset for name in names if (offset := snapshot_offset(name)) is not None), reverse=True
    )
    start = log.log_start_offset
    for offset in offsets:
        path = f"{log.directory}/{offset_name(offset)}{SNAPSHOT}"
        if offset > log.next_offset:
            log.disk.remove(path)
            continue
        producers = Producers.parse(log.disk.read_file(path))
        if producers is not None:
            log.producers = producers
            start = offset
            break
    scanned = 0
    if log.producers.by_id:
        scanned += _refill(log, start)
    for segment in log.segments[log.segment_for(start) :]:
        if segment.next_offset <= start:
            continue
        for batch in scan(segment, segment.locate(start), check=False):
            scanned += batch.size
            if batch.base_offset >= start and batch.producer_id >= 0 and not batch.attributes & CONTROL_BIT:
                log.producers.appended(
                    batch.producer_id, batch.producer_epoch, batch.sequence, batch.count,
                    batch.base_offset, batch.last_offset, batch.max_timestamp,
                )  # fmt: skip
    return scanned


def _refill(log: PartitionLog, before: int) -> int:
    """Give each producer of the snapshot back the batches before its last one, as far as they are near."""
    segment = log.segments[log.segment_for(max(before - 1, log.log_start_offset))]
    end = segment.locate(before)
    # The last index entry at least that far back is a batch boundary.
    start = 0
    if end > _REFILL_BYTES:
        low, high = segment.base_offset, before
        while high - low > 1:
            middle = (low + high) // 2
            if segment.locate(middle) <= end - _REFILL_BYTES:
                low = middle
            else:
                high = middle
        start = segment.locate(low)
    for batch in scan(segment, start, check=False):
        if batch.base_offset >= before:
            break
        if batch.producer_id >= 0:
            log.producers.refill(
                batch.producer_id,
                batch.producer_epoch,
                batch.sequence,
                batch.count,
                batch.base_offset,
                batch.max_timestamp,
            )
    return end - start


def _remove(disk: Disk, segment: Segment) -> None:
    segment.close()
    for suffix in (LOG, INDEX, TIME_INDEX):
        disk.remove(f"{segment.directory}/{offset_name(segment.base_offset)}{suffix}")
