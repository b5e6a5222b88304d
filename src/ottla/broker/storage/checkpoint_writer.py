"""Writing down where the logs of one directory stand: their recovery points, starts and watermarks.

One writing at a time, off the loop; what comes meanwhile is covered by the next. Something may have to be durable before
it (`before`), and something may only be done once it is (`after`): a new log start is durable before the files in front of
it go. Only what has changed since the last one is rendered anew, and a long one is followed by a rest. There is one of these for each log directory (`Upkeep.checkpoints`), so that a directory that fails or is slow
holds up no other.
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

#: A checkpoint takes the loop some 0.1 µs a log: with that much rest after each, a hundredth of its time at most.
_LINES_PER_MS_OF_REST: Final = 100

_RETRY_MS: Final = 2000


class CheckpointWriter:
    def __init__(self, host: CheckpointHost, directory: LogDirectory) -> None:
        self._host = host
        self._directory = directory
        self._wanted = False
        #: Whether one is being written, or was a moment ago.
        self._busy = False
        #: Logs that the files are behind of.
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
        """Ask for one, because this log has `changed`. `before`: files and a directory to sync; `after`: what to do then."""
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
        # A log may have gone, failed or moved elsewhere meanwhile.
        standing = (
            (replica.topic, replica.number, log, replica.high_watermark)
            for replica in changed
            if not replica.gone and replica.opened and (log := replica.log).parent == directory.path
        )
        files = directory.checkpoint_files([*standing, *host.log_dir_moves.arriving(directory)])

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

        def rested() -> None:
            self._busy = False
            self._write()

        def done(failed: DiskError | None, error: str | None) -> None:
            if error is not None:
                # An internal error and not the disk's: tried again.
                failed = DiskError(error)
            if failed is not None and failed.broken:
                # R11: a second sync would succeed, whatever became of what this one was for.
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
            rest_ms = directory.checkpoint_lines // _LINES_PER_MS_OF_REST
            if rest_ms:
                host.timers.add(Later(rested), host.now_ms + rest_ms)
            else:
                rested()

        self._host.run(job, done)

    def _failed(self, error: DiskError) -> None:
        """Nothing is lost by it but time at the next start. Tried again after a while, for what waits for it."""
        host = self._host
        if error.passing:
            host.disk_space.missing(self._directory, error)
        else:
            host.say_once(f"the checkpoints could not be written: {error}; the next start reads more again")
        host.timers.add(Later(self.want), host.now_ms + _RETRY_MS)
