"""The log directories of this broker (`log.dirs`): which are online, where new logs go, which holds a file.

A directory is online until something in it fails, then offline until the next start; `Broker.go_offline`
takes its partitions offline. A directory that cannot be opened is offline from the start. While a directory
is offline, a partition that is in no online directory is taken to be in that one, and is not re-created
elsewhere.

A new log goes to the online directory with the fewest partitions, unless AlterReplicaLogDirs has chosen
another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from ottla.broker.storage.log_directory import ForeignDirectory, LogDirectory, Survey
from ottla.log.checkpoints import Partition
from ottla.log.names import partition_dir
from ottla.log.partition_log import PartitionLog
from ottla.ports.disk import Disk, DiskError

_ALL_OFFLINE: Final = "every log directory is offline"


class NoDirectory(Exception):
    """No directory can be used, or a partition is in two. The message says which and what to do."""


class LogDirectories:
    def __init__(
        self, disk: Disk, paths: Iterable[str], log_line: Callable[[str], None], unusable: Mapping[str, str]
    ) -> None:
        """`unusable`: the reasons, by path, why directories could not be locked.

        `log_line` writes to the broker's log.
        """
        self._disk = disk
        self._log_line = log_line
        self.all = [LogDirectory(disk, path.rstrip("/") or "/", log_line) for path in paths]
        self._by_path = {directory.path: directory for directory in self.all}
        #: Directories chosen for logs that do not exist yet.
        self.chosen: dict[Partition, LogDirectory] = {}
        for directory in self.all:
            if directory.path in unusable:
                self.give_up(directory, unusable[directory.path])

    @property
    def online(self) -> list[LogDirectory]:
        return [directory for directory in self.all if directory.offline is None]

    @property
    def offline(self) -> list[LogDirectory]:
        return [directory for directory in self.all if directory.offline is not None]

    def at(self, path: str) -> LogDirectory | None:
        """The directory with this path."""
        return self._by_path.get(path.rstrip("/") or "/")

    def of(self, log: PartitionLog) -> LogDirectory:
        return self._by_path[log.parent]

    def containing(self, path: str) -> LogDirectory | None:
        """The directory that holds a file."""
        for directory in self.all:
            if path == directory.path or path.startswith(directory.path.rstrip("/") + "/"):
                return directory
        return None

    def recovery_point(self, topic: str, number: int) -> int:
        """The recovery point of a partition when the last run ended; 0 if there is none."""
        return max((each.recovery_points.get((topic, number), 0) for each in self.online), default=0)

    def place(self, topic: str, number: int) -> LogDirectory:
        """The directory for a new log. Raises DiskError if all are offline."""
        chosen = self.chosen.pop((topic, number), None)
        if chosen is not None and chosen.offline is None:
            return chosen
        online = self.online
        if not online:
            raise DiskError(_ALL_OFFLINE)
        return min(online, key=lambda directory: directory.partitions)

    def give_up(self, directory: LogDirectory, reason: str) -> None:
        """Take a directory offline until the next start."""
        directory.offline = reason
        self._log_line(
            f"{directory.path} is offline until the next start, its partitions are not served: {reason}. "
            "Check the disk, then restart the broker"
        )

    # --- the start ------------------------------------------------------------------------------------------

    def _unusable(self, directory: LogDirectory, error: DiskError) -> None:
        """A directory cannot be used.

        Without free descriptors or memory the start fails: the directory may be fine.
        """
        if error.short:
            raise error
        self.give_up(directory, str(error))

    def unused_cluster_id(self) -> str | None:
        """The cluster id in these directories, if no partition was ever in one: else the metadata has it."""
        try:
            if all(directory.is_unused() for directory in self.online):
                return next(filter(None, (directory.cluster_id() for directory in self.online)), None)
        except DiskError:
            # `open` meets the same error and names the directory.
            pass
        return None

    def open(self, *, cluster_id: str, node_id: int, new_id: Callable[[], bytes]) -> None:
        for directory in self.online:
            try:
                directory.open(cluster_id=cluster_id, node_id=node_id, new_id=new_id)
            except DiskError as error:
                self._unusable(directory, error)
        by_id: dict[bytes, LogDirectory] = {}
        for directory in self.online:
            other = by_id.setdefault(directory.directory_id, directory)
            if other is not directory:
                raise ForeignDirectory(
                    f"{other.path} and {directory.path} have the same directory.id: one is a copy of the "
                    "other, and log.dirs may name only one of them"
                )
        self.check_any_left()

    def check_any_left(self) -> None:
        if not self.online:
            reasons = "; ".join(f"{directory.path}: {directory.offline}" for directory in self.all)
            raise NoDirectory(f"no log directory can be used: {reasons}")

    def survey(
        self, known: Callable[[str, int, bytes | None], bool], removed: Collection[bytes | None]
    ) -> tuple[dict[Partition, LogDirectory], dict[LogDirectory, Survey]]:
        """The directory of each partition, and the survey of each directory.

        Raises NoDirectory if a partition is in two.
        """
        homes: dict[Partition, LogDirectory] = {}
        surveys: dict[LogDirectory, Survey] = {}
        for directory in self.online:
            try:
                surveys[directory] = directory.survey(known, removed)
                for partition in surveys[directory].partitions:
                    other = homes.setdefault(partition, directory)
                    if other is not directory:
                        empty = _empty_one(partition, other, directory)
                        homes[partition] = directory if empty is other else other
                        surveys[empty].strays.append(empty.partition_path(*partition))
            except DiskError as error:
                self._unusable(directory, error)
                surveys.pop(directory, None)
        self.check_any_left()
        return homes, surveys

    def set_aside(self, surveys: Mapping[LogDirectory, Survey], new_id: Callable[[], bytes]) -> None:
        """Rename the logs that no topic knows, so that no new topic uses them.

        They may be the only copy: keep them.
        """
        for directory, found in surveys.items():
            for topic, number in found.unknown:
                path = directory.partition_path(topic, number)
                try:
                    aside = directory.set_aside(topic, number, new_id())
                except DiskError as error:
                    self._log_line(
                        f"no topic owns {path}, and it could not be renamed: {error}. Move it away by hand"
                    )
                else:
                    self._log_line(
                        f"no topic owns {path}: it is not served, and was renamed to {aside}. "
                        "Delete it if nobody needs it"
                    )
            if found.unknown:
                try:
                    # A crash could bring the old name back, when a new topic has that name.
                    self._disk.sync_dir(directory.path)
                except DiskError as error:
                    self._unusable(directory, error)

    def remove_strays(self, surveys: Iterable[Survey]) -> None:
        """Delete the logs of deleted topics, and directories that were about to be deleted."""
        for found in surveys:
            # The retired source of a move tells whether the copy is complete. While a directory is offline
            # that may be needed at the next start.
            retired = () if self.offline else found.retired.values()
            for path in (*found.strays, *retired):
                try:
                    self._disk.remove_dir(path)
                except DiskError as error:
                    self._log_line(
                        f"{path} is not used any more and could not be removed: {error}. Remove it by hand"
                    )


def _empty_one(partition: Partition, first: LogDirectory, second: LogDirectory) -> LogDirectory:
    """The one of two directories in which a partition has no segment.

    Raises NoDirectory if both have some.
    """
    for directory in (first, second):
        if directory.is_empty(*partition):
            return directory
    raise NoDirectory(
        f"{partition_dir(*partition)} is in {first.path} and in {second.path}: move the older or shorter of "
        "the two out of log.dirs, and start again"
    )
