"""Flushing a partition log: which files a background flush syncs, and what its completion changes.

A flush moves the recovery point to the log end. It syncs the segments behind the recovery point, their
indexes and the small files that were written since (`PartitionLog.loose`: leader epochs, producer snapshots,
partition metadata). Functions of a `PartitionLog`. The runtime performs the syncs in a thread; nothing here
waits for a disk.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ottla.log.names import snapshot_offset
from ottla.log.segment import Segment
from ottla.ports.disk import File

if TYPE_CHECKING:
    from ottla.log.partition_log import PartitionLog


class Flush(NamedTuple):
    """The files of one background flush. When all are synced, `end_offset` becomes the recovery point."""

    files: tuple[File, ...]
    #: The small files among `files`: they are closed after the sync.
    loose: tuple[File, ...]
    directory: str
    end_offset: int
    segments: tuple[Segment, ...]
    #: The producer snapshot at `end_offset`.
    snapshot: bytes


def begin_flush(log: PartitionLog) -> Flush | None:
    """Everything to sync so that recovery can begin at the log end; None if that is durable already."""
    log.unflushed_bytes = 0
    is_durable = log.recovery_point == log.next_offset and not log.loose and log.active.names_synced
    if is_durable or log.failed:
        return None
    segments = tuple(log.segments[log.segment_for(log.recovery_point) :])
    for segment in segments:
        segment.flush_indexes()
    loose = tuple(log.loose)
    return Flush(
        files=(*loose, *(file for segment in segments for file in segment.files)),
        loose=loose,
        directory=log.directory,
        end_offset=log.next_offset,
        segments=segments,
        snapshot=log.producers.render(),
    )


def end_flush(log: PartitionLog, flush: Flush) -> None:
    """A flush is done: its end becomes the recovery point, unless the log was truncated meanwhile."""
    settle_loose(log, flush.loose)
    log.fresh = False
    for segment in flush.segments:
        log.synced(segment, min(flush.end_offset, segment.next_offset))
    last = flush.segments[-1]
    if last in log.segments:
        log.recovery_point = max(log.recovery_point, flush.end_offset)


def write_loose(log: PartitionLog, path: str, data: bytes) -> None:
    """Write a small file. The next sync or flush of the log makes it durable."""
    # Each write opens its own handle: a sync of the previous handle that is in progress does not cover these
    # bytes.
    file = log.disk.open(path, create=True)
    log.replaced += [other for other in log.loose if other.path == path]
    log.loose = [*(other for other in log.loose if other.path != path), file]
    log.disk.truncate(file, log.disk.write(file, 0, (data,)))


def settle_loose(log: PartitionLog, files: Iterable[File]) -> None:
    """These small files are durable: close them."""
    for file in files:
        if file in log.loose:
            log.loose.remove(file)
            # The newest handle of its path: the bytes written through the older handles are durable too.
            done = [file, *(other for other in log.replaced if other.path == file.path)]
        else:
            done = [file] if file in log.replaced else []
        for each in done:
            if each in log.replaced:
                log.replaced.remove(each)
            log.disk.close(each)


def leave_snapshot(log: PartitionLog, offset: int, data: bytes) -> None:
    """Write a producer snapshot, to be synced with the other small files.

    A torn snapshot is ignored at recovery. The one at the recovery point is in use, so it is rewritten only
    if it differs.
    """
    path = log.snapshot_path(offset)
    if offset != log.recovery_point or log.disk.read_file(path) != data:
        write_loose(log, path, data)


def stale_snapshots(log: PartitionLog, keep_from: int) -> list[str]:
    """Paths of producer snapshots that no recovery reads.

    Kept are the one at `keep_from`, the newest one before it, and those at the start of a segment.
    """
    found = sorted(
        (offset, name)
        for name in log.disk.list(log.directory)
        if (offset := snapshot_offset(name)) is not None
    )
    older = [(offset, name) for offset, name in found if offset < keep_from]
    # Until the checkpoint after this flush is written, the recovery point on disk is the previous one.
    wanted = {*log.bases, log.recovery_point}
    return [f"{log.directory}/{name}" for offset, name in older[:-1] if offset not in wanted]
