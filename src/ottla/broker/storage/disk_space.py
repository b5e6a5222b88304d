"""Log directories that are full (R13) or lack file descriptors: logged once, probed, and logged at the end.

Nothing is decided here. A write that needs space fails by itself, so appends go on as soon as one fits. But
an operator must see why clients get errors, once and not for every produce, and when it is over. Called
wherever a `DiskError` is `passing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.model.timer_wheel import Later
from ottla.ports.disk import DiskError

if TYPE_CHECKING:
    from ottla.broker.storage.host import DiskSpaceHost
    from ottla.broker.storage.log_directory import LogDirectory

#: A file that is written and removed again to see whether there is space.
PROBE: Final = "room.probe"
_PROBE_BYTES: Final = 1 << 20
_RETRY_MS: Final = 2000


class DiskSpace:
    def __init__(self, host: DiskSpaceHost) -> None:
        self._host = host
        self._full: set[LogDirectory] = set()

    def missing(self, directory: LogDirectory, error: DiskError) -> None:
        """A write failed: no disk space, no file descriptor or no memory."""
        if directory not in self._full:
            self._full.add(directory)
            self._host.say(
                f"{directory.path}: no file descriptors or memory left: {error}. Requests that need a file "
                "fail or wait until some are free. Raise `ulimit -n`, or lower max.connections"
                if error.short
                else f"{directory.path} is out of disk space: {error}. Writes fail until there is space. "
                "Free some; no restart is needed"
            )
            self._probe_later(directory)

    def _probe_later(self, directory: LogDirectory) -> None:
        host = self._host
        host.timers.add(Later(lambda: self._probe(directory)), host.now_ms + _RETRY_MS)

    def _probe(self, directory: LogDirectory) -> None:
        if directory.offline is not None:
            return
        disk, path = self._host.disk, f"{directory.path}/{PROBE}"
        try:
            file = disk.open(path, create=True)
            try:
                disk.write(file, 0, (bytes(_PROBE_BYTES),))
            finally:
                disk.close(file)
                disk.remove(path)
        except DiskError as error:
            if error.broken:
                self._host.go_offline(directory, str(error))
                return
            self._probe_later(directory)
            return
        self._full.discard(directory)
        self._host.say(f"{directory.path} has disk space again, appends go on")
