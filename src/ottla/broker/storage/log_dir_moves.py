"""Moves a log to another log directory while it is written and read (AlterReplicaLogDirs, KIP-113).

The copy (`future_log.py`) grows in the target directory, piece by piece, in jobs off the event loop: first
the closed segments, then the active one, repeatedly, until less than 256 KiB is missing. Segments that
retention drops meanwhile are removed from the copy.

Then the swap:

    1  (job) all files are synced, with epochs and a producer snapshot at the end so far; names are durable
    2  (job) the target's checkpoints have the log: its start, and that end as its recovery point
    3  the bytes appended since, 256 KiB at most, are copied and synced
    4  the source is renamed to `<topic>-<partition>.<the same digits>-delete`, durably: this commits the move
    5  the copy is renamed to `<topic>-<partition>` and opened in place of the source
    6  once the target's names are durable, the source is removed after `file.delete.delay.ms`

Steps 3 to 5 run on the event loop without interruption, so nothing can be appended between them: two syncs
and two renames. A start after a crash finds one of:

- the source under its own name (before 4): the copy is discarded and the move starts again;
- a copy with the digits of a retired source (after 4): the copy becomes the log;
- the copy under its own name (after 5).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.broker.storage.future_log import (
    TAIL_BYTES,
    LogDirMove,
    Prepared,
    copy_pieces,
    log_name,
    sync_files,
)
from ottla.broker.storage.log_directory import LogOffsets
from ottla.log.checkpoints import render_partition_metadata
from ottla.log.names import EPOCHS, PARTITION_METADATA, SNAPSHOT, delete_dir, offset_name
from ottla.log.recovery import open_log
from ottla.model.timer_wheel import Later
from ottla.ports.disk import Disk, DiskError

if TYPE_CHECKING:
    from ottla.broker.storage.host import MoveHost
    from ottla.broker.storage.log_directory import LogDirectory
    from ottla.log.partition_log import PartitionLog
    from ottla.log.segment import Segment
    from ottla.replication.replica import Replica

#: Bytes that one job copies: other jobs run in between.
_PIECE_BYTES: Final = 4 << 20
#: Moves that copy at the same time; others wait.
_MOVES_MAX: Final = 2
#: How soon a swap that cannot be made yet is tried again.
_RETRY_MS: Final = 10


class LogDirMoves:
    """The moves that are under way or wait for their turn."""

    def __init__(self, host: MoveHost) -> None:
        self._host = host
        self._moves: dict[Replica, LogDirMove] = {}
        self._waiting: deque[LogDirMove] = deque()
        self._copying: set[LogDirMove] = set()

    # --- queries --------------------------------------------------------------------------------------------

    def of(self, replica: Replica) -> LogDirMove | None:
        return self._moves.get(replica)

    def into(self, directory: LogDirectory) -> Iterator[LogDirMove]:
        return (move for move in self._moves.values() if move.target is directory)

    def arriving(self, directory: LogDirectory) -> Iterator[tuple[str, int, LogOffsets, int]]:
        """The logs that are about to be in a directory, for its checkpoints (step 2)."""
        for move in self.into(directory):
            if move.prepared is not None:
                replica = move.replica
                yield replica.topic, replica.number, move.prepared, replica.high_watermark

    # --- beginning and ending -------------------------------------------------------------------------------

    def begin(self, replica: Replica, target: LogDirectory) -> None:
        """Start a move, unless the log is there or on its way there.

        A move to another directory is cancelled.
        """
        running = self._moves.get(replica)
        if running is not None and running.target is target:
            return
        self.cancel(replica)
        host = self._host
        source = host.directories.of(replica.log)
        if source is target:
            return
        move = LogDirMove(replica, source, target, host.entropy.id_bytes())
        self._moves[replica] = move
        target.partitions += 1
        metadata = render_partition_metadata(host.partitions.by_name[replica.topic].topic_id)

        def make(disk: Disk) -> None:
            disk.make_dir(move.path)
            disk.replace_file(f"{move.path}/{PARTITION_METADATA}", metadata)

        def made() -> None:
            self._waiting.append(move)
            self._start_next()

        self._run(move, make, made)

    def cancel(self, replica: Replica) -> None:
        """End the move of a log, if there is one, and remove the copy."""
        move = self._moves.get(replica)
        if move is not None:
            self._end(move)
            move.is_unwanted = True
            self._discard(move)

    def _discard(self, move: LogDirMove) -> None:
        """Rename the copy at once, so that the next start does not find it, and remove it later."""
        host, replica = self._host, move.replica
        # With the digits of the move it would look like a retired source, whose copy is complete.
        gone = f"{move.target.path}/{delete_dir(replica.topic, replica.number, host.entropy.id_bytes())}"
        with suppress(DiskError):
            host.disk.rename(move.path, gone)
            host.log_maintenance.run_later(
                replica.config.file_delete_delay_ms, lambda disk: disk.remove_dir(gone)
            )

    def directory_failed(self, directory: LogDirectory) -> None:
        for move in [move for move in self._moves.values() if directory in (move.source, move.target)]:
            self._end(move)
            name = f"{move.replica.topic}-{move.replica.number}"
            if directory is move.source:
                # The copy may be all that is left of the log.
                self._host.say(
                    f"the move of {name} to {move.target.path} ended, because {directory.path} is offline. "
                    f"The unfinished copy stays in {move.path}"
                )

    def _end(self, move: LogDirMove) -> None:
        move.cancelled = True
        move.target.partitions -= 1
        move.target.forget(move.replica.topic, move.replica.number)
        self._moves.pop(move.replica, None)
        self._copying.discard(move)
        if move in self._waiting:
            self._waiting.remove(move)
        self._start_next()

    def _start_next(self) -> None:
        while self._waiting and len(self._copying) < _MOVES_MAX:
            move = self._waiting.popleft()
            self._copying.add(move)
            self._guarded(move, partial(self._step, move))

    def _run(
        self,
        move: LogDirMove,
        job: Callable[[Disk], None],
        then: Callable[[], None],
        is_harmless: Callable[[DiskError], bool] = lambda _error: False,
    ) -> None:
        """Run a job of a move, then `then`.

        After an error for which `is_harmless` is true the move goes on.
        """

        def guarded(disk: Disk) -> DiskError | None:
            try:
                job(disk)
            except DiskError as error:
                return error
            return None

        def done(failed: DiskError | None, error: str | None) -> None:
            if move.is_unwanted:
                # The job may have created files after the copy was renamed.
                self._discard(move)
            if move.cancelled:
                return
            if failed is None and error is None:
                self._guarded(move, then)
            elif failed is not None and is_harmless(failed):
                self._step(move)
            else:
                self._failed(move, failed or DiskError(str(error)))

        self._host.run(guarded, done)

    def _guarded(self, move: LogDirMove, step: Callable[[], None]) -> None:
        """Run a step. An exception ends its move; otherwise the moves that wait would never start."""
        try:
            step()
        except Exception as error:
            self._host.isolation.contain(f"the move of {move.replica.topic}-{move.replica.number}", error)
            if not move.cancelled:
                self._failed(move, DiskError(f"internal error: {error!r}"))

    def _failed(self, move: LogDirMove, error: DiskError) -> None:
        self._host.disk_failed(error.path, error)
        if not move.cancelled:
            replica = move.replica
            self._host.say(
                f"{replica.topic}-{replica.number} could not be moved to {move.target.path} and stays in "
                f"{move.source.path}: {error}. Repeat the request to try again"
            )
            self.cancel(replica)

    # --- copying --------------------------------------------------------------------------------------------

    def _step(self, move: LogDirMove) -> None:
        """Copy the next piece, or prepare the swap if no more than `TAIL_BYTES` are missing."""
        if move.cancelled:
            return
        host = self._host
        if host.log_cleaner.is_swapping(move.replica):
            # The log cleaner has not renamed all files of the log yet.
            host.timers.add(
                Later(partial(self._guarded, move, partial(self._step, move))), host.now_ms + _RETRY_MS
            )
            return
        log = move.replica.log
        segment = next(each for each in log.segments if each not in move.closed)
        have = move.copied_bytes(segment)
        try:
            if segment is log.active and segment.size - have <= TAIL_BYTES:
                self._prepare(move, log)
            elif wait_ms := host.replication_throttle.move_wait_ms():
                host.timers.add(
                    Later(partial(self._guarded, move, partial(self._step, move))), host.now_ms + wait_ms
                )
            else:
                self._copy(move, log, segment, min(segment.size, have + _PIECE_BYTES))
        except DiskError as error:
            self._failed(move, error)

    def _copy(self, move: LogDirMove, log: PartitionLog, segment: Segment, end: int) -> None:
        pieces = move.missing(log, segment, end)
        self._host.replication_throttle.moved.take(end - move.copied_bytes(segment))
        is_closed = segment is not log.active and end == segment.size
        source = log.directory

        def job(disk: Disk) -> None:
            copy_pieces(disk, source, move.path, pieces)
            if is_closed:
                sync_files(disk, move.path, [piece.name for piece in pieces])

        def then() -> None:
            move.note(segment, pieces)
            if is_closed:
                move.closed.add(segment)
                move.end_offset = max(move.end_offset, segment.next_offset)
            self._step(move)

        def is_dropped(error: DiskError) -> bool:
            # Retention or compaction removed the segment while it was copied.
            return not error.broken and not error.passing and segment not in move.replica.log.segments

        self._run(move, job, then, is_dropped)

    # --- the swap -------------------------------------------------------------------------------------------

    def _prepare(self, move: LogDirMove, log: PartitionLog) -> None:
        """Steps 1 and 2."""
        active = log.active
        active.flush_indexes()
        pieces = move.missing(log, active, active.size)
        prepared = Prepared(
            log.next_offset,
            log.log_start_offset,
            log.cleaned_offset,
            log.epochs.render(),
            tuple(log.segments),
        )
        snapshot = log.producers.render()
        source = log.directory
        kept = {offset_name(base) for base in (*log.bases, prepared.recovery_point)}

        def job(disk: Disk) -> None:
            copy_pieces(disk, source, move.path, pieces)
            sync_files(disk, move.path, [piece.name for piece in pieces])
            for name in disk.list(move.path):
                stem = name.partition(".")[0]
                if stem.isdigit() and stem not in kept:
                    disk.remove(f"{move.path}/{name}")
            disk.replace_file(f"{move.path}/{EPOCHS}", prepared.epochs)
            # Last, because this makes all names durable.
            disk.replace_file(f"{move.path}/{offset_name(prepared.recovery_point)}{SNAPSHOT}", snapshot)

        def then() -> None:
            move.note(active, pieces)
            move.end_offset = prepared.recovery_point
            move.prepared = prepared
            self._host.log_maintenance.checkpoints_in(move.target).want(
                after=partial(self._guarded, move, partial(self._try_swap, move))
            )

        self._run(move, job, then)

    def _try_swap(self, move: LogDirMove) -> None:
        """Swap, if the source has not changed except for a few appended bytes; else go on copying."""
        if move.cancelled or move.prepared is None:
            return
        host, replica = self._host, move.replica
        try:
            if not move.is_ready(replica.log, move.prepared):
                self._step(move)
                return
            if host.log_maintenance.is_flushing(replica):
                # The flush writes to the source by its path.
                host.timers.add(
                    Later(partial(self._guarded, move, partial(self._try_swap, move))),
                    host.now_ms + _RETRY_MS,
                )
                return
            self._copy_tail(move, replica.log)
        except DiskError as error:
            self._failed(move, error)
        else:
            self._swap(move, move.prepared)

    def _swap(self, move: LogDirMove, prepared: Prepared) -> None:
        """Steps 4 to 6."""
        host, disk, replica = self._host, self._host.disk, move.replica
        log = replica.log
        self._end(move)
        log.close()
        try:
            old = move.source.retire(replica.topic, replica.number, move.unique)
            disk.sync_dir(move.source.path)
        except DiskError as error:
            # It is unknown which name the source has, or will have after a crash.
            if error.broken:
                host.go_offline(move.source, str(error))
            else:
                host.lose_one(replica, move.source, str(error))
            return
        home = move.target.partition_path(replica.topic, replica.number)
        try:
            disk.rename(move.path, home)
            opened = open_log(
                disk, home, replica.config, recovery_point=prepared.recovery_point,
                log_start_offset=log.log_start_offset, clean=True, now_ms=host.wall_ms,
            )  # fmt: skip
            if opened is None or opened.log.next_offset != log.next_offset or opened.log.bases != log.bases:
                raise DiskError(f"{home} differs from {old}, of which it is the copy")
        except DiskError as error:
            host.lose_one(replica, move.target, str(error))
            if error.broken:
                host.go_offline(move.target, str(error))
            return
        self._adopt_log(move, log, opened.log, prepared)
        host.say(f"{replica.topic}-{replica.number} was moved to {move.target.path}")
        delay_ms = replica.config.file_delete_delay_ms
        host.log_maintenance.checkpoints_in(move.source).want()
        host.log_maintenance.checkpoints_in(move.target).want(
            replica,
            # Until the new name is durable, the retired source proves that the copy is complete.
            after=lambda: host.log_maintenance.run_later(delay_ms, lambda disk: disk.remove_dir(old)),
        )

    def _copy_tail(self, move: LogDirMove, log: PartitionLog) -> None:
        """Step 3."""
        disk, active = self._host.disk, log.active
        # The newest index entries need not be durable: they are past the recovery point.
        active.flush_indexes()
        have = move.copied[active][log_name(active)]
        pieces = move.missing(log, active, active.size)
        copy_pieces(disk, log.directory, move.path, pieces)
        for segment in log.segments:
            copy = disk.open(f"{move.path}/{log_name(segment)}")
            size = disk.size(copy)
            if size != segment.size:
                raise DiskError(f"{copy.path} has {size} bytes, its source {segment.size}")
            if segment is active and have < active.size:
                disk.sync(copy)
            disk.close(copy)

    def _adopt_log(self, move: LogDirMove, old: PartitionLog, new: PartitionLog, prepared: Prepared) -> None:
        host, replica = self._host, move.replica
        move.source.partitions -= 1
        new.producers, new.epochs = old.producers, old.epochs
        # All records are durable. The newest index entries and producer states are not.
        new.recovery_point = min(prepared.recovery_point, new.next_offset)
        new.unflushed_bytes = old.unflushed_bytes
        new.cleaned_offset = old.cleaned_offset
        replica.relocate(new)
        host.partitions.attach(replica, move.target, new)
        if new.recovery_point < new.next_offset and replica.since_flush_ms < 0:
            host.log_maintenance.written(replica, host.now_ms)
        host.advance(replica)
