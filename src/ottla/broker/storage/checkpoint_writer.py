"""Writes the checkpoint files of one log directory: recovery points, start offsets, watermarks.

One write at a time, off the event loop; requests that arrive meanwhile are covered by the next one. A caller
may name files that must be durable before it (`before`), and an action for when it is durable (`after`). For
example, a new log start offset is durable before the files in front of it are deleted. Only lines that
changed are rendered again, and a long write is followed by a pause. Each directory has its own writer
(`LogMaintenance.checkpoints`), so that a directory that fails or is slow does not delay the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ottla.model.timer_wheel import Later
from ottla.ports.disk import Disk, DiskError, File

if TYPE_CHECKING:
    from ottla.broker.storage.host import CheckpointHost
    from ottla.broker.storage.log_directory import LogDirectory
    from ottla.replication.replica import Replica

#: Rendering takes about 0.1 µs per log. With this pause it takes at most 1 % of the event loop.
_LINES_PER_MS_OF_PAUSE: Final = 100

_RETRY_MS: Final = 2000


class CheckpointWriter:
    def __init__(self, host: CheckpointHost, directory: LogDirectory) -> None:
        self._host = host
        self._directory = directory
        self._wanted = False
        #: A write, or the pause after one, is under way.
        self._busy = False
        #: Logs that changed since the last write.
        self._changed: dict[Replica, None] = {}
        self._before: list[tuple[list[File], str]] = []
        self._after: list[Callable[[], None]] = []

    def want(
        self,
        changed: Replica | None = None,
        *,
        before: tuple[list[File], str] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        """Request a write, because this log has `changed`.

        `before`: files and a directory to sync first. `after`: called when the checkpoints are durable.
        """
        if changed is not None:
            self._changed[changed] = None
        if before is not None:
            self._before.append(before)
        if after is not None:
            self._after.append(after)
        self._wanted = True
        self._write()

    def _write(self) -> None:
        directory = self._directory
        if self._busy or not self._wanted or directory.offline is not None:
            return
        self._wanted, self._busy = False, True
        before, self._before = self._before, []
        after, self._after = self._after, []
        host = self._host
        changed, self._changed = self._changed, {}
        # A log may have been deleted, failed or moved meanwhile.
        changed_logs = (
            (replica.topic, replica.number, log, replica.high_watermark)
            for replica in changed
            if not replica.gone and replica.opened and (log := replica.log).parent == directory.path
        )
        files = directory.checkpoint_files([*changed_logs, *host.log_dir_moves.arriving(directory)])

        def job(disk: Disk) -> DiskError | None:
            try:
                for loose, of_partition in before:
                    for file in loose:
                        disk.sync(file)
                    disk.sync_dir(of_partition)
                for path, data in files.items():
                    disk.replace_file(path, data)
            except DiskError as error:
                if error.broken:
                    directory.sync_error = str(error)
                return error
            return None

        def pause_over() -> None:
            self._busy = False
            self._write()

        def done(failed: DiskError | None, error: str | None) -> None:
            if error is not None:
                # An internal error, not an error of the disk: retried.
                failed = DiskError(error)
            if failed is not None and failed.broken:
                # R11: a second sync would report success although the data may be lost.
                host.go_offline(directory, f"a sync failed: {failed}")
                return
            if failed is not None:
                self._before += before
                self._after += after
                self._busy = False
                self._failed(failed)
                return
            for action in after:
                host.isolation.run("what waited for a checkpoint", action)
            pause_ms = directory.checkpoint_lines // _LINES_PER_MS_OF_PAUSE
            if pause_ms:
                host.timers.add(Later(pause_over), host.now_ms + pause_ms)
            else:
                pause_over()

        self._host.run(job, done)

    def _failed(self, error: DiskError) -> None:
        """Only the next start takes longer. Retried, because of the actions that wait."""
        host = self._host
        if error.passing:
            host.disk_space.missing(self._directory, error)
        else:
            host.say_once(
                f"the checkpoints of {self._directory.path} could not be written, and are retried: {error}. "
                "A start after a crash takes longer meanwhile"
            )
        host.timers.add(Later(self.want), host.now_ms + _RETRY_MS)
