"""Opening a log from disk, after a clean shutdown or a crash (R12).

Everything before the recovery point was synced, with its indexes and a producer snapshot, and is used as it
is. Everything after it is read once. The CRC of each batch is checked, and the log ends at the first bad or
torn batch. The same pass rebuilds index entries, leader epochs and producer state. So the time to start
depends on the bytes written since the last background flush, not on the size of the log.

An index is used if its last entry before the recovery point matches the batch it points at; otherwise it is
rebuilt from the log. After a clean shutdown the recovery point is the log end. Transactions after the
recovery point need a second pass, which logs without transactions do not need.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Final, NamedTuple

from ottla.config.topic import TopicConfig
from ottla.log.epochs import LeaderEpochs
from ottla.log.names import (
    DELETED,
    EPOCHS,
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    offset_name,
    segment_base,
)
from ottla.log.partition_log import PartitionLog
from ottla.log.producers import Producers
from ottla.log.replay import (
    ATTRIBUTES,
    BASE,
    DELTA,
    EPOCH,
    MAX_TIMESTAMP,
    PRODUCER,
    Header,
    find_epochs,
    load_producers,
    replay_producer,
    scan,
    snapshot_offsets,
)
from ottla.log.segment import Segment
from ottla.log.swap import finish_swaps
from ottla.model.limits import OFFSET_MAX, PRODUCER_BATCHES_REMEMBERED
from ottla.ports.disk import Disk
from ottla.records.batch import TRANSACTIONAL_BIT

_LEFT_OVER: Final = (DELETED, ".tmp")


class Recovered(NamedTuple):
    log: PartitionLog
    #: Bytes that were read again, and bytes that were cut off as a torn or damaged tail.
    scanned_bytes: int
    cut_bytes: int
    #: Whether durable data is missing or unreadable (R12). A crash does not cause that; a disk error does.
    damaged: bool


class _Tail:
    """What the batches after the recovery point contain."""

    __slots__ = (
        "cut_bytes", "damaged", "epochs", "heard", "scanned_bytes", "transactional", "trust_before",
    )  # fmt: skip

    def __init__(self, trust_before: int, epochs: LeaderEpochs) -> None:
        #: The recovery point.
        self.trust_before = trust_before
        self.epochs = epochs
        #: The headers of the last batches of each producer, as many as are remembered.
        self.heard: defaultdict[int, deque[Header]] = defaultdict(
            lambda: deque(maxlen=PRODUCER_BATCHES_REMEMBERED)
        )
        #: Whether there are transactions: those need all batches, in order.
        self.transactional = False
        self.scanned_bytes = 0
        self.cut_bytes = 0
        self.damaged = False


def open_log(
    disk: Disk,
    directory: str,
    config: TopicConfig,
    *,
    recovery_point: int,
    log_start_offset: int,
    clean: bool,
    now_ms: int,
    may_have_gaps: bool = False,
) -> Recovered | None:
    """Open the log in a partition directory; None if the directory has no segment.

    `may_have_gaps`: Kafka may have compacted this log, so the last batches of its segments may be missing.
    Any other gap before the recovery point is data loss.
    """
    names = finish_swaps(disk, directory, disk.list(directory))
    bases = sorted(base for name in names if (base := segment_base(name)) is not None)
    _tidy(disk, directory, names)
    while len(bases) > 1 and bases[1] <= log_start_offset:
        # Files that were being deleted at the last shutdown; some of them may be gone already.
        _remove_files(disk, directory, bases.pop(0))
    if not bases:
        # A log that starts empty must not use producer state of other records.
        for offset in snapshot_offsets(names):
            disk.remove(f"{directory}/{offset_name(offset)}{SNAPSHOT}")
        return None
    there = set(names)
    segments = [
        Segment(
            disk, directory, base, index_bytes_max=config.segment_index_bytes, created_ms=now_ms, create=False,
            indexed={offset_name(base) + INDEX, offset_name(base) + TIME_INDEX} <= there,
        )
        for base in bases
    ]  # fmt: skip
    snapshots = snapshot_offsets(names)
    trust_before = OFFSET_MAX if clean else recovery_point
    epochs_file = disk.read_file(f"{directory}/{EPOCHS}")
    epochs = LeaderEpochs.parse(epochs_file)
    tail = _Tail(trust_before, epochs or LeaderEpochs())
    for at, segment in enumerate(segments):
        following = bases[at + 1] if at + 1 < len(bases) else None
        _open_segment(segment, config, tail, following)
        if following is not None and _breaks_off(segment, following, tail, may_have_gaps):
            # R12: records after a lost batch were never acknowledged after it.
            for lost in segments[at + 1 :]:
                tail.cut_bytes += disk.size(lost.file)
                _remove(lost)
            del segments[at + 1 :]
            break
    for segment in segments[:-1]:
        segment.finish()
    segments[-1].flush_indexes()

    if log_start_offset > segments[-1].next_offset:
        # The deleted records are gone, and all later ones too. Their offsets must not be reused, so the new
        # log start is durable before the old files are removed.
        empty = Segment(
            disk, directory, log_start_offset,
            index_bytes_max=config.segment_index_bytes, created_ms=now_ms, create=True,
        )  # fmt: skip
        disk.sync_dir(directory)
        for segment in segments:
            tail.cut_bytes += segment.size
            _remove(segment)
        segments = [empty]
        names = []
        tail.heard.clear()
        tail.transactional = False
    log = PartitionLog(
        disk, directory, config, segments, log_start_offset=max(log_start_offset, segments[0].base_offset)
    )
    log.recovery_point = min(max(trust_before, segments[0].base_offset), log.next_offset)
    if not clean and segments[0].base_offset > max(log_start_offset, recovery_point):
        # R12: all flushed records are there, but earlier segments were not durable, and one of their names is
        # gone.
        log.should_begin_at = log_start_offset
    _mark_unsynced(log)
    # A crash may have come before the file names were durable, even if the files are empty.
    log.fresh = not clean
    log.active.names_synced = clean
    _adopt_epochs(log, tail.epochs if epochs is not None else None, epochs_file)
    aborted_from = _believe_aborted(log, names, trust_before)
    if clean:
        # A clean shutdown leaves a snapshot at the log end.
        known_to = log.next_offset
        producers = Producers.parse(disk.read_file(log.snapshot_path(known_to)))
    else:
        known_to = trust_before
        producers = _producers_at(disk, directory, known_to, bases[0])
    if tail.transactional or aborted_from < trust_before:
        tail.scanned_bytes += load_producers(log, now_ms, aborted_from=aborted_from)
    elif producers is not None and known_to <= log.next_offset:
        log.producers = producers
        for headers in tail.heard.values():
            for header in headers:
                replay_producer(producers, header, now_ms)
        _remove_newer_snapshots(log, snapshots)
    else:
        tail.scanned_bytes += load_producers(log, now_ms)
    damaged = tail.damaged or log.next_offset < recovery_point or (clean and tail.cut_bytes > 0)
    return Recovered(log, tail.scanned_bytes, tail.cut_bytes, damaged)


def _tidy(disk: Disk, directory: str, names: list[str]) -> None:
    """Remove unfinished files of the previous run, and indexes without a log file."""
    there = set(names)
    for name in names:
        stem, dot, suffix = name.rpartition(".")
        orphan = dot + suffix in (INDEX, TIME_INDEX, TXN_INDEX) and stem + LOG not in there
        if orphan or name.endswith(_LEFT_OVER):
            disk.remove(f"{directory}/{name}")


# --- one segment ------------------------------------------------------------------------------------------------------


def _open_segment(segment: Segment, config: TopicConfig, tail: _Tail, following: int | None) -> None:
    """Find the end of a segment: from the last valid index entry on, batch by batch."""
    size = segment.disk.size(segment.file)
    trust_before = tail.trust_before if following is None else min(tail.trust_before, following)
    start = _believe_indexes(segment, size, trust_before)
    _read_from(segment, start, size, trust_before, config, tail)
    if start and segment.size == start:
        # The batch of the last index entry is torn: only a scan of the whole file finds the batches before
        # it.
        segment.index.reset()
        segment.times.reset()
        start = 0
        _read_from(segment, start, size, trust_before, config, tail)
    tail.scanned_bytes += segment.size - start
    if segment.first_timestamp < 0 and segment.size and (first := segment.head_at(0)) is not None:
        segment.first_timestamp = first.max_timestamp

    torn = size - segment.size
    if following is not None and following <= tail.trust_before:
        # The segment is durable as a whole. If it is unreadable, truncating it would only lose more.
        segment.next_offset = following
        segment.size = size
        tail.damaged = tail.damaged or torn > 0
    elif torn:
        segment.disk.truncate(segment.file, segment.size)
        # After a power failure the cut tail could reappear, in a segment that later starts treat as complete.
        segment.disk.sync(segment.file)
        tail.cut_bytes += torn
    segment.synced_offset = segment.next_offset


def _read_from(
    segment: Segment, start: int, size: int, trust_before: int, config: TopicConfig, tail: _Tail
) -> None:
    """Read the batches of a segment from a position on, up to the first incomplete one."""
    segment.size = start
    segment.next_offset = segment.base_offset
    newest = segment.times.last() or (-1, 0)
    segment.max_timestamp, segment.max_timestamp_offset = newest[0], segment.base_offset + newest[1]
    segment.since_index_bytes = 0

    # A start after a crash spends its time in this loop.
    epochs, heard = tail.epochs, tail.heard
    interval = config.index_interval_bytes
    latest = epochs.latest
    note = segment.note
    for position, whole, header in scan(segment, start, size, check_from=trust_before):
        last_offset = header[BASE] + header[DELTA]
        note(last_offset, header[MAX_TIMESTAMP], position, whole, interval)
        if last_offset >= trust_before:
            # The checkpoint has a newer epoch at this offset. Its records were lost, or never written.
            if header[EPOCH] > latest or (
                header[EPOCH] < latest and epochs.epoch_of(header[BASE]) > header[EPOCH]
            ):
                epochs.assign(header[EPOCH], header[BASE])
                latest = epochs.latest
            if header[PRODUCER] >= 0:
                heard[header[PRODUCER]].append(header)
                if header[ATTRIBUTES] & TRANSACTIONAL_BIT:
                    tail.transactional = True


def _breaks_off(segment: Segment, following: int, tail: _Tail, may_have_gaps: bool) -> bool:
    """Whether there is a gap between this segment and the next."""
    if following <= tail.trust_before:
        return False
    return segment.next_offset > following or (segment.next_offset < following and not may_have_gaps)


def _believe_indexes(segment: Segment, size: int, trust_before: int) -> int:
    """Truncate both indexes to their valid part; returns the position of the last offset entry."""
    bound = min(trust_before - segment.base_offset, 1 << 31)
    for whole in (segment.index.load() and segment.times.load(), False):
        if not whole:
            # A power failure leaves zeros or old bytes in place of entries that were not durable. The entries
            # before them are valid.
            segment.index.salvage()
            segment.times.salvage()
        if bound > 0:
            segment.index.truncate_keys(bound)
            segment.times.truncate_values(bound)
            start = _fitting_start(segment, size)
            if start is not None:
                return start
    segment.index.reset()
    segment.times.reset()
    return 0


def _fitting_start(segment: Segment, size: int) -> int | None:
    """The position of the last offset entry, if both indexes match the log there; 0 without entries."""
    entry, newest = segment.index.last(), segment.times.last()
    if entry is None:
        # The whole segment is read anyway, including its timestamps.
        segment.times.begin_rebuild()
        return 0
    key, position = entry
    segment.size = size
    segment.next_offset = segment.base_offset + max(key, newest[1] if newest else 0) + 1
    head = segment.head_at(position) if 0 < position < size else None
    if head is None or head.last_offset != segment.base_offset + key:
        return None
    if newest is None:
        return position if head.max_timestamp < 0 else None
    timestamp, relative = newest
    if timestamp < head.max_timestamp:
        return None
    at = segment.head_at(segment.locate(segment.base_offset + relative))
    if at is None or (at.last_offset, at.max_timestamp) != (segment.base_offset + relative, timestamp):
        return None
    return position


# --- the log as a whole -----------------------------------------------------------------------------------------------


def _producers_at(disk: Disk, directory: str, recovery_point: int, first_base: int) -> Producers | None:
    """Producer state at the recovery point, if it is known without reading batches."""
    offset = max(recovery_point, first_base)
    producers = Producers.parse(disk.read_file(f"{directory}/{offset_name(offset)}{SNAPSHOT}"))
    if producers is None and recovery_point <= first_base:
        # The whole log is read: producer state is complete.
        return Producers()
    return producers


def _believe_aborted(log: PartitionLog, names: list[str], trust_before: int) -> int:
    """Load the valid part of the aborted transaction indexes; returns the offset from which markers must be
    read again.

    A missing file cannot be detected, because most segments have none. Before the recovery point it is not
    searched for.
    """
    there = set(names)
    # Nothing can be read before the first segment. The snapshot at its start has the transactions that were
    # open there.
    aborted_from = max(trust_before, log.bases[0])
    for segment in log.segments:
        if offset_name(segment.base_offset) + TXN_INDEX not in there:
            continue
        if not segment.aborted.load(segment.base_offset):
            aborted_from = min(aborted_from, segment.base_offset)
        segment.aborted.truncate(min(aborted_from, segment.next_offset))
        log.has_aborted = log.has_aborted or segment.aborted.count > 0
    return aborted_from


def _remove_newer_snapshots(log: PartitionLog, offsets: list[int]) -> None:
    """Snapshots after the log end must not be found again once the log has grown past them."""
    for offset in offsets:
        if offset > log.next_offset:
            log.disk.remove(log.snapshot_path(offset))


def _mark_unsynced(log: PartitionLog) -> None:
    """Records that were read again may only be in the page cache. They are flushed after the next sync."""
    first = log.segment_for(log.recovery_point)
    log.unflushed_bytes = sum(segment.size for segment in log.segments[first:]) - log.segments[first].locate(
        log.recovery_point
    )
    for segment in log.segments:
        if segment.next_offset > log.recovery_point:
            segment.synced_offset = max(segment.base_offset, log.recovery_point)
            segment.names_synced = False
            log.unsynced.append(segment)
    if log.unsynced:
        log.flushed_offset = log.recovery_point


def _adopt_epochs(log: PartitionLog, epochs: LeaderEpochs | None, file: bytes | None) -> None:
    if epochs is None:
        epochs = find_epochs(log)
    # An epoch without records starts at the log end.
    epochs.truncate_end(log.next_offset + 1)
    epochs.truncate_start(log.log_start_offset)
    log.epochs = epochs
    if epochs.render() != (file or LeaderEpochs().render()):
        log.save_epochs()
    elif file is not None and log.recovery_point < log.next_offset:
        # R1: the file may be no more durable than the records that were read again. The next flush must
        # include it.
        log.loose.append(log.disk.open(f"{log.directory}/{EPOCHS}"))


def _remove(segment: Segment) -> None:
    segment.close()
    _remove_files(segment.disk, segment.directory, segment.base_offset)


def _remove_files(disk: Disk, directory: str, base_offset: int) -> None:
    for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX):
        disk.remove(f"{directory}/{offset_name(base_offset)}{suffix}")
