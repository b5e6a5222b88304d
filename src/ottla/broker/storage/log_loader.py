"""Loads the logs at the start of the broker: finds them in the log directories, and opens or recovers them.

After a clean shutdown a log is not opened here, only registered as unopened (`log_opener.py`). After a crash
every log is recovered before the first request, so a start that cannot open a log says so at once.

Logs of deleted topics, and of partitions that were reassigned while the broker was down, are deleted.
Directories that no topic knows are renamed and kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from ottla.broker.storage.future_log import recover_future_logs
from ottla.ports.disk import DiskError

if TYPE_CHECKING:
    from ottla.broker.storage.host import PartitionsHost
    from ottla.broker.storage.log_directory import LogDirectory
    from ottla.broker.storage.log_opener import LogOpener
    from ottla.broker.storage.partitions import LocalPartitions
    from ottla.log.recovery import Recovered
    from ottla.metadata.image import Image
    from ottla.replication.replica import Replica


class LogLoader:
    """One start. `load` is called once."""

    def __init__(self, host: PartitionsHost, partitions: LocalPartitions, opener: LogOpener) -> None:
        self._host = host
        self._partitions = partitions
        self._opener = opener
        #: Directories in which a log ends before its recovery point.
        self._lowered: set[LogDirectory] = set()
        self._scanned_bytes: dict[LogDirectory, int] = {}
        self._cut_bytes: dict[LogDirectory, int] = {}
        #: Recovered logs under the durable policy, which must be synced before they are served.
        self._unsynced: dict[LogDirectory, list[Replica]] = {}

    def load(self, image: Image, removed: Collection[bytes | None], now_ms: int) -> None:
        """Add the replicas of the image, load their logs, and delete the logs of removed topics."""
        host, partitions = self._host, self._partitions
        directories = host.directories

        def known(topic: str, number: int, topic_id: bytes | None) -> bool:
            there = image.topics.get(topic)
            return (
                there is not None
                and number < len(there.partitions)
                and (topic_id is None or topic_id == there.topic_id)
            )

        homes, surveys = directories.survey(known, {*removed, *image.removed})
        moves = recover_future_logs(host, image, homes, list(surveys.values()))
        directories.remove_strays(surveys.values())
        directories.set_aside(surveys, host.entropy.id_bytes)
        for topic in image.topics.values():
            for replica in partitions.add_replicas(topic.name, topic.topic_id, topic.partitions):
                directory = homes.get((topic.name, replica.number))
                if directory is not None:
                    self._load_log(replica, directory, now_ms)
                elif not directories.offline:
                    self._opener.report_missing(replica)
        for directory, replicas in self._unsynced.items():
            self._sync_recovered(directory, replicas)
        self._delete_reassigned(homes)
        if directories.offline:
            self._take_missing_offline()
        directories.check_any_left()
        for directory in self._lowered:
            self._opener.write_checkpoints(directory)
        self._report_recovery()
        for (name, number), directory in moves.items():
            replica = partitions.by_name[name].replicas[number]
            if (replica.opened or replica in partitions.unopened) and directory.offline is None:
                with suppress(DiskError):
                    replica.log  # noqa: B018  (opens it)
                    host.log_dir_moves.begin(replica, directory)

    def _load_log(self, replica: Replica, directory: LogDirectory, now_ms: int) -> None:
        topic, number = replica.topic, replica.number
        replica.restore(directory.high_watermarks.get((topic, number), 0))
        if directory.offline is not None:
            return
        if directory.clean:
            # Opened when it is first needed, or after the first requests have been served.
            self._partitions.unopened[replica] = directory
            directory.expect(topic, number)
            return
        try:
            recovered = directory.load(topic, number, replica.config, now_ms)
            if recovered is None:
                # The last run ended while it created this log: the log stays in the same directory.
                self._host.directories.chosen[topic, number] = directory
                self._opener.report_missing(replica)
                return
            self._adopt(replica, directory, recovered)
        except DiskError as error:
            self._load_failed(replica, directory, error)
            return
        self._scanned_bytes[directory] = self._scanned_bytes.get(directory, 0) + recovered.scanned_bytes
        self._cut_bytes[directory] = self._cut_bytes.get(directory, 0) + recovered.cut_bytes
        if recovered.log.recovery_point < directory.recovery_points.get((topic, number), 0):
            self._lowered.add(directory)

    def _load_failed(self, replica: Replica, directory: LogDirectory, error: DiskError) -> None:
        """A log could not be opened. Without free descriptors or memory the start fails (`CALL_SITES`)."""
        if error.short:
            raise error
        if error.broken or error.full:
            self._host.go_offline(directory, str(error))
        else:
            directory.expect(replica.topic, replica.number)
            self._host.lose_one(replica, directory, str(error))

    def _adopt(self, replica: Replica, directory: LogDirectory, recovered: Recovered) -> None:
        host, log = self._host, recovered.log
        self._opener.attach(replica, directory, log)
        replica.adopt(log)
        self._opener.report_recovery(replica, recovered)
        if not log.unsynced:
            return
        host.log_maintenance.written(replica, host.now_ms)
        if replica.durable:
            self._unsynced.setdefault(directory, []).append(replica)
        else:
            host.sync(replica, log)

    def _sync_recovered(self, directory: LogDirectory, replicas: list[Replica]) -> None:
        """Sync the records that recovery has read, and advance the high watermarks, before the first request.

        Otherwise a consumer that comes back would find the log ending before its position.
        """
        try:
            directory.sync_logs(
                [
                    (
                        [*replica.log.loose, *(segment.file for segment in replica.log.unsynced)],
                        replica.log.directory,
                    )
                    for replica in replicas
                    if replica.opened
                ]
            )
        except DiskError as error:
            failed = [each for each in replicas if each.opened and error.path.startswith(each.log.directory)]
            if error.passing or error.broken or not failed:
                if error.short:
                    raise
                self._host.go_offline(directory, str(error))
                return
            for replica in failed:
                self._host.lose_one(replica, directory, str(error))
            self._sync_recovered(directory, [each for each in replicas if each not in failed])
            return
        for replica in replicas:
            if replica.opened:
                replica.log.settle_loose(tuple(replica.log.loose))
                for segment in list(replica.log.unsynced):
                    replica.log.synced(segment, segment.next_offset)
                replica.advance()

    def _delete_reassigned(self, homes: Mapping[tuple[str, int], LogDirectory]) -> None:
        """Delete the logs of partitions that were reassigned to other brokers while this one was down."""
        partitions = self._partitions
        for (name, number), directory in homes.items():
            if number not in partitions.by_name[name].replicas and directory.offline is None:
                self._host.log_maintenance.delete_log(directory, name, number, partitions.topic_config(name))

    def _take_missing_offline(self) -> None:
        """A missing log may be in a directory that is offline: it must not be re-created elsewhere."""
        directories = self._host.directories
        reasons = "; ".join(f"{each.path} is offline: {each.offline}" for each in directories.offline)
        for replica in self._partitions.replicas():
            if (
                not replica.opened
                and replica not in self._partitions.unopened
                and (replica.topic, replica.number) not in directories.chosen
            ):
                self._partitions.has_offline = True
                replica.lose(reasons)

    def _report_recovery(self) -> None:
        scanned = sum(size for directory, size in self._scanned_bytes.items() if not directory.clean)
        if scanned:
            cut = sum(size for directory, size in self._cut_bytes.items() if not directory.clean)
            self._host.say(
                f"recovered after an unclean shutdown: {scanned:,} bytes read again, {cut:,} cut off"
            )
