"""Log directories without room (R13): said once, looked at again until there is some, and said again then.

Nothing is decided here: whatever needs room tries to get it and is refused by the disk itself, so appends go on with the
first one that fits. But a person at the terminal must learn why clients are refused, once and not for every produce, and
that it is over. Called by whoever meets `DiskError.full`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.model.timer_wheel import Later
from ottla.ports.disk import DiskError

if TYPE_CHECKING:
    from ottla.broker.storage.host import DiskSpaceHost
    from ottla.broker.storage.log_directory import LogDirectory

#: What is written, and taken away again, to see whether there is room.
PROBE: Final = "room.probe"
_PROBE_BYTES: Final = 1 << 20
_RETRY_MS: Final = 2000


class DiskSpace:
    def __init__(self, host: DiskSpaceHost) -> None:
        self._host = host
        self._without: set[LogDirectory] = set()

    def missing(self, directory: LogDirectory, error: DiskError) -> None:
        """Something could not be written for want of room."""
        if directory not in self._without:
            self._without.add(directory)
            self._host.say(
                f"{directory.path} is short of descriptors or memory: {error}. What needs more is refused or waits until "
                "there are some: raise `ulimit -n`, or lower max.connections"
                if error.short
                else f"{directory.path} has no room: {error}. What needs more is refused until there is room: "
                "free some space, nothing has to be restarted"
            )
            self._look_later(directory)

    def _look_later(self, directory: LogDirectory) -> None:
        host = self._host
        host.timers.add(Later(lambda: self._look(directory)), host.now_ms + _RETRY_MS)

    def _look(self, directory: LogDirectory) -> None:
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
            self._look_later(directory)
            return
        self._without.discard(directory)
        self._host.say(f"{directory.path} has room again, appends go on")
