"""Opening a log that is already on disk, after a clean stop or after a crash (R12).

Everything before the recovery point was synced with its indexes and a producer snapshot, so it is taken as it
stands. What comes after it is read once: each batch's CRC is checked, the first bad or torn one ends the log,
and the index entries, leader epochs and producer states of the good ones are made anew in the same pass. So
the time to start depends on what was written since the last background flush, not on the size of the log.

An index is believed as far as its last entry before the recovery point fits the batch it points at; else it
is made anew from the log. After a clean stop the recovery point is the end of the log. Transactions past the
recovery point are read from the log in a second pass, which logs without them do not need.
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
    #: Bytes that were read again, and bytes of a torn or damaged tail that were cut off.
    scanned_bytes: int
    cut_bytes: int
    #: Whether something that had been durable is missing or unreadable (R12): not the work of a crash, but of
    #: the disk.
    damaged: bool


class _Tail:
    """What is learnt from the batches past the recovery point while they are read."""

    __slots__ = (
        "cut_bytes", "damaged", "epochs", "heard", "scanned_bytes", "transactional", "trust_before",
    )  # fmt: skip

    def __init__(self, trust_before: int, epochs: LeaderEpochs) -> None:
        #: The recovery point.
        self.trust_before = trust_before
        self.epochs = epochs
        #: The headers of each producer's last batches: no more of them are remembered.
        self.heard: defaultdict[int, deque[Header]] = defaultdict(
            lambda: deque(maxlen=PRODUCER_BATCHES_REMEMBERED)
        )
        #: Whether there are transactions among them; those need all batches, in order.
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
    """The log in a partition's directory, or None if there is no segment in it.

    `may_have_gaps` is for a log that Kafka may have compacted: the last batches of its segments may be gone.
    Any other gap, behind what is known to be durable, is a loss.
    """
    names = finish_swaps(disk, directory, disk.list(directory))
    bases = sorted(base for name in names if (base := segment_base(name)) is not None)
    _tidy(disk, directory, names)
    while len(bases) > 1 and bases[1] <= log_start_offset:
        # On their way out when the last run ended; perhaps some of those between them are gone already.
        _remove_files(disk, directory, bases.pop(0))
    if not bases:
        # Whoever begins anew here must not find the producers of something else.
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
            # R12: what comes after a lost batch was never acknowledged as following it.
            for lost in segments[at + 1 :]:
                tail.cut_bytes += disk.size(lost.file)
                _remove(lost)
            del segments[at + 1 :]
            break
    for segment in segments[:-1]:
        segment.finish()
    segments[-1].flush_indexes()

    if log_start_offset > segments[-1].next_offset:
        # The records that were deleted are gone, and those after them too. Their offsets must not come again,
        # so the new beginning is durable before the old files go.
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
        # R12: what was flushed is all there, but segments before these were not, and one of their names is
        # gone.
        log.should_begin_at = log_start_offset
    _mark_unsynced(log)
    # A crash may have come before the names were durable, however empty the files behind them are.
    log.fresh = not clean
    log.active.names_synced = clean
    _adopt_epochs(log, tail.epochs if epochs is not None else None, epochs_file)
    aborted_from = _believe_aborted(log, names, trust_before)
    if clean:
        # A clean stop leaves a snapshot at the end.
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
    """Remove what an earlier run left half done, and indexes without their log."""
    there = set(names)
    for name in names:
        stem, dot, suffix = name.rpartition(".")
        orphan = dot + suffix in (INDEX, TIME_INDEX, TXN_INDEX) and stem + LOG not in there
        if orphan or name.endswith(_LEFT_OVER):
            disk.remove(f"{directory}/{name}")


# --- one segment ------------------------------------------------------------------------------------------------------


def _open_segment(segment: Segment, config: TopicConfig, tail: _Tail, following: int | None) -> None:
    """Find a segment's end: from its last believable index entry on, batch by batch."""
    size = segment.disk.size(segment.file)
    trust_before = tail.trust_before if following is None else min(tail.trust_before, following)
    start = _believe_indexes(segment, size, trust_before)
    _read_from(segment, start, size, trust_before, config, tail)
    if start and segment.size == start:
        # The batch that the last entry points at is torn: only the whole log tells what stands before it.
        segment.index.reset()
        segment.times.reset()
        start = 0
        _read_from(segment, start, size, trust_before, config, tail)
    tail.scanned_bytes += segment.size - start
    if segment.first_timestamp < 0 and segment.size and (first := segment.head_at(0)) is not None:
        segment.first_timestamp = first.max_timestamp

    torn = size - segment.size
    if following is not None and following <= tail.trust_before:
        # Wholly durable. If it cannot be read to its end, cutting it would only make things worse.
        segment.next_offset = following
        segment.size = size
        tail.damaged = tail.damaged or torn > 0
    elif torn:
        segment.disk.truncate(segment.file, segment.size)
        # A power cut could bring the tail back, into a segment that later starts take as whole.
        segment.disk.sync(segment.file)
        tail.cut_bytes += torn
    segment.synced_offset = segment.next_offset


