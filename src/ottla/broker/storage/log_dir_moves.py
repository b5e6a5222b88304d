"""LogDirMoves a partition's log to another log directory while it is written and read (AlterReplicaLogDirs, KIP-113).

The copy grows in `<topic>-<partition>.<32 hex digits>-future` in the target directory, piece by piece in jobs off the loop:
first the segments that are closed, then the active one, again and again until hardly anything is missing. What is copied
is a segment object's bytes below its size, which never change; a segment that another takes the place of (cut off,
compacted) is another object, and is copied anew. Segments that retention drops meanwhile are removed from the copy.

Then the swap, whose steps are:

    1  (job) all files synced, epochs and a producer snapshot at the end so far; names durable
    2  (job) the target's checkpoints know the log: its start and, as its recovery point, that end
    3  what was appended since, a few hundred kilobytes at most, is copied and synced
    4  the source is renamed to `<topic>-<partition>.<the same digits>-delete`, durably: this is the moment
    5  the copy is renamed to `<topic>-<partition>` and opened in place of the source
    6  once the target's names are durable, the source is removed after the usual delay

3 to 5 happen on the loop, in one go, so that nothing can be appended between them: two syncs and as many renames. A start
after a crash finds the source under its own name (up to 4: the copy is thrown away and begun anew), or a copy whose
digits are those of a source on its way out (after 4: the copy becomes the log), or the copy under its own name (after 5).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.broker.storage.log_directory import Standing
from ottla.log.checkpoints import Partition, render_partition_metadata
from ottla.log.names import (
    DELETED,
    EPOCHS,
    PARTITION_METADATA,
    SNAPSHOT,
    delete_dir,
    future_dir,
    offset_name,
)
from ottla.log.recovery import open_log
from ottla.log.segment import Segment
from ottla.metadata.image import Image
from ottla.model.timer_wheel import Later
from ottla.ports.disk import Disk, DiskError

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.storage.log_directory import LogDirectory, Survey
    from ottla.log.partition_log import PartitionLog
    from ottla.replication.replica import Replica

#: How much one job copies: other jobs get their turn in between.
_PIECE_BYTES: Final = 4 << 20
#: How much may be left to copy in the swap itself.
_TAIL_BYTES: Final = 256 * 1024
#: Moves that copy at the same time; others wait.
_MOVES_MAX: Final = 2
#: When to look again whether a swap can be made.
_AGAIN_MS: Final = 10
#: Files beside a segment that are nobody's any more, or not yet somebody's.
_NOT_COPIED: Final = (DELETED, ".tmp", ".cleaned", ".swap")


class Piece(NamedTuple):
    """A part of one file."""

    name: str
    start: int
    end: int
    #: Whether nothing was copied of it yet: then whatever has its name is something else.
    is_new: bool


class Prepared(NamedTuple):
    """What is durable of the copy, and what it was made from: the swap is only for that."""

    recovery_point: int
    log_start_offset: int
    cleaned_offset: int
    epochs: bytes
    segments: tuple[Segment, ...]


class Move:
    __slots__ = (
        "cancelled", "closed", "copied", "end_offset", "is_unwanted", "path", "prepared", "replica", "source", "target", "unique",
    )  # fmt: skip

    def __init__(self, replica: Replica, source: LogDirectory, target: LogDirectory, unique: bytes) -> None:
        self.replica = replica
        self.source = source
        self.target = target
        self.unique = unique
        self.path = f"{target.path}/{future_dir(replica.topic, replica.number, unique)}"
        #: Bytes that are in the copy, by segment and name of the file; of another object of the same segment nothing is.
        self.copied: dict[Segment, dict[str, int]] = {}
        #: Segments that were closed when all of them had been copied.
        self.closed: set[Segment] = set()
        #: The copy holds every record before it.
        self.end_offset = 0
        self.prepared: Prepared | None = None
        self.cancelled = False
        #: Whether what was copied is of no use any more.
        self.is_unwanted = False

    @property
    def size(self) -> int:
        return sum(sum(files.values()) for files in self.copied.values())


class LogDirMoves:
    """The moves that are under way or wait for their turn."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._moves: dict[Replica, Move] = {}
        self._waiting: deque[Move] = deque()
        self._copying: set[Move] = set()

    # --- what others ask ----------------------------------------------------------------------------------------

    def of(self, replica: Replica) -> Move | None:
        return self._moves.get(replica)

    def into(self, directory: LogDirectory) -> Iterator[Move]:
        return (move for move in self._moves.values() if move.target is directory)

    def arriving(self, directory: LogDirectory) -> Iterator[tuple[str, int, Standing, int]]:
        """What the checkpoints of a directory must know already of logs that are about to be in it."""
        for move in self.into(directory):
            if move.prepared is not None:
                replica = move.replica
                yield replica.topic, replica.number, move.prepared, replica.high_watermark

    # --- beginning and ending -----------------------------------------------------------------------------------

    def begin(self, replica: Replica, target: LogDirectory) -> None:
        """Move a log, unless it is there or on its way there; a move to elsewhere ends."""
        running = self._moves.get(replica)
        if running is not None and running.target is target:
            return
        self.cancel(replica)
        broker = self._broker
        source = broker.directories.of(replica.log)
        if source is target:
            return
        move = Move(replica, source, target, broker.entropy.id_bytes())
        self._moves[replica] = move
        target.partitions += 1
        metadata = render_partition_metadata(broker.partitions.by_name[replica.topic].topic_id)

        def make(disk: Disk) -> None:
            disk.make_dir(move.path)
            disk.replace_file(f"{move.path}/{PARTITION_METADATA}", metadata)

        def made() -> None:
            self._waiting.append(move)
            self._start_next()

        self._run(move, make, made)

    def cancel(self, replica: Replica) -> None:
        """A log stays where it is, or goes altogether; what was copied is removed."""
        move = self._moves.get(replica)
        if move is not None:
            self._end(move)
            move.is_unwanted = True
            self._discard(move)

    def _discard(self, move: Move) -> None:
        """Take a copy away, at once: the next start would take it up again."""
        broker, replica = self._broker, move.replica
        # Not its own digits: with them it would stand for a source whose copy is complete.
        gone = f"{move.target.path}/{delete_dir(replica.topic, replica.number, broker.entropy.id_bytes())}"
        with suppress(DiskError):
            broker.disk.rename(move.path, gone)
            broker.log_maintenance.later(
                replica.config.file_delete_delay_ms, lambda disk: disk.remove_dir(gone)
            )

    def directory_failed(self, directory: LogDirectory) -> None:
        for move in [move for move in self._moves.values() if directory in (move.source, move.target)]:
            self._end(move)
            name = f"{move.replica.topic}-{move.replica.number}"
            if directory is move.source:
                # Perhaps all that will be left of it.
                self._broker.say(f"the move of {name} ended: what was copied so far stays in {move.path}")

    def _end(self, move: Move) -> None:
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
        move: Move,
        job: Callable[[Disk], None],
        then: Callable[[], None],
        is_nothing: Callable[[DiskError], bool] = lambda _error: False,
    ) -> None:
        """Run a job of a move; `then` follows unless the move is over or the job failed in a way that means something."""

        def guarded(disk: Disk) -> DiskError | None:
            try:
                job(disk)
            except DiskError as error:
                return error
            return None

        def done(failed: DiskError | None, error: str | None) -> None:
            if move.is_unwanted:
                # The job may have made it after it was taken away.
                self._discard(move)
            if move.cancelled:
                return
            if failed is None and error is None:
                self._guarded(move, then)
            elif failed is not None and is_nothing(failed):
                self._step(move)
            else:
                self._failed(move, failed or DiskError(str(error)))

        self._broker.run(guarded, done)

    def _guarded(self, move: Move, step: Callable[[], None]) -> None:
        """A step of a move. One that raises ends its move, which would otherwise keep others from their turn."""
        try:
            step()
        except Exception as error:
            self._broker.isolation.contain(f"the move of {move.replica.topic}-{move.replica.number}", error)
            if not move.cancelled:
                self._failed(move, DiskError(f"internal error: {error!r}"))

    def _failed(self, move: Move, error: DiskError) -> None:
        self._broker.disk_failed(error.path, error)
        if not move.cancelled:
            replica = move.replica
            self._broker.say(
                f"moving {replica.topic}-{replica.number} to {move.target.path} was given up: {error}"
            )
            self.cancel(replica)

    # --- copying ------------------------------------------------------------------------------------------------

    def _step(self, move: Move) -> None:
        """Copy the next piece, or prepare the swap if hardly anything is missing."""
        if move.cancelled:
            return
        broker = self._broker
        if broker.log_cleaner.is_swapping(move.replica):
            # Some of its files do not have their names yet, and will in a moment.
            broker.timers.add(
                Later(partial(self._guarded, move, partial(self._step, move))), broker.now_ms + _AGAIN_MS
            )
            return
        log = move.replica.log
        segment = next(each for each in log.segments if each not in move.closed)
        have = move.copied.get(segment, {}).get(_log_name(segment), 0)
        try:
            if segment is log.active and segment.size - have <= _TAIL_BYTES:
                self._prepare(move, log)
            elif wait_ms := broker.replication_throttle.move_wait_ms():
                broker.timers.add(
                    Later(partial(self._guarded, move, partial(self._step, move))), broker.now_ms + wait_ms
                )
            else:
                self._copy(move, log, segment, min(segment.size, have + _PIECE_BYTES))
        except DiskError as error:
            self._failed(move, error)

    def _copy(self, move: Move, log: PartitionLog, segment: Segment, end: int) -> None:
        pieces = _pieces(move, log, segment, end)
        self._broker.replication_throttle.moved.take(
            end - move.copied.get(segment, {}).get(_log_name(segment), 0)
        )
        is_closed = segment is not log.active and end == segment.size
        source = log.directory

        def job(disk: Disk) -> None:
            _copy_pieces(disk, source, move.path, pieces)
            if is_closed:
                _sync_files(disk, move.path, [piece.name for piece in pieces])

        def then() -> None:
            self._note(move, segment, pieces)
            if is_closed:
                move.closed.add(segment)
                move.end_offset = max(move.end_offset, segment.next_offset)
            self._step(move)

        def is_dropped(error: DiskError) -> bool:
            # Under the copy: there is nothing left to copy.
            return not error.broken and not error.passing and segment not in move.replica.log.segments

        self._run(move, job, then, is_dropped)

    def _note(self, move: Move, segment: Segment, pieces: Sequence[Piece]) -> None:
        move.copied.setdefault(segment, {}).update((piece.name, piece.end) for piece in pieces)

    # --- the swap -----------------------------------------------------------------------------------------------

    def _prepare(self, move: Move, log: PartitionLog) -> None:
        """Steps 1 and 2."""
        active = log.active
        active.flush_indexes()
        pieces = _pieces(move, log, active, active.size)
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
            _copy_pieces(disk, source, move.path, pieces)
            _sync_files(disk, move.path, [piece.name for piece in pieces])
            for name in disk.list(move.path):
                stem = name.partition(".")[0]
                if stem.isdigit() and stem not in kept:
                    disk.remove(f"{move.path}/{name}")
            disk.replace_file(f"{move.path}/{EPOCHS}", prepared.epochs)
            # Last, because this makes all names durable.
            disk.replace_file(f"{move.path}/{offset_name(prepared.recovery_point)}{SNAPSHOT}", snapshot)

        def then() -> None:
            self._note(move, active, pieces)
            move.end_offset = prepared.recovery_point
            move.prepared = prepared
            self._broker.log_maintenance.checkpoints_in(move.target).want(
                after=partial(self._guarded, move, partial(self._try_swap, move))
            )

        self._run(move, job, then)

    def _try_swap(self, move: Move) -> None:
        """Swap, if nothing has changed since it was prepared but that a little was appended; else go on copying."""
        if move.cancelled or move.prepared is None:
            return
        broker, replica = self._broker, move.replica
        try:
            if not _is_ready(move, replica.log, move.prepared):
                self._step(move)
                return
            if broker.log_maintenance.is_flushing(replica):
                # Its job writes to the source, by name.
                broker.timers.add(
                    Later(partial(self._guarded, move, partial(self._try_swap, move))),
                    broker.now_ms + _AGAIN_MS,
                )
                return
            self._copy_tail(move, replica.log)
        except DiskError as error:
            self._failed(move, error)
        else:
            self._swap(move, move.prepared)

    def _swap(self, move: Move, prepared: Prepared) -> None:
        """Steps 4 to 6."""
        broker, disk, replica = self._broker, self._broker.disk, move.replica
        log = replica.log
        self._end(move)
        log.close()
        try:
            old = move.source.retire(replica.topic, replica.number, move.unique)
            disk.sync_dir(move.source.path)
        except DiskError as error:
            # Whether it still has its name, or will have it after a crash, nobody knows.
            if error.broken:
                broker.go_offline(move.source, str(error))
            else:
                broker.lose_one(replica, move.source, str(error))
            return
        home = move.target.partition_path(replica.topic, replica.number)
        try:
            disk.rename(move.path, home)
            opened = open_log(
                disk, home, replica.config, recovery_point=prepared.recovery_point,
                log_start_offset=log.log_start_offset, clean=True, now_ms=broker.wall_ms,
            )  # fmt: skip
            if opened is None or opened.log.next_offset != log.next_offset or opened.log.bases != log.bases:
                raise DiskError(f"{home} is not what was copied to it from {old}")
        except DiskError as error:
            broker.lose_one(replica, move.target, str(error))
            if error.broken:
                broker.go_offline(move.target, str(error))
            return
        self._take_over(move, log, opened.log, prepared)
        broker.say(f"{replica.topic}-{replica.number} was moved to {move.target.path}")
        delay_ms = replica.config.file_delete_delay_ms
        broker.log_maintenance.checkpoints_in(move.source).want()
        broker.log_maintenance.checkpoints_in(move.target).want(
            replica,
            # Not before the new name is durable: until then it is the old one that tells what the copy is.
            after=lambda: broker.log_maintenance.later(delay_ms, lambda disk: disk.remove_dir(old)),
        )

    def _copy_tail(self, move: Move, log: PartitionLog) -> None:
        """Step 3."""
        disk, active = self._broker.disk, log.active
        # Their newest entries need not be durable: they lie past the recovery point.
        active.flush_indexes()
        have = move.copied[active][_log_name(active)]
        pieces = _pieces(move, log, active, active.size)
        _copy_pieces(disk, log.directory, move.path, pieces)
        for segment in log.segments:
            copy = disk.open(f"{move.path}/{_log_name(segment)}")
            size = disk.size(copy)
            if size != segment.size:
                raise DiskError(f"{copy.path} has {size} bytes, its source {segment.size}")
            if segment is active and have < active.size:
                disk.sync(copy)
            disk.close(copy)

    def _take_over(self, move: Move, old: PartitionLog, new: PartitionLog, prepared: Prepared) -> None:
        broker, replica = self._broker, move.replica
        move.source.partitions -= 1
        new.producers, new.epochs = old.producers, old.epochs
        # The newest index entries and producers are not durable yet; records are.
        new.recovery_point = min(prepared.recovery_point, new.next_offset)
        new.unflushed_bytes = old.unflushed_bytes
        new.cleaned_offset = old.cleaned_offset
        replica.relocate(new)
        broker.partitions.take(replica, move.target, new)
        if new.recovery_point < new.next_offset and replica.since_flush_ms < 0:
            broker.log_maintenance.written(replica, broker.now_ms)
        broker.advance(replica)


