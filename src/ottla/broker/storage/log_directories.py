"""The directories that hold this broker's logs: which of them are there, which new logs go where, and whose a file is.

A directory is online until something in it fails, and then offline until the next start: `core.go_offline` decides what
that means for the partitions in it. One that cannot even be opened is offline from the start. A partition that is in no
directory that is online, while some directory is not, is taken to be in that one: it is not created anew elsewhere.

A new log goes to the online directory with the fewest partitions, unless somebody has asked for another.
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
    """No directory can be used, or what is in them contradicts itself; the message says which and what to do."""


class LogDirectories:
    def __init__(
        self, disk: Disk, paths: Iterable[str], say: Callable[[str], None], unusable: Mapping[str, str]
    ) -> None:
        """`unusable` says of directories that could not be locked why."""
        self._disk = disk
        self._say = say
        self.all = [LogDirectory(disk, path.rstrip("/") or "/", say) for path in paths]
        self._by_path = {directory.path: directory for directory in self.all}
        #: Where logs go that somebody has chosen a directory for before they were made.
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
        """The directory of this name."""
        return self._by_path.get(path.rstrip("/") or "/")

    def of(self, log: PartitionLog) -> LogDirectory:
        return self._by_path[log.parent]

    def containing(self, path: str) -> LogDirectory | None:
        """The directory that a file belongs to."""
        for directory in self.all:
            if path == directory.path or path.startswith(directory.path.rstrip("/") + "/"):
                return directory
        return None

    def recovery_point(self, topic: str, number: int) -> int:
        """How far a partition's log had been flushed when the last run ended, 0 if nothing is known of it."""
        return max((each.recovery_points.get((topic, number), 0) for each in self.online), default=0)

    def place(self, topic: str, number: int) -> LogDirectory:
        """Where a new log goes. Raises DiskError if nothing is left."""
        chosen = self.chosen.pop((topic, number), None)
        if chosen is not None and chosen.offline is None:
            return chosen
        online = self.online
        if not online:
            raise DiskError(_ALL_OFFLINE)
        return min(online, key=lambda directory: directory.partitions)

    def give_up(self, directory: LogDirectory, reason: str) -> None:
        """A directory cannot be used any more."""
        directory.offline = reason
        self._say(
            f"{directory.path} is offline, nothing is read from it or written to it until the next start: {reason}. "
            "Look after the disk, then restart"
        )

    # --- the start --------------------------------------------------------------------------------------------

    def _unusable(self, directory: LogDirectory, error: DiskError) -> None:
        """A directory itself cannot be used. Short of descriptors or memory the start is refused: no directory is to blame."""
        if error.short:
            raise error
        self.give_up(directory, str(error))

    def unused_cluster_id(self) -> str | None:
        """The cluster of these directories, if no partition was ever in one; else the metadata must know it."""
        try:
            if all(directory.is_unused() for directory in self.online):
                return next(filter(None, (directory.cluster_id() for directory in self.online)), None)
        except DiskError:
            # `open` will meet it again, and say whose it is.
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
                    f"{other.path} and {directory.path} have the same directory.id: one is a copy of the other, "
                    "and log.dirs may name only one of them"
                )
        self.check_any_left()

    def check_any_left(self) -> None:
        if not self.online:
            reasons = "; ".join(f"{directory.path}: {directory.offline}" for directory in self.all)
            raise NoDirectory(f"no log directory can be used: {reasons}")

    def survey(
        self, known: Callable[[str, int, bytes | None], bool], removed: Collection[bytes | None]
    ) -> tuple[dict[Partition, LogDirectory], dict[LogDirectory, Survey]]:
        """Which directory each partition is in, and what else was found. Raises NoDirectory if one is in two."""
        homes: dict[Partition, LogDirectory] = {}
        surveys: dict[LogDirectory, Survey] = {}
        for directory in self.online:
            try:
                surveys[directory] = directory.survey(known, removed)
                for partition in surveys[directory].partitions:
                    other = homes.setdefault(partition, directory)
                    if other is not directory:
                        blank = _blank_one(partition, other, directory)
                        homes[partition] = directory if blank is other else other
                        surveys[blank].strays.append(blank.partition_path(*partition))
            except DiskError as error:
                self._unusable(directory, error)
                surveys.pop(directory, None)
        self.check_any_left()
        return homes, surveys

    def set_aside(self, surveys: Mapping[LogDirectory, Survey], new_id: Callable[[], bytes]) -> None:
        """What is not ours may be somebody's only copy: it is not removed, only moved out of the way of new topics."""
        for directory, found in surveys.items():
            for topic, number in found.unknown:
                path = directory.partition_path(topic, number)
                try:
                    aside = directory.set_aside(topic, number, new_id())
                except DiskError as error:
                    self._say(f"{path} is of no topic here, and could not be renamed: {error}")
                else:
                    self._say(
                        f"{path} is of no topic here and is not served. It is now called {aside}; "
                        "remove it if nobody needs it"
                    )
            if found.unknown:
                try:
                    # A crash that brought the old name back could find a topic by then that is called so.
                    self._disk.sync_dir(directory.path)
                except DiskError as error:
                    self._unusable(directory, error)

    def remove_strays(self, surveys: Iterable[Survey]) -> None:
        """Remove what no topic knows any more, and what was on its way out."""
        for found in surveys:
            # A move that a crash interrupted is judged by what is left of its source. Where a directory cannot be
            # looked at, it may yet be needed.
            retired = () if self.offline else found.retired.values()
            for path in (*found.strays, *retired):
                try:
                    self._disk.remove_dir(path)
                except DiskError as error:
                    self._say(f"{path} could not be removed: {error}")


def _blank_one(partition: Partition, first: LogDirectory, second: LogDirectory) -> LogDirectory:
    """Which of two directories has no records of a partition. Raises NoDirectory if both have some."""
    for directory in (first, second):
        if directory.is_blank(*partition):
            return directory
    raise NoDirectory(
        f"{partition_dir(*partition)} is in {first.path} and in {second.path}: move one of the two out of the way, "
        "the one that is older or shorter, and start again"
    )
