"""The future log (KIP-113): a growing copy of a log in another log directory, and its recovery at a start.

The copy is in `<topic>-<partition>.<32 hex digits>-future`. A segment object's bytes below its size never
change, so they are copied once. A segment that replaces another one (truncation, compaction) is a new object
and is copied again.

`log_dir_moves.py` runs the moves and lists the steps of the swap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.log.names import DELETED, future_dir, offset_name
from ottla.ports.disk import Disk, DiskError

if TYPE_CHECKING:
    from ottla.broker.storage.host import StorageHost
    from ottla.broker.storage.log_directory import LogDirectory, Survey
    from ottla.log.checkpoints import Partition
    from ottla.log.partition_log import PartitionLog
    from ottla.log.segment import Segment
    from ottla.metadata.image import Image
    from ottla.replication.replica import Replica

#: Bytes of the active segment that may be left to copy in the swap itself.
TAIL_BYTES: Final = 256 * 1024
#: Files beside a segment that belong to no log, or do not yet.
_NOT_COPIED: Final = (DELETED, ".tmp", ".cleaned", ".swap")


class Piece(NamedTuple):
    """A byte range of one file."""

    name: str
    start: int
    end: int
    #: Nothing of this file was copied yet: a file of the same name in the copy is another one, and is
    #: removed.
    is_new: bool


class Prepared(NamedTuple):
    """What is durable in the copy, and the state of the source that it was copied from.

    The swap requires that state.
    """

    recovery_point: int
    log_start_offset: int
    cleaned_offset: int
    epochs: bytes
    segments: tuple[Segment, ...]


class LogDirMove:
    """The move of one log to another log directory."""

    __slots__ = (
        "cancelled",
        "closed",
        "copied",
        "end_offset",
        "is_unwanted",
        "path",
        "prepared",
        "replica",
        "source",
        "target",
        "unique",
    )

    def __init__(self, replica: Replica, source: LogDirectory, target: LogDirectory, unique: bytes) -> None:
        self.replica = replica
        self.source = source
        self.target = target
        self.unique = unique
        self.path = f"{target.path}/{future_dir(replica.topic, replica.number, unique)}"
        #: Bytes in the copy, by segment object and file name.
        self.copied: dict[Segment, dict[str, int]] = {}
        #: Segments that are copied to their end and take no more records.
        self.closed: set[Segment] = set()
        #: The copy holds every record before this offset.
        self.end_offset = 0
        self.prepared: Prepared | None = None
        self.cancelled = False
        #: The copy is to be removed.
        self.is_unwanted = False

    @property
    def size(self) -> int:
        return sum(sum(files.values()) for files in self.copied.values())

    def copied_bytes(self, segment: Segment) -> int:
        """Bytes of the segment's log file that are in the copy."""
        return self.copied.get(segment, {}).get(log_name(segment), 0)

    def note(self, segment: Segment, pieces: Sequence[Piece]) -> None:
        """These pieces were copied."""
        self.copied.setdefault(segment, {}).update((piece.name, piece.end) for piece in pieces)

    def is_ready(self, log: PartitionLog, prepared: Prepared) -> bool:
        """Whether the source is as it was when the swap was prepared, except for a few appended bytes."""
        active = log.active
        return (
            prepared.segments == tuple(log.segments)
            and prepared.log_start_offset == log.log_start_offset
            and prepared.epochs == log.epochs.render()
            and active.size - self.copied[active][log_name(active)] <= TAIL_BYTES
            # A new file's name in the copy is not durable.
            and not any(piece.is_new for piece in self.missing(log, active, active.size))
        )

    def missing(self, log: PartitionLog, segment: Segment, end: int) -> list[Piece]:
        """The pieces of a segment, up to a position, that are not in the copy; at its end also its indexes.

        Runs on the event loop, where nothing is being written, so the sizes of the files are final.
        """
        copied = self.copied.get(segment, {})
        name = log_name(segment)
        pieces = [_piece(copied, name, end)]
        if end == segment.size:
            stem = offset_name(segment.base_offset)
            for other in log.disk.list(log.directory):
                if other.startswith(stem) and other != name and not other.endswith(_NOT_COPIED):
                    size = log.disk.size(log.disk.open(f"{log.directory}/{other}"))
                    pieces.append(_piece(copied, other, size))
        return pieces


def log_name(segment: Segment) -> str:
    return segment.file.path.rpartition("/")[2]


def _piece(copied: dict[str, int], name: str, end: int) -> Piece:
    have = copied.get(name, -1)
    return Piece(name, have, end, False) if 0 <= have <= end else Piece(name, 0, end, True)


def copy_pieces(disk: Disk, source: str, target: str, pieces: Sequence[Piece]) -> None:
    for name, start, end, is_new in pieces:
        path = f"{target}/{name}"
        if is_new:
            disk.remove(path)
        disk.copy(f"{source}/{name}", path, start=start, end=end)


def sync_files(disk: Disk, directory: str, names: Sequence[str]) -> None:
    for name in names:
        file = disk.open(f"{directory}/{name}")
        try:
            disk.sync(file)
        finally:
            disk.close(file)


def recover_future_logs(
    host: StorageHost, image: Image, homes: dict[Partition, LogDirectory], surveys: Sequence[Survey]
) -> dict[Partition, LogDirectory]:
    """At the start: rename the copy of each move whose source was retired, and add it to `homes`.

    Returns the moves that must start again. A copy that is of no use is added to the strays of its directory.
    """
    directories = host.directories
    retired = {unique: found for found in surveys for unique in found.retired}
    to_restart: dict[Partition, LogDirectory] = {}
    promoted: set[Partition] = set()
    futures = [(found, future) for found in surveys for future in found.futures]
    # First the copies whose source was retired: they are complete.
    for found, future in sorted(futures, key=lambda each: each[1].unique not in retired):
        topic = image.topics_by_id.get(future.topic_id)
        if topic is None or future.number >= len(topic.partitions):
            found.strays.append(future.path)
            continue
        partition = topic.name, future.number
        if partition in homes:
            found.strays.append(future.path)
            if partition not in promoted and homes[partition] is not future.directory:
                to_restart[partition] = future.directory
            continue
        if future.unique not in retired:
            if directories.offline:
                # The source may be whole in the directory that is offline.
                continue
            host.say(
                f"{future.path} is an unfinished copy of a log that is gone, and is served in its place: "
                "acknowledged records may be missing. Stop the broker and restore the log from a backup if "
                "you have one"
            )
        try:
            host.disk.rename(future.path, future.directory.partition_path(*partition))
        except DiskError as error:
            if not error.broken:
                # Without the rename an empty log would be created in its place: the start fails.
                raise
            directories.give_up(future.directory, str(error))
            continue
        homes[partition] = future.directory
        promoted.add(partition)
        if future.unique in retired:
            # The retired source proves that the copy is complete, until the new name is durable. So the next
            # start removes it.
            del retired[future.unique].retired[future.unique]
    return to_restart