def _is_ready(move: Move, log: PartitionLog, prepared: Prepared) -> bool:
    """Whether nothing has changed since the swap was prepared, but that a little was appended."""
    active = log.active
    return (
        prepared.segments == tuple(log.segments)
        and prepared.log_start_offset == log.log_start_offset
        and prepared.epochs == log.epochs.render()
        and active.size - move.copied[active][_log_name(active)] <= _TAIL_BYTES
        # The names in the copy are durable as they are.
        and not any(piece.is_new for piece in _pieces(move, log, active, active.size))
    )


def _log_name(segment: Segment) -> str:
    return segment.file.path.rpartition("/")[2]


def _pieces(move: Move, log: PartitionLog, segment: Segment, end: int) -> list[Piece]:
    """What is missing of a segment up to a position; beside its end, of the files beside it too.

    On the loop, where nothing is being written: what the files hold now is what they will hold.
    """
    copied = move.copied.get(segment, {})
    name = _log_name(segment)
    pieces = [_piece(copied, name, end)]
    if end == segment.size:
        stem = offset_name(segment.base_offset)
        for beside in log.disk.list(log.directory):
            if beside.startswith(stem) and beside != name and not beside.endswith(_NOT_COPIED):
                size = log.disk.size(log.disk.open(f"{log.directory}/{beside}"))
                pieces.append(_piece(copied, beside, size))
    return pieces


