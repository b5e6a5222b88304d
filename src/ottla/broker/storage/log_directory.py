"""One log directory: its identity (`meta.properties`), its checkpoints, opening and closing of its logs.

Decisions over the Disk port, without any other I/O. `LogDirectories` has the list of them. After a clean
shutdown the file `.kafka_cleanshutdown` says that every log ends at its recovery point. The next start
removes the file, so a start without it follows a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from ottla.config.topic import TopicConfig
from ottla.log import checkpoints, names
from ottla.log.flush import leave_snapshot
from ottla.log.partition_log import PartitionLog
from ottla.log.recovery import Recovered, open_log
from ottla.ports.disk import Disk, DiskError, File

#: With more logs than this, one sync of the device is faster than a sync of each file and directory.
_SYNC_DEVICE_FROM: Final = 16

_ID_BYTES: Final = 16


class ForeignDirectory(Exception):
    """The directory belongs to another cluster or another broker."""


class Future(NamedTuple):
    """A future log (KIP-113) that a start finds: the copy of a log that was being moved to this directory."""

    directory: LogDirectory
    path: str
    topic_id: bytes
    number: int
    #: The digits in its name. If the retired source has the same, the copy is complete and needs only its
    #: name.
    unique: str


class LogOffsets(Protocol):
    """The offsets of a log that the checkpoints keep."""

    @property
    def recovery_point(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def cleaned_offset(self) -> int: ...


class Survey(NamedTuple):
    """The contents of a log directory, by the names in it."""

    partitions: list[checkpoints.Partition]
    futures: list[Future]
    #: Paths of the logs of deleted topics, and of other directories to delete.
    strays: list[str]
    #: Directories with the name of a partition that belong to no existing or deleted topic.
    unknown: list[checkpoints.Partition]
    #: Paths of directories that were about to be deleted, by the digits in their names.
    retired: dict[str, str]


class LogDirectory:
    __slots__ = (
        "_cleaned", "_points", "_starts", "_watermarks", "clean", "cleaned_offsets", "directory_id", "disk",
        "high_watermarks", "log_line", "log_starts", "offline", "partitions", "path", "recovery_points",
        "sync_error", "was_kafkas", "was_unused",
    )  # fmt: skip

    def __init__(self, disk: Disk, path: str, log_line: Callable[[str], None]) -> None:
        self.disk = disk
        self.path = path
        self.log_line = log_line
        #: Why it is offline; None while it is online.
        self.offline: str | None = None
        #: Why a background sync failed. Set by the job itself, because a stopping broker runs no callbacks.
        self.sync_error: str | None = None
        #: The number of partitions in it, with those being moved to it.
        self.partitions = 0
        self.clean = False
        #: It was imported from Kafka, whose log cleaner leaves gaps between segments. Ours leaves none.
        self.was_kafkas = False
        self.directory_id = b""
        self.recovery_points: dict[checkpoints.Partition, int] = {}
        self.log_starts: dict[checkpoints.Partition, int] = {}
        self.high_watermarks: dict[checkpoints.Partition, int] = {}
        #: It was new at this start.
        self.was_unused = False
        self.cleaned_offsets: dict[checkpoints.Partition, int] = {}
        # The lines of the next checkpoints: of each log in it, or about to be.
        self._points = checkpoints.OffsetLines()
        self._starts = checkpoints.OffsetLines()
        self._watermarks = checkpoints.OffsetLines()
        self._cleaned = checkpoints.OffsetLines()

    def open(self, *, cluster_id: str, node_id: int, new_id: Callable[[], bytes]) -> None:
        """Check which broker owns the directory, initialise it if it is new, and read its checkpoints.

        Raises ForeignDirectory and DiskError.
        """
        disk, path = self.disk, self.path
        disk.make_dir(path)
        written = disk.read_file(f"{path}/{names.META_PROPERTIES}")
        properties = checkpoints.parse_properties(written)
        for name, ours in (("cluster.id", cluster_id), ("node.id", str(node_id))):
            if name in properties and properties[name] != ours:
                raise ForeignDirectory(
                    f"{path} belongs to {name} {properties[name]}, this broker has {ours}: "
                    "start it with its own --data-dir, or with the id the directory was made with"
                )
        if not _is_id(properties.get("directory.id")) or properties.get("version") != "1":
            if written:
                self._set_damaged_aside(written)
            self.was_unused = self.is_unused()
            # The name of the directory must be durable before the properties in it.
            above, slash, _ = path.rpartition("/")
            disk.sync_dir(above or slash or ".")
            properties = {
                "version": "1", "cluster.id": cluster_id, "node.id": str(node_id),
                "directory.id": names.id_text(new_id()),
            }  # fmt: skip
            disk.replace_file(f"{path}/{names.META_PROPERTIES}", checkpoints.render_properties(properties))
        self.directory_id = names.parse_id(properties["directory.id"])
        mark = f"{path}/{names.CLEAN_SHUTDOWN}"
        self.clean = disk.read_file(mark) is not None
        self.recovery_points = self._offsets(names.RECOVERY_POINTS)
        self.log_starts = self._offsets(names.LOG_STARTS)
        self.high_watermarks = self._offsets(names.HIGH_WATERMARKS)
        self.cleaned_offsets = self._offsets(names.CLEANED_OFFSETS)
        self.was_kafkas = disk.read_file(f"{path}/{names.TAKEN_OVER}") is not None
        if self.clean:
            disk.remove(mark)
            disk.sync_dir(path)

    def _set_damaged_aside(self, written: bytes) -> None:
        """Keep the invalid properties in a file of their own before they are replaced, and log that."""
        path = f"{self.path}/{names.META_PROPERTIES}"
        try:
            self.disk.replace_file(f"{path}.damaged", written)
            kept = f"its {len(written)} bytes are kept in {path}.damaged"
        except DiskError as error:
            kept = f"its {len(written)} bytes could not be kept: {error}"
        self.log_line(
            f"{path} has no valid version or directory.id and is replaced with a new directory.id; {kept}"
        )

    def is_unused(self) -> bool:
        """Whether no partition was ever in it."""
        return not any(names.parse_partition_dir(name) for name in self.disk.list(self.path))

    def cluster_id(self) -> str | None:
        """The cluster id in its properties, if there are any."""
        properties = checkpoints.parse_properties(self.disk.read_file(f"{self.path}/{names.META_PROPERTIES}"))
        return properties.get("cluster.id")

    def _offsets(self, name: str) -> dict[checkpoints.Partition, int]:
        data = self.disk.read_file(f"{self.path}/{name}")
        offsets = checkpoints.parse_offsets(data)
        # An empty file is valid: Kafka creates it first and fills it later.
        if offsets is None and data:
            self.log_line(
                f"{self.path}/{name} is damaged and ignored: the logs are read again from their start"
            )
        return offsets or {}

    def partition_path(self, topic: str, number: int) -> str:
        return f"{self.path}/{names.partition_dir(topic, number)}"

    def survey(
        self, known: Callable[[str, int, bytes | None], bool], removed: Collection[bytes | None]
    ) -> Survey:
        """What is in the directory, by names and topic ids. Changes nothing.

        `known`: whether the metadata has a partition. `removed`: the ids of deleted topics.
        """
        found = Survey([], [], [], [], {})
        for name in self.disk.list(self.path):
            path = f"{self.path}/{name}"
            unique = names.delete_dir_unique(name)
            if unique is not None:
                found.retired[unique] = path
                continue
            future = names.parse_future_dir(name)
            parsed = names.parse_partition_dir(name)
            if future is None and parsed is None:
                continue
            try:
                metadata = self.disk.read_file(f"{path}/{names.PARTITION_METADATA}")
            except DiskError as error:
                if error.broken or error.passing:
                    raise
                # An error of this partition only. It is opened like the others, fails alone, and is not
                # deleted as a stray.
                if parsed is not None and known(*parsed, None):
                    found.partitions.append(parsed)
                continue
            topic_id = checkpoints.parse_partition_metadata(metadata)
            if future is not None and topic_id is not None:
                found.futures.append(Future(self, path, topic_id, *future))
            elif parsed is not None and known(*parsed, topic_id):
                found.partitions.append(parsed)
            elif parsed is None or topic_id in removed:
                found.strays.append(path)
            else:
                found.unknown.append(parsed)
        return found

    def set_aside(self, topic: str, number: int, unique: bytes) -> str:
        """Rename a log that no topic owns, so that no new log is created in it; returns the new path."""
        target = f"{self.path}/{names.stray_dir(topic, number, unique)}"
        self.disk.rename(self.partition_path(topic, number), target)
        return target

    def load(self, topic: str, number: int, config: TopicConfig, now_ms: int) -> Recovered | None:
        """Open a log, and recover it after a crash; None if there is none.

        The checkpoints have partitions by name, so a line may belong to a deleted topic of the same name. It
        is used only if the partition's directory confirms it: a recovery point needs its producer snapshot
        there, and a log start offset needs a first leader epoch that is not before it.
        """
        path = self.partition_path(topic, number)
        recovery_point = self.recovery_points.get((topic, number), 0)
        snapshot = self.disk.read_file(f"{path}/{names.offset_name(recovery_point)}{names.SNAPSHOT}")
        log_start = self.log_starts.get((topic, number), 0)
        written = (self.disk.read_file(f"{path}/{names.EPOCHS}") or b"").strip(b"\0")
        epochs = checkpoints.parse_epochs(written)
        # A damaged epoch file proves nothing. Without any epochs there was no log with a later start.
        begins = bool(written) if epochs is None else bool(epochs) and epochs[0][1] >= log_start
        recovered = open_log(
            self.disk, path, config,
            recovery_point=recovery_point if snapshot is not None else 0,
            log_start_offset=log_start if begins else 0,
            clean=self.clean, now_ms=now_ms, may_have_gaps=config.compact and self.was_kafkas,
        )  # fmt: skip
        if recovered is not None:
            cleaned = self.cleaned_offsets.get((topic, number), 0)
            recovered.log.cleaned_offset = min(cleaned, recovered.log.next_offset)
            watermark = self.high_watermarks.get((topic, number), 0)
            self._note(topic, number, recovered.log, min(watermark, recovered.log.next_offset))
        return recovered

    def create(
        self, topic: str, number: int, topic_id: bytes, config: TopicConfig, now_ms: int
    ) -> PartitionLog:
        return PartitionLog.create(
            self.disk, self.partition_path(topic, number), config,
            start_offset=0, now_ms=now_ms, topic_id_file=checkpoints.render_partition_metadata(topic_id),
        )  # fmt: skip

    def is_empty(self, topic: str, number: int) -> bool:
        """Whether a partition's directory has no segment: the last run ended while it created the log."""
        return not any(
            names.segment_base(name) is not None
            for name in self.disk.list(self.partition_path(topic, number))
        )

    def retire(self, topic: str, number: int, unique: bytes) -> str:
        """Rename a partition's directory to `…-delete`; returns the new path."""
        self.forget(topic, number)
        target = f"{self.path}/{names.delete_dir(topic, number, unique)}"
        self.disk.rename(self.partition_path(topic, number), target)
        return target

    def expect(self, topic: str, number: int) -> None:
        """A log is here and not opened yet: its lines of the last run's checkpoints stay valid."""
        self.partitions += 1
        point = self.recovery_points.get((topic, number))
        if point is not None:
            self._points.put(topic, number, point)
            # The high watermark is not the recovery point: a flush says nothing about other replicas.
            self._watermarks.put(topic, number, self.high_watermarks.get((topic, number), 0))
        start = self.log_starts.get((topic, number))
        if start is not None:
            self._starts.put(topic, number, start)
        cleaned = self.cleaned_offsets.get((topic, number))
        if cleaned is not None:
            self._cleaned.put(topic, number, cleaned)

    def forget(self, topic: str, number: int) -> None:
        """A log is not here any more: remove it from the checkpoints."""
        for lines in (self._points, self._starts, self._watermarks, self._cleaned):
            lines.drop(topic, number)

    def _note(self, topic: str, number: int, log: LogOffsets, high_watermark: int) -> None:
        self._points.put(topic, number, log.recovery_point)
        self._watermarks.put(topic, number, high_watermark)
        for lines, offset in ((self._starts, log.log_start_offset), (self._cleaned, log.cleaned_offset)):
            if offset > 0:
                lines.put(topic, number, offset)
            else:
                lines.drop(topic, number)

    @property
    def checkpoint_lines(self) -> int:
        """The number of lines of a checkpoint file."""
        return len(self._points)

    def checkpoint_files(self, changed: Iterable[tuple[str, int, LogOffsets, int]]) -> dict[str, bytes]:
        """The checkpoint files, in which these (topic, partition, log, high watermark) have changed."""
        for topic, number, log, high_watermark in changed:
            self._note(topic, number, log, high_watermark)
        files = {
            # The log start offsets first: a recovery point may assume that the records before them are gone.
            f"{self.path}/{names.LOG_STARTS}": self._starts.render(),
            f"{self.path}/{names.RECOVERY_POINTS}": self._points.render(),
            f"{self.path}/{names.HIGH_WATERMARKS}": self._watermarks.render(),
        }
        if len(self._cleaned) or self.cleaned_offsets:
            files[f"{self.path}/{names.CLEANED_OFFSETS}"] = self._cleaned.render()
        return files

    def sync_logs(self, logs: Sequence[tuple[Iterable[File], str]]) -> None:
        """Sync files of logs, the names in their directories, and the names of the directories."""
        if len(logs) > _SYNC_DEVICE_FROM:
            self.disk.sync_device(self.path)
        elif logs:
            for files, directory in logs:
                for file in files:
                    self.disk.sync(file)
                self.disk.sync_dir(directory)
            self.disk.sync_dir(self.path)

    def close_cleanly(self, logs: list[tuple[str, int, PartitionLog, int]]) -> None:
        """Flush and close these logs, and write the clean-shutdown file: the next start recovers nothing."""
        flushes = [(log, flush) for _, _, log, _ in logs if (flush := log.begin_flush()) is not None]
        for log, flush in flushes:
            leave_snapshot(log, flush.end_offset, flush.snapshot)
        self.sync_logs([((*flush.files, *log.loose), log.directory) for log, flush in flushes])
        for log, flush in flushes:
            log.flushed(flush)
        for _, _, log, _ in logs:
            log.close()
        for path, data in self.checkpoint_files(logs).items():
            self.disk.replace_file(path, data)
        self.disk.replace_file(f"{self.path}/{names.CLEAN_SHUTDOWN}", b'{"version":0,"brokerEpoch":-1}')


def _is_id(text: str | None) -> bool:
    """Whether this is a valid directory.id."""
    try:
        return text is not None and len(names.parse_id(text)) == _ID_BYTES
    except ValueError:
        return False
