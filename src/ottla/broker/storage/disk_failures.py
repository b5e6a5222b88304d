"""Disk errors: which of them take a partition offline, which a whole log directory, and which pass.

- A failed fsync or an error of the device: the log directory is offline until the next start (`go_offline`).
- An error of one file alone: its partition is offline until the next start (`lose_one`).
- Missing disk space or file handles: appends fail until there is some again (R13, `disk_space.py`).

Partitions in other directories go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.storage.log_directory import LogDirectory
from ottla.log.segment import Segment
from ottla.model.errors import ErrorCode
from ottla.ports.disk import DamagedFile, DiskError
from ottla.replication.replica import Replica

if TYPE_CHECKING:
    from ottla.broker.core import Broker


class DiskFailures:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def sync_failed(self, path: str, error: str) -> None:
        """R11: a failed fsync is final. The pages it covered may be lost, whatever a second fsync returns."""
        directory = self._broker.directories.containing(path)
        if directory is not None:
            self.go_offline(directory, f"a sync failed: {error}")

    def sync_refused(self, target: tuple[Replica, Segment | None, Any], error: str) -> None:
        """A file could not be opened for its sync, for a reason of its own: only its partition goes offline."""
        replica = target[0]
        if replica.opened and not replica.gone:
            self.lose_one(replica, self._broker.directories.of(replica.log), error)

    def disk_failed(self, path: str, error: DiskError) -> None:
        """A read failed. After an error of the device the whole directory is offline."""
        directory = self._broker.directories.containing(path)
        if error.broken and directory is not None:
            self.go_offline(directory, str(error))
        elif isinstance(error, DamagedFile):
            # A consumer asks for the same offset again and again.
            self._broker.say_once(str(error))

    def write_failed(self, directory: LogDirectory, error: DiskError, replica: Replica | None = None) -> None:
        """R13: missing disk space may return; a device error is final; any other error is this partition's alone."""
        if error.broken:
            self.go_offline(directory, str(error))
        elif error.passing:
            self._broker.disk_space.missing(directory, error)
        elif error.torn and replica is not None:
            self.lose_one(replica, directory, str(error))
        else:
            self._broker.say_once(f"{error}. Other partitions in {directory.path} are not concerned")

    def go_offline(self, directory: LogDirectory, reason: str) -> None:
        """Take a log directory offline until the next start, with all partitions in it."""
        if directory.offline is not None:
            return
        broker = self._broker
        broker.directories.give_up(directory, reason)
        broker.log_dir_moves.directory_failed(directory)
        nothing_left = not broker.directories.online
        unopened = broker.partitions.unopened
        for replica in broker.partitions.replicas():
            if (
                nothing_left
                or unopened.get(replica) is directory
                or (replica.opened and replica.log.parent == directory.path)
            ):
                unopened.pop(replica, None)
                self._lose(replica, f"{directory.path} is offline: {reason}")

    def lose_one(self, replica: Replica, directory: LogDirectory, reason: str) -> None:
        """Take one partition offline until the next start. The others in its directory go on."""
        self._broker.say_once(
            f"{replica.topic}-{replica.number} is offline until the next start: {reason}. "
            f"The other partitions in {directory.path} are not concerned"
        )
        # No mark of a clean shutdown: the next start must recover this log.
        directory.sync_error = directory.sync_error or reason
        self._lose(replica, reason)

    def _lose(self, replica: Replica, reason: str) -> None:
        """A partition has no log any more: fail the requests that wait for it."""
        broker = self._broker
        replica.lose(reason)
        broker.partitions.has_offline = True
        broker.purgatory.fail_waiting(replica, ErrorCode.KAFKA_STORAGE_ERROR)
        broker.replica_roles.damaged(replica)
        broker.purgatory.role_changed(replica)
