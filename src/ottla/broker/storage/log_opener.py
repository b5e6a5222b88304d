"""Opens the log of a replica when it is first needed, or creates it.

After a clean shutdown the logs are not opened at the start (`LocalPartitions.unopened`), and a new topic's
logs are not created with the topic. A request that needs a log opens it. `create_logs` opens the others, a
few per turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.log.names import partition_dir
from ottla.model.limits import FILE_NAME_BYTES_MAX
from ottla.ports.disk import DiskError

if TYPE_CHECKING:
    from ottla.broker.storage.host import PartitionsHost
    from ottla.broker.storage.log_directory import LogDirectory
    from ottla.broker.storage.partitions import LocalPartitions
    from ottla.log.partition_log import PartitionLog
    from ottla.log.recovery import Recovered
    from ottla.replication.replica import Replica

#: Logs created or opened per turn in the background.
_CREATE_MAX: Final = 4
#: The cost of opening or creating a log (see `model/steps.py`).
_OPEN_COST: Final = 100


class LogOpener:
    def __init__(self, host: PartitionsHost, partitions: LocalPartitions) -> None:
        self._host = host
        self._partitions = partitions

    def create_logs(self) -> bool:
        """Create or open the logs of a few partitions; True if others are left."""
        host, to_create = self._host, self._partitions.to_create
        if host.log_maintenance.to_delete:
            # A deleted topic may have had the same name.
            return True
        for _ in range(min(_CREATE_MAX, len(to_create))):
            replica = to_create.popleft()
            if replica.gone or replica.opened or replica.offline is not None:
                continue
            try:
                replica.log  # noqa: B018  (opens it)
            except DiskError as error:
                # A shortage was logged once; the first request that needs the log tries again.
                if not error.passing:
                    host.say(f"cannot create the log of {replica.topic}-{replica.number}: {error}")
        return bool(to_create)

    def open(self, replica: Replica) -> PartitionLog:
        """The log of a replica that has none in memory. Raises DiskError."""
        self._host.slices.charge(_OPEN_COST)
        directory = self._partitions.unopened.pop(replica, None)
        log, is_damaged = (None, False) if directory is None else self._open_existing(replica, directory)
        if log is None:
            log = self._create(replica)
        if is_damaged and self._host.clustered:
            # R12: it must leave the ISR before it leads or follows.
            replica.adopt(log)
            self._host.replica_roles.damaged(replica)
            raise DiskError(f"{log.directory} is damaged: this replica leaves the ISR first")
        return log

    def _open_existing(self, replica: Replica, directory: LogDirectory) -> tuple[PartitionLog | None, bool]:
        """Open a log that was closed cleanly; returns the log, if any, and whether records are missing."""
        host = self._host
        try:
            recovered = directory.load(replica.topic, replica.number, replica.config, host.now_ms)
            if recovered is not None and recovered.log.recovery_point < directory.recovery_points.get(
                (replica.topic, replica.number), 0
            ):
                self.write_checkpoints(directory)
        except DiskError as error:
            if error.broken:
                host.go_offline(directory, str(error))
            else:
                # For example no file descriptor is free: the next request that needs the log tries again.
                self._partitions.unopened[replica] = directory
                host.write_failed(directory, error)
            raise
        directory.partitions -= 1
        if recovered is None:
            # The last run ended while it created this log: the log stays in the same directory.
            host.directories.chosen[replica.topic, replica.number] = directory
            return None, self.report_missing(replica)
        is_damaged = self.report_recovery(replica, recovered)
        self.attach(replica, directory, recovered.log)
        return recovered.log, is_damaged

    def _create(self, replica: Replica) -> PartitionLog:
        host = self._host
        topic_id = self._partitions.by_name[replica.topic].topic_id
        name = partition_dir(replica.topic, replica.number)
        if len(name) > FILE_NAME_BYTES_MAX:
            # Only a metadata log from before this limit has such a name. Other partitions are not affected.
            raise DiskError(f"{name}: a directory's name has at most {FILE_NAME_BYTES_MAX} bytes")
        directory = host.directories.place(replica.topic, replica.number)
        try:
            host.log_maintenance.check_name_is_free(directory, replica.topic, replica.number)
            log = directory.create(replica.topic, replica.number, topic_id, replica.config, host.wall_ms)
        except DiskError as error:
            # The next attempt uses the same directory: a partition must not be found in two.
            host.directories.chosen[replica.topic, replica.number] = directory
            host.write_failed(directory, error)
            raise
        self.attach(replica, directory, log)
        return log

    def attach(self, replica: Replica, directory: LogDirectory, log: PartitionLog) -> None:
        """Count a log in its directory, and report its write errors."""
        directory.partitions += 1
        log.on_failure = lambda error: self._host.write_failed(directory, error, replica)

    # --- missing records ------------------------------------------------------------------------------------

    def report_missing(self, replica: Replica) -> bool:
        """There is no log. If there was one, log that; returns whether the replica lacks durable records."""
        point = self._host.directories.recovery_point(replica.topic, replica.number)
        is_damaged = bool(point) and self._is_trusted(replica)
        if is_damaged:
            self._partitions.is_damaged = True
            self._host.say(
                f"the log of {replica.topic}-{replica.number} is gone: it reached at least offset {point}, "
                "and a new log begins at offset 0. Stop the broker and restore the log from a copy if you "
                "have one"
            )
        return is_damaged

    def report_recovery(self, replica: Replica, recovered: Recovered) -> bool:
        """Log what recovery cut off; returns whether the replica lacks durable records."""
        log = recovered.log
        if recovered.damaged:
            # R12: a broker on its own serves the rest, which is all there is. In a cluster the replica leaves
            # the ISR and fetches the missing records from the leader.
            self._host.say(
                f"{log.directory}: DAMAGED before its recovery point. Acknowledged records are missing, and "
                f"the log ends at offset {log.next_offset}. Restore it from a copy if you have one"
            )
        elif recovered.cut_bytes:
            self._host.say(
                f"{log.directory}: {recovered.cut_bytes} bytes of a torn tail were cut off, "
                f"the log ends at offset {log.next_offset}"
            )
        is_damaged = recovered.damaged and self._is_trusted(replica)
        self._partitions.is_damaged = self._partitions.is_damaged or is_damaged
        return is_damaged

    def _is_trusted(self, replica: Replica) -> bool:
        """Whether the metadata counts on the records of this replica. Any other fetches what it lacks."""
        host = self._host
        if not host.clustered:
            return True
        partition = host.image.topics[replica.topic].partitions[replica.number]
        node_id = host.config.node_id
        return node_id in partition.isr or node_id in partition.eligible or node_id == partition.last_leader

    def write_checkpoints(self, directory: LogDirectory) -> None:
        """A log ends before its recovery point: the next start must not trust that point."""
        for path, data in directory.checkpoint_files(self._host.open_logs(directory)).items():
            self._host.disk.replace_file(path, data)
