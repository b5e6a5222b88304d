"""The log cleaner: chooses the next log to compact, gives it to the worker, puts the output in place (B4–B8).

One log at a time: the dirtiest above `min.cleanable.dirty.ratio`, or one with records older than
`max.compaction.lag.ms`. The worker runs the pass (`log/compaction.py`). Meanwhile the log may change:
retention drops segments, records are deleted, the topic is reconfigured or deleted. So an output is used only
if the segments it was made from are still adjacent in the log, and discarded otherwise. `log/swap.py` has the
steps for each output.

A pass that fails leaves the log as it is. The reason is logged once, and the log is skipped for a time that
doubles with each failure.
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

#: Pause before a sync is repeated whose directory could not be opened.
_SYNC_RETRY_MS: Final = 2000
_BACKOFF_MS_MIN: Final = 15_000
_BACKOFF_MS_MAX: Final = 3_600_000


class _Backoff(NamedTuple):
    """A log whose last pass failed is skipped until then."""

    until_ms: int
    length_ms: int
    reason: str


class _Pass:
    """A pass, from the choice of its log until its last output is in place."""

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
        #: Whether the log is being moved to another directory: then its segments must not change.
        self.is_moving = is_moving
        self.log = replica.log
        self.task = task
        self.segments = segments
        self.outputs: deque[Output] = deque()
        self.map_end = 0
        #: The log uses files that are not renamed yet.
        self.is_swapping = False
        #: Every output so far was used.
        self.is_whole = True

    def replaced(self, output: Output) -> tuple[Segment, ...]:
        return self.segments[output.first_input : output.first_input + output.inputs]

    def is_usable(self, output: Output) -> bool:
        """Whether the log still has the segments that this output was made from."""
        is_cleanable = not self.log.failed and self.replica.config.compact and not self.is_moving()
        return is_cleanable and self.has_adjacent(self.replaced(output))

    def has_adjacent(self, segments: tuple[Segment, ...]) -> bool:
        """Whether the log was not replaced, and has these segments side by side."""
        log = self.log
        if self.replica.gone or not self.replica.opened or self.replica.log is not log:
            return False
        first = log.segments.index(segments[0]) if segments[0] in log.segments else -1
        return first >= 0 and tuple(log.segments[first : first + len(segments)]) == segments


class LogCleaner:
    def __init__(self, host: StorageHost) -> None:
        self._host = host
        self._pass: _Pass | None = None
        self._backoffs: dict[Replica, _Backoff] = {}
        #: Why a sync of a directory failed. Set by the job.
        self._sync_error: str | None = None

    @property
    def is_under_way(self) -> bool:
        return self._pass is not None

    def is_swapping(self, replica: Replica) -> bool:
        """Whether a log uses files that are not renamed yet."""
        return self._pass is not None and self._pass.replica is replica and self._pass.is_swapping

    # --- choice of a log ------------------------------------------------------------------------------------

    def start_if_due(self, now_ms: int) -> None:
        """Start a pass if one is due and none is under way."""
        host = self._host
        if self._pass is not None or not host.config.log_cleaner_enable:
            return
        # A clock that was set forward makes tombstones look older: see `wall_clock.py`.
        date_ms = host.wall_clock.retention_ms(now_ms)
        best: tuple[float, Replica, Cleanable] | None = None
        for replica in host.partitions.replicas():
            if not replica.config.compact or not replica.opened or replica.log.failed:
                continue
            if host.log_dir_moves.of(replica) is not None:
                # The move copies segments, which must not change.
                continue
            backoff = self._backoffs.get(replica)
            if backoff is not None and now_ms < backoff.until_ms:
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
        """Roll and flush what is to be compacted, so that the next check finds it; False if that failed."""
        log = replica.log
        if must_roll(log, date_ms):
            with suppress(Refusal):
                log.roll(self._host.wall_ms)
        if not log.failed and log.recovery_point < log.active.base_offset:
            # Closed segments that are not flushed: in a log with little traffic that takes long.
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
        """Run a step of a pass. An exception ends the pass; otherwise no other would start."""
        try:
            action()
        except Exception as error:
            self._host.isolation.contain(f"the compaction of {under_way.task.directory}", error)
            if self._pass is under_way:
                self._failed(under_way, f"internal error: {error!r}")

    def _failed(self, under_way: _Pass, reason: str) -> None:
        self._pass = None
        replica = under_way.replica
        # Some outputs may be in place already. The others are discarded.
        outputs = under_way.outputs
        for output in outputs:
            self._discard(under_way, output)
        if replica.gone or not (outputs or under_way.has_adjacent(under_way.segments)):
            # The pass failed because the log was changed: not logged.
            return
        before = self._backoffs.get(replica)
        length_ms = min(before.length_ms * 2, _BACKOFF_MS_MAX) if before is not None else _BACKOFF_MS_MIN
        self._backoffs[replica] = _Backoff(self._host.now_ms + length_ms, length_ms, reason)
        if before is None or before.reason != reason:
            self._host.say(
                f"{under_way.task.directory} could not be compacted. It stays as it is and is retried in "
                f"{length_ms // 1000} s: {reason}"
            )

    # --- outputs --------------------------------------------------------------------------------------------

    def _commit_next(self) -> None:
        """Make the next output durable under its final name, or end the pass."""
        under_way = self._pass
        assert under_way is not None
        while under_way.outputs and not under_way.is_usable(under_way.outputs[0]):
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
            if under_way.is_usable(output):
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
            # Old and new files exist. Only a start can finish a committed output.
            self._pass = None
            log.disk_failed(DiskError(str(error), broken=error.broken, torn=True))
            return
        under_way.is_swapping = True

        def synced() -> None:
            under_way.is_swapping = False
            if under_way.has_adjacent((new,)):
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
        """All outputs are in place. The next pass begins at the end of the offset map."""
        self._pass = None
        replica, host = under_way.replica, self._host
        self._backoffs.pop(replica, None)
        log = under_way.log
        if under_way.is_whole and not replica.gone and not log.failed:
            log.cleaned_offset = min(max(log.cleaned_offset, under_way.map_end), log.next_offset)
            host.log_maintenance.checkpoints(log).want(replica)
        # There may be more to do: in this log, if the offset map was full, or in another.
        self.start_if_due(host.now_ms)

    def _discard(self, under_way: _Pass, output: Output) -> None:
        under_way.is_whole = False
        if under_way.replica.gone:
            return
        task = under_way.task
        with suppress(DiskError):
            swap.discard(self._host.disk, task.directory, output.base_offset, task.token)

    def _sync_then(self, under_way: _Pass, synced: Callable[[], None]) -> None:
        """Sync the directory, then call `synced`.

        Repeated while it cannot be opened, for example without descriptors.
        """

        def done(error: str | None) -> None:
            if error is None:
                synced()
                return
            host = self._host
            host.say_once(
                f"compaction of {under_way.task.directory} waits, because the directory cannot be synced: "
                f"{error}"
            )
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
        """Run a job. A failed sync takes the log directory offline (R11)."""
        under_way = self._pass
        assert under_way is not None

        def finished(_result: Any, error: str | None) -> None:
            if error is not None and error == self._sync_error and not under_way.replica.gone:
                self._pass = None
                self._host.sync_failed(under_way.task.directory, error)
                return
            self._guarded(under_way, lambda: done(error))

        self._host.run(job, finished)
