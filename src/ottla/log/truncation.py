"""Truncating a partition log: at its start (retention, DeleteRecords) and at its end (a follower that
diverged).

Functions of a `PartitionLog`, which offers each of them as a method. They change the list of segments and
every offset that depends on it. Removing files is the caller's work, because readers may still hold them.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from ottla.log.replay import load_producers, snapshot_offsets
from ottla.log.segment import Segment
from ottla.model.errors import Refusal
from ottla.ports.disk import DiskError

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog


def delete_before(log: PartitionLog, offset: int) -> bool:
    """Advance the log start offset; True if it moved. Segments wholly before it can then be dropped."""
    if not log.log_start_offset < offset <= log.next_offset:
        return False
    pairs = list(log.epochs.pairs)
    if log.epochs.truncate_start(offset):
        try:
            log.write_epochs()
        except Refusal:
            log.epochs.pairs = pairs
            raise
    log.log_start_offset = offset
    return True


def drop_segments(log: PartitionLog, count: int) -> list[Segment]:
    """Remove the oldest segments from the log, at most all but the active one; returns them."""
    count = min(count, len(log.segments) - 1)
    # This comes first: it can fail, and then nothing has changed.
    delete_before(log, log.bases[count])
    dropped = log.segments[:count]
    del log.segments[:count]
    del log.bases[:count]
    log.unsynced = [segment for segment in log.unsynced if segment not in dropped]
    # Deleted records no longer have to become durable.
    start = log.segments[0].base_offset
    log.flushed_offset = max(log.flushed_offset, start)
    log.recovery_point = max(log.recovery_point, start)
    return dropped


def truncate(log: PartitionLog, offset: int, now_ms: int) -> list[Segment]:
    """Remove every record from `offset` on; returns the segments that were removed as a whole.

    Batches are removed whole: the log then ends at the base offset of the batch that holds `offset`. An
    offset below the first segment empties the log, which then starts at that offset. The caller checkpoints
    the recovery point before the next append.
    """
    if offset >= log.next_offset:
        return []
    if offset < log.bases[0]:
        return begin_at(log, offset, now_ms)
    keep = log.segment_for(offset) + 1
    dropped = log.segments[keep:]
    del log.segments[keep:]
    del log.bases[keep:]
    # A new object for the same files: syncs and flushes in progress refer to bytes that were cut off, and
    # their completion must not mark the bytes written in their place as durable.
    before = log.segments[-1]
    active = log.active = log.segments[-1] = copy(before)
    active.truncate(offset)
    log.unsynced = [
        active if segment is before else segment for segment in log.unsynced if segment not in dropped
    ]
    _end_at(log, active.next_offset, now_ms)
    return dropped


def begin_at(log: PartitionLog, offset: int, now_ms: int) -> list[Segment]:
    """Remove every record and start at an offset outside the log; returns all segments that it had.

    The files of a segment with the same base offset are renamed first. The new segment gets new files, and
    removing the old segment cannot remove those.
    """
    for same in log.segments:
        if same.base_offset == offset:
            same.set_aside()
    segment = log.new_segment(offset, now_ms)
    dropped, log.segments, log.bases = log.segments, [segment], [offset]
    log.active = segment
    log.unsynced = []
    log.log_start_offset = offset
    for snapshot in snapshot_offsets(log.disk.list(log.directory)):
        # These snapshots describe records that the log no longer has.
        log.disk.remove(log.snapshot_path(snapshot))
    _end_at(log, offset, now_ms)
    return dropped


def _end_at(log: PartitionLog, offset: int, now_ms: int) -> None:
    """The log ends here after a truncation: adapt offsets, leader epochs and producer state."""
    log.next_offset = offset
    log.log_start_offset = min(log.log_start_offset, offset)
    log.flushed_offset = min(log.flushed_offset, offset)
    log.recovery_point = min(log.recovery_point, offset)
    log.cleaned_offset = min(log.cleaned_offset, offset)
    if log.epochs.truncate_end(offset):
        log.epochs_written = False
        try:
            log.save_epochs()
        except DiskError as error:
            # The records are gone all the same. If the disk was only full, the file is written before the
            # next record.
            log.disk_failed(error)
    load_producers(log, now_ms)