def _read_from(
    segment: Segment, start: int, size: int, trust_before: int, config: TopicConfig, tail: _Tail
) -> None:
    """Learn a segment's batches from a position on, up to the first that is not whole."""
    segment.size = start
    segment.next_offset = segment.base_offset
    newest = segment.times.last() or (-1, 0)
    segment.max_timestamp, segment.max_timestamp_offset = newest[0], segment.base_offset + newest[1]
    segment.since_index_bytes = 0

    # The loop that a start after a crash spends its time in.
    epochs, heard = tail.epochs, tail.heard
    interval = config.index_interval_bytes
    latest = epochs.latest
    note = segment.note
    for position, whole, header in scan(segment, start, size, check_from=trust_before):
        last_offset = header[BASE] + header[DELTA]
        note(last_offset, header[MAX_TIMESTAMP], position, whole, interval)
        if last_offset >= trust_before:
            # An epoch that is known to begin here, though these are older records: its own were lost, or
            # never were.
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
    """Whether the next segment does not go on where this one ends."""
    if following <= tail.trust_before:
        return False
    return segment.next_offset > following or (segment.next_offset < following and not may_have_gaps)


def _believe_indexes(segment: Segment, size: int, trust_before: int) -> int:
    """Cut both indexes down to what can be believed; returns the position of the batch of the last offset
    entry.
    """
    bound = min(trust_before - segment.base_offset, 1 << 31)
    for whole in (segment.index.load() and segment.times.load(), False):
        if not whole:
            # A power cut leaves zeros or older bytes where entries were not durable: those before them still
            # stand.
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
    """Where the last offset entry points, if both indexes say what the log says there; 0 without entries."""
    entry, newest = segment.index.last(), segment.times.last()
    if entry is None:
        # The whole segment is read anyway, and so are its timestamps.
        segment.times.begin_anew()
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
    """The producers as of the recovery point, if that is known without reading batches."""
    offset = max(recovery_point, first_base)
    producers = Producers.parse(disk.read_file(f"{directory}/{offset_name(offset)}{SNAPSHOT}"))
    if producers is None and recovery_point <= first_base:
        # All of the log is read: nothing that it still holds is missed.
        return Producers()
    return producers


def _believe_aborted(log: PartitionLog, names: list[str], trust_before: int) -> int:
    """Load the indexes of aborted transactions as far as they can be believed; returns from which marker on
    to read the log.

    That a whole file is missing cannot be seen, as most segments have none: before the recovery point it is
    not looked for.
    """
    there = set(names)
    # Before the log's first segment there is nothing to read; the snapshot at its beginning knows what was
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
    """Snapshots of what was cut off must not be found once the log has grown past them again."""
    for offset in offsets:
        if offset > log.next_offset:
            log.disk.remove(log.snapshot_path(offset))


def _mark_unsynced(log: PartitionLog) -> None:
    """What was read again is in the page cache only, as far as we know: it counts as flushed after the next
    sync.
    """
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
    # An epoch that has begun and written nothing yet begins at the end.
    epochs.truncate_end(log.next_offset + 1)
    epochs.truncate_start(log.log_start_offset)
    log.epochs = epochs
    if epochs.render() != (file or LeaderEpochs().render()):
        log.save_epochs()
    elif file is not None and log.recovery_point < log.next_offset:
        # R1: it may be as little durable as the records that were read again, and a flush of those must cover
        # it.
        log.loose.append(log.disk.open(f"{log.directory}/{EPOCHS}"))


def _remove(segment: Segment) -> None:
    segment.close()
    _remove_files(segment.disk, segment.directory, segment.base_offset)


def _remove_files(disk: Disk, directory: str, base_offset: int) -> None:
    for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX):
        disk.remove(f"{directory}/{offset_name(base_offset)}{suffix}")