def _piece(copied: dict[str, int], name: str, end: int) -> Piece:
    have = copied.get(name, -1)
    return Piece(name, have, end, False) if 0 <= have <= end else Piece(name, 0, end, True)


def _copy_pieces(disk: Disk, source: str, target: str, pieces: Sequence[Piece]) -> None:
    for name, start, end, is_new in pieces:
        path = f"{target}/{name}"
        if is_new:
            disk.remove(path)
        disk.copy(f"{source}/{name}", path, start=start, end=end)


def _sync_files(disk: Disk, directory: str, names: Sequence[str]) -> None:
    for name in names:
        file = disk.open(f"{directory}/{name}")
        try:
            disk.sync(file)
        finally:
            disk.close(file)


# --- the start ----------------------------------------------------------------------------------------------------------


def settle_futures(
    broker: Broker, image: Image, homes: dict[Partition, LogDirectory], surveys: Sequence[Survey]
) -> dict[Partition, LogDirectory]:
    """Finish the moves that were done but for a name, adding to `homes`; returns those that must begin anew.

    A copy that is of no use any more joins the strays of its directory.
    """
    directories = broker.directories
    retired = {unique: found for found in surveys for unique in found.retired}
    anew: dict[Partition, LogDirectory] = {}
    promoted: set[Partition] = set()
    futures = [(found, future) for found in surveys for future in found.futures]
    # Those whose source is on its way out first: of them nobody can doubt.
    for found, future in sorted(futures, key=lambda each: each[1].unique not in retired):
        topic = image.topics_by_id.get(future.topic_id)
        if topic is None or future.number >= len(topic.partitions):
            found.strays.append(future.path)
            continue
        partition = topic.name, future.number
        if partition in homes:
            found.strays.append(future.path)
            if partition not in promoted and homes[partition] is not future.directory:
                anew[partition] = future.directory
            continue
        if future.unique not in retired:
            if directories.offline:
                # Its source may be there, whole.
                continue
            broker.say(
                f"{future.path} was being copied from a log that is gone: what had been copied is served now; "
                "records that were acknowledged may be missing"
            )
        try:
            broker.disk.rename(future.path, future.directory.partition_path(*partition))
        except DiskError as error:
            if not error.broken:
                # Without its name it would begin again, empty: the start is refused.
                raise
            directories.give_up(future.directory, str(error))
            continue
        homes[partition] = future.directory
        promoted.add(partition)
        if future.unique in retired:
            # The new name is not durable yet, and until then this tells what the copy is. The next start removes it.
            del retired[future.unique].retired[future.unique]
    return anew
