"""Compaction by the clock: which log is next, the worker that cleans it, and putting the outcome in its place (B4–B8).

One log at a time: the dirtiest of those that are dirty enough, or one whose records have waited too long. The pass itself is
the worker's (`log/compaction.py`); meanwhile anything may happen to the log: segments dropped by retention, records
deleted, the topic reconfigured or gone. So an output is taken only if the very segments it was made from still stand side by side
in the log, and thrown away otherwise. Its steps are those of `log/swap.py`, one output after the other.

A pass that fails leaves the log as it is. The reason is said once, and the log rests for a while that doubles each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.log import swap
from ottla.log.cleanable import Cleanable, find_cleanable, make_task, must_roll
from ottla.log.compaction import Outcome, Output, Task
from ottla.log.segment import Segment
from ottla.model.errors import Refusal
from ottla.model.timer_wheel import Later
from ottla.ports.disk import Disk, DiskError
from ottla.ports.effects import WORK

if TYPE_CHECKING:
    from ottla.broker.storage.host import StorageHost
    from ottla.replication.replica import Replica

#: After this long a sync is tried again whose directory could not be opened.
_SYNC_RETRY_MS: Final = 2000
_REST_MS_MIN: Final = 15_000
_REST_MS_MAX: Final = 3_600_000


class _Rest(NamedTuple):
    """A log whose last passes failed."""

    until_ms: int
    length_ms: int
    reason: str


class _Pass:
    """A pass under way, from the choice of its log until its last output is in place."""

    __slots__ = (
        "is_moving",
        "is_swapping",
        "is_whole",
        "log",
        "map_end",
        "outputs",
        "replica",
        "segments",
        "task",
    )

    def __init__(
        self, replica: Replica, task: Task, segments: tuple[Segment, ...], is_moving: Callable[[], bool]
    ) -> None:
        self.replica = replica
        #: Whether the log is being copied to another directory: then its segments stay as they are.
        self.is_moving = is_moving
        self.log = replica.log
        self.task = task
        self.segments = segments
        self.outputs: deque[Output] = deque()
        self.map_end = 0
        #: Whether the log uses files that do not have their names yet.
        self.is_swapping = False
        #: Whether every output so far could be used.
        self.is_whole = True

    def replaced(self, output: Output) -> tuple[Segment, ...]:
        return self.segments[output.first_input : output.first_input + output.inputs]

    def is_welcome(self, output: Output) -> bool:
        """Whether the log still is what this output was made from."""
        is_usable = not self.log.failed and self.replica.config.compact and not self.is_moving()
        return is_usable and self.stands(self.replaced(output))

    def stands(self, segments: tuple[Segment, ...]) -> bool:
        """Whether the log is where it was, and has these side by side."""
        log = self.log
        if self.replica.gone or not self.replica.opened or self.replica.log is not log:
            return False
        first = log.segments.index(segments[0]) if segments[0] in log.segments else -1
        return first >= 0 and tuple(log.segments[first : first + len(segments)]) == segments


class LogCleaner:
    def __init__(self, host: StorageHost) -> None:
        self._host = host
        self._pass: _Pass | None = None
        self._resting: dict[Replica, _Rest] = {}
        #: Why syncing a directory failed; set by its job.
        self._sync_error: str | None = None

    @property
    def is_under_way(self) -> bool:
        return self._pass is not None

    def is_swapping(self, replica: Replica) -> bool:
        """Whether a log uses files that do not have their names yet."""
        return self._pass is not None and self._pass.replica is replica and self._pass.is_swapping

    # --- choosing ---------------------------------------------------------------------------------------------

    def look(self, now_ms: int) -> None:
        """Start a pass if one is due and none is under way."""
        host = self._host
        if self._pass is not None or not host.config.log_cleaner_enable:
            return
        # A clock that was set forward makes tombstones look older, too.
        date_ms = host.wall_clock.retention_ms(now_ms)
        best: tuple[float, Replica, Cleanable] | None = None
        for replica in host.partitions.replicas():
            if not replica.config.compact or not replica.opened or replica.log.failed:
                continue
            if host.log_dir_moves.of(replica) is not None:
                # To another directory: it copies segments as they are.
                continue
            rest = self._resting.get(replica)
            if rest is not None and now_ms < rest.until_ms:
                continue
            if not self._prepare(replica, date_ms):
                continue
            found = find_cleanable(replica.log, last_stable_offset=replica.last_stable_offset, now_ms=date_ms)
            if found is None:
                continue
            share = found.dirty_share
            if (found.overdue or share > replica.config.min_cleanable_dirty_ratio) and (
                best is None or share > best[0]
            ):
                best = share, replica, found
        if best is not None:
            self._start(best[1], best[2], date_ms)

    def _prepare(self, replica: Replica, date_ms: int) -> bool:
        """See to it that what is to be compacted can be, by the next look if not by this one; False if the disk failed."""
        log = replica.log
        if must_roll(log, date_ms):
            with suppress(Refusal):
                log.roll(self._host.wall_ms)
        if not log.failed and log.recovery_point < log.active.base_offset:
            # Closed, but not flushed: a log of little traffic would wait for that.
            self._host.log_maintenance.flush(replica)
        return not log.failed

    def _start(self, replica: Replica, found: Cleanable, date_ms: int) -> None:
        host = self._host
        config = host.config
        task = make_task(
            replica.log, found,
            token=host.entropy.id_bytes().hex(),
            now_ms=date_ms,
            memory_bytes=config.log_cleaner_dedupe_buffer_size,
            load_factor=config.log_cleaner_io_buffer_load_factor,
            bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
        )  # fmt: skip
        self._pass = under_way = _Pass(
            replica, task, found.segments, lambda: host.log_dir_moves.of(replica) is not None
        )

        def done(outcome: Outcome | None, error: str | None) -> None:
            if outcome is None:
                self._failed(under_way, error or "")
                return
            under_way.map_end = outcome.map_end
            under_way.outputs.extend(outcome.outputs)
            self._guarded(under_way, self._commit_next)

        host.outbox.append((WORK, task, done))

    def _guarded(self, under_way: _Pass, action: Callable[[], None]) -> None:
        """A step of a pass. One that raises ends its pass, or no other would ever begin."""
        try:
            action()
        except Exception as error:
            self._host.isolation.contain(f"the compaction of {under_way.task.directory}", error)
            if self._pass is under_way:
                self._failed(under_way, f"internal error: {error!r}")

    def _failed(self, under_way: _Pass, reason: str) -> None:
        self._pass = None
        replica = under_way.replica
        # An output may be in place already: what is left of the pass is not wanted.
        outputs = under_way.outputs
        for output in outputs:
            self._discard(under_way, output)
        if replica.gone or not (outputs or under_way.stands(under_way.segments)):
            # The log was changed under the pass, which is why it failed: not worth a word.
            return
        before = self._resting.get(replica)
        length_ms = min(before.length_ms * 2, _REST_MS_MAX) if before is not None else _REST_MS_MIN
        self._resting[replica] = _Rest(self._host.now_ms + length_ms, length_ms, reason)
        if before is None or before.reason != reason:
            self._host.say(
                f"{under_way.task.directory} could not be compacted and stays as it is; tried again later: {reason}"
            )

    # --- putting outputs in place ---------------------------------------------------------------------------------

    def _commit_next(self) -> None:
        """Make the next output durable under the name that counts, or end the pass."""
        under_way = self._pass
        assert under_way is not None
        while under_way.outputs and not under_way.is_welcome(under_way.outputs[0]):
            self._discard(under_way, under_way.outputs.popleft())
        if not under_way.outputs:
            self._finish(under_way)
            return
        output = under_way.outputs[0]
        task = under_way.task

        def done(error: str | None) -> None:
            if error is not None:
                self._failed(under_way, error)
                return
            self._sync_then(under_way, synced)

        def synced() -> None:
            under_way.outputs.popleft()
            if under_way.is_welcome(output):
                self._put_in_place(under_way, output)
            else:
                self._discard(under_way, output)
                self._commit_next()

        self._run(lambda disk: swap.commit(disk, task.directory, output, task.token), done)

    def _put_in_place(self, under_way: _Pass, output: Output) -> None:
        replica, old = under_way.replica, under_way.replaced(output)
        log = under_way.log
        try:
            new = swap.open_swapped(log, old, output)
            gone = swap.put_in_place(log, old, new)
        except DiskError as error:
            # Old and new stand side by side: a start finishes what was committed, nobody else can any more.
            self._pass = None
            log.disk_failed(DiskError(str(error), broken=error.broken, torn=True))
            return
        under_way.is_swapping = True

        def synced() -> None:
            under_way.is_swapping = False
            if under_way.stands((new,)):
                try:
                    swap.take_names(new)
                except DiskError as failed:
                    self._pass = None
                    log.disk_failed(DiskError(str(failed), broken=failed.broken, torn=True))
                    return
                self._host.log_maintenance.remove_later(replica, gone)
            self._commit_next()

        self._sync_then(under_way, synced)

    def _finish(self, under_way: _Pass) -> None:
        """All outputs are in place; the next pass need not look at what is before the map's end."""
        self._pass = None
        replica, host = under_way.replica, self._host
        self._resting.pop(replica, None)
        log = under_way.log
        if under_way.is_whole and not replica.gone and not log.failed:
            log.cleaned_offset = min(max(log.cleaned_offset, under_way.map_end), log.next_offset)
            host.log_maintenance.checkpoints(log).want(replica)
        # There may be more: of this log, if the map was full, or of another.
        self.look(host.now_ms)

    def _discard(self, under_way: _Pass, output: Output) -> None:
        under_way.is_whole = False
        if under_way.replica.gone:
            return
        task = under_way.task
        with suppress(DiskError):
            swap.discard(self._host.disk, task.directory, output.base_offset, task.token)

    def _sync_then(self, under_way: _Pass, synced: Callable[[], None]) -> None:
        """Make the names durable; tried again while the directory cannot be opened for it, for want of descriptors, say."""

        def done(error: str | None) -> None:
            if error is None:
                synced()
                return
            host = self._host
            host.say_once(f"the new files of {under_way.task.directory} wait for a sync: {error}")
            host.timers.add(Later(sync), host.now_ms + _SYNC_RETRY_MS)

        def sync() -> None:
            if self._pass is under_way:
                self._run(lambda disk: self._sync(disk, under_way.task.directory), done)

        sync()

    def _sync(self, disk: Disk, directory: str) -> None:
        try:
            disk.sync_dir(directory)
        except DiskError as error:
            if not error.broken:
                raise
            self._sync_error = str(error)
            home = self._host.directories.containing(directory)
            if home is not None and not self._is_gone():
                home.sync_error = str(error)
            raise

    def _is_gone(self) -> bool:
        return self._pass is None or self._pass.replica.gone

    def _run(self, job: Callable[[Disk], None], done: Callable[[str | None], None]) -> None:
        """A job whose failed sync takes the directory offline, as any other does (R11)."""
        under_way = self._pass
        assert under_way is not None

        def finished(_result: Any, error: str | None) -> None:
            if error is not None and error == self._sync_error and not under_way.replica.gone:
                self._pass = None
                self._host.sync_failed(under_way.task.directory, error)
                return
            self._guarded(under_way, lambda: done(error))

        self._host.run(job, finished)
