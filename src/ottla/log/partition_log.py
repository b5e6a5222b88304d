"""The log of one partition: an ordered list of segments, of which only the last is written (B1, B7).

Owns offsets: it gives each batch its base offset, and knows where the log starts, ends, and how far it is durable.
Invariants: `bases` is the sorted list of the segments' base offsets (B2); segments are contiguous and never empty of
meaning: `log_start_offset` ≤ `flushed_offset` ≤ `next_offset`; a failed write changes nothing.

Appending looks at the batch's header only; records are decoded where a topic's policy demands it (compaction keys,
another codec, look-up by time).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

from crc32c import crc32c

from ottla.config.topic import TopicConfig
from ottla.log.epochs import LeaderEpochs
from ottla.log.names import EPOCHS, PARTITION_METADATA, SNAPSHOT, offset_name, snapshot_offset
from ottla.log.producers import Producers
from ottla.log.segment import Segment
from ottla.log.validation import check_policies
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import DECOMPRESSED_BYTES_MAX, RELATIVE_OFFSET_MAX
from ottla.ports.disk import Buffer, Disk, DiskError, File
from ottla.records.batch import (
    CONTROL_BIT,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    KNOWN_BITS,
    LENGTH_OVERHEAD,
    MAGIC,
    PREFIX,
    PREFIX_BYTES,
)
from ottla.records.record import find_timestamp

_NO_TIMESTAMP: Final = -1


class Appended(NamedTuple):
    base_offset: int
    last_offset: int
    append_time_ms: int
    duplicate: bool


class Slice(NamedTuple):
    """A run of whole batches, the last perhaps cut, in one segment's file."""

    file: File
    position: int
    size: int


class Flush(NamedTuple):
    """What a background flush makes durable; `end_offset` becomes the recovery point afterwards."""

    files: tuple[File, ...]
    #: Those of them to close afterwards.
    loose: tuple[File, ...]
    directory: str
    end_offset: int
    segments: tuple[Segment, ...]
    snapshot: bytes


class PartitionLog:
    __slots__ = (
        "active", "bases", "config", "directory", "disk", "epochs", "failed", "flushed_offset", "fresh",
        "log_start_offset", "loose", "next_offset", "on_failure", "producers", "recovery_point", "segments", "unflushed_bytes", "unsynced",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: TopicConfig,
        segments: list[Segment],
        *,
        log_start_offset: int,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.config = config
        self.segments = segments
        self.bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]
        self.next_offset = self.active.next_offset
        self.log_start_offset = log_start_offset
        #: Everything before it is durable in every file, so recovery begins here.
        self.recovery_point = self.next_offset
        #: Every record before it is durable.
        self.flushed_offset = self.next_offset
        #: How much was appended since the last background flush began.
        self.unflushed_bytes = 0
        #: Segments with records that are not durable yet, oldest first.
        self.unsynced: list[Segment] = []
        #: Small files written but not durable; whoever syncs next syncs and closes them.
        self.loose: list[File] = []
        #: Whether the directory's own name is not durable yet.
        self.fresh = False
        self.epochs = LeaderEpochs()
        self.producers = Producers()
        #: Set when the disk failed in a way that nothing may be trusted to it any more.
        self.failed = False
        self.on_failure: Callable[[str], None] | None = None

    @classmethod
    def create(
        cls,
        disk: Disk,
        directory: str,
        config: TopicConfig,
        *,
        start_offset: int,
        now_ms: int,
        topic_id_file: bytes,
    ) -> PartitionLog:
        """A new, empty log. Its names become durable with its first sync."""
        disk.make_dir(directory)
        metadata = disk.open(f"{directory}/{PARTITION_METADATA}", create=True)
        disk.truncate(metadata, disk.write(metadata, 0, (topic_id_file,)))
        segment = Segment(
            disk,
            directory,
            start_offset,
            index_bytes_max=config.segment_index_bytes,
            created_ms=now_ms,
            create=True,
        )
        log = cls(disk, directory, config, [segment], log_start_offset=start_offset)
        log.loose.append(metadata)
        log.fresh = True
        return log

    # --- append ---------------------------------------------------------------------------------------------

    def append(self, batch: bytes, leader_epoch: int, now_ms: int) -> Appended:
        """Validate one batch from a client, give it its offsets and write it. Raises Refusal; then nothing changed."""
        size = len(batch)
        config = self.config
        if size < HEADER_BYTES:
            raise Refusal(ErrorCode.CORRUPT_MESSAGE, f"a batch of {size} bytes is shorter than its header")
        (
            _,
            length,
            _,
            magic,
            crc,
            attributes,
            delta,
            base_time,
            max_time,
            producer_id,
            producer_epoch,
            sequence,
            count,
        ) = HEADER.unpack_from(batch)
        if magic != MAGIC:
            raise Refusal(
                ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT if 0 <= magic < MAGIC else ErrorCode.CORRUPT_MESSAGE,
                f"batches of magic {magic} are not accepted, only {MAGIC}",
            )
        if length != size - LENGTH_OVERHEAD:
            raise _wrong_length(batch, length, size)
        if size > config.max_message_bytes:
            raise Refusal(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batch has {size} bytes, max.message.bytes is {config.max_message_bytes}",
            )
        if crc32c(memoryview(batch)[CRC_START:]) != crc:
            raise Refusal(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not match its content")
        if count != delta + 1 or count < 1 or attributes & ~KNOWN_BITS or attributes & CONTROL_BIT:
            raise _bad_header(count, delta, attributes)
        if producer_id >= 0:
            if producer_epoch < 0 or sequence < 0:
                raise Refusal(
                    ErrorCode.INVALID_RECORD, "a batch with a producer id needs an epoch and a sequence"
                )
            repeated = self.producers.check(producer_id, producer_epoch, sequence, count)
            if repeated is not None:
                return Appended(repeated[2], repeated[3], _NO_TIMESTAMP, True)

        append_time = _NO_TIMESTAMP
        data: Buffer = batch
        if config.plain:
            if max_time > now_ms + config.message_timestamp_after_max_ms:
                raise _bad_time(max_time, now_ms, config)
        else:
            data, append_time = check_policies(batch, attributes, base_time, max_time, now_ms, config)
            if append_time >= 0:
                max_time = append_time
            size = len(data)

        base_offset = self.next_offset
        last_offset = base_offset + delta
        if leader_epoch > self.epochs.latest:
            self.begin_epoch(leader_epoch)
        active = self.active
        if (
            active.size + size > config.segment_bytes
            or max_time - active.first_timestamp > config.segment_ms
            or last_offset - active.base_offset > RELATIVE_OFFSET_MAX
            or active.index.full
            or active.times.full
        ) and self._must_roll(size, max_time, last_offset, now_ms):
            active = self.roll(now_ms)
        self._write(
            active,
            (PREFIX.pack(base_offset, size - LENGTH_OVERHEAD, leader_epoch), memoryview(data)[PREFIX_BYTES:]),
            size, base_offset, last_offset, max_time,
        )  # fmt: skip
        if producer_id >= 0:
            self.producers.appended(
                producer_id, producer_epoch, sequence, count, base_offset, last_offset, now_ms
            )
        return Appended(base_offset, last_offset, append_time, False)

    def _write(
        self,
        active: Segment,
        parts: tuple[Buffer, ...],
        size: int,
        base_offset: int,
        last_offset: int,
        max_time: int,
    ) -> None:
        if self.failed:
            raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "this log directory is offline after a disk error")
        try:
            active.append(
                parts, size,
                base_offset=base_offset, last_offset=last_offset, max_timestamp=max_time,
                index_interval_bytes=self.config.index_interval_bytes,
            )  # fmt: skip
        except DiskError as error:
            self.disk_failed(error)
            raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        if not self.unsynced or self.unsynced[-1] is not active:
            self.unsynced.append(active)
        self.unflushed_bytes += size
        self.next_offset = last_offset + 1

    def disk_failed(self, error: DiskError) -> None:
        """R11, R13: a full disk may have room later; any other failure takes the directory offline."""
        if not error.full:
            self.failed = True
            if self.on_failure is not None:
                self.on_failure(str(error))

    def _must_roll(self, size: int, max_time: int, last_offset: int, now_ms: int) -> bool:
        """B4: by size, by age, by a full index, by the width of a relative offset; an empty segment never."""
        active, config = self.active, self.config
        if active.size == 0:
            return last_offset - active.base_offset > RELATIVE_OFFSET_MAX
        if active.first_timestamp >= 0 and max_time >= 0:
            waited = max_time - active.first_timestamp
        else:
            waited = now_ms - active.created_ms
        return (
            active.size + size > config.segment_bytes
            or waited > config.segment_ms
            or active.index.full
            or active.times.full
            or last_offset - active.base_offset > RELATIVE_OFFSET_MAX
        )

    def roll(self, now_ms: int) -> Segment:
        """Begin a new segment at the log's end. The old one stays in `unsynced` until it is durable."""
        try:
            self.active.finish()
            self.write_snapshot(self.next_offset, self.producers.render())
            segment = Segment(
                self.disk, self.directory, self.next_offset,
                index_bytes_max=self.config.segment_index_bytes, created_ms=now_ms, create=True,
            )  # fmt: skip
        except DiskError as error:
            self.disk_failed(error)
            raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        if not self.unsynced or self.unsynced[-1] is not self.active:
            self.unsynced.append(self.active)
        self.segments.append(segment)
        self.bases.append(segment.base_offset)
        self.active = segment
        return segment

    def begin_epoch(self, epoch: int) -> None:
        """R1: an epoch's start is written down before its first record."""
        if self.epochs.assign(epoch, self.next_offset):
            self.write_epochs()

    def write_epochs(self) -> None:
        try:
            file = self.disk.open(f"{self.directory}/{EPOCHS}", create=True)
            self.disk.truncate(file, self.disk.write(file, 0, (self.epochs.render(),)))
            self.loose.append(file)
        except DiskError as error:
            self.disk_failed(error)
            raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    # --- durability -----------------------------------------------------------------------------------------

    def synced(self, segment: Segment, end_offset: int) -> None:
        """The segment's records before `end_offset` are durable; see how far that carries the whole log."""
        segment.names_synced = True
        segment.synced_offset = max(segment.synced_offset, end_offset)
        unsynced = self.unsynced
        while unsynced:
            first = unsynced[0]
            self.flushed_offset = max(self.flushed_offset, min(first.synced_offset, self.next_offset))
            if first.synced_offset < first.next_offset:
                return
            del unsynced[0]

    def begin_flush(self) -> Flush | None:
        """Gather what must be synced so that recovery may begin at the present end; None if nothing is new."""
        self.unflushed_bytes = 0
        if self.recovery_point == self.next_offset or self.failed:
            return None
        first = bisect_right(self.bases, self.recovery_point) - 1
        segments = tuple(self.segments[max(first, 0) :])
        for segment in segments:
            segment.note_time()
            segment.index.flush()
            segment.times.flush()
        loose, self.loose = tuple(self.loose), []
        return Flush(
            files=(*loose, *(file for segment in segments for file in segment.files)),
            loose=loose,
            directory=self.directory,
            end_offset=self.next_offset,
            segments=segments,
            snapshot=self.producers.render(),
        )

    def flushed(self, flush: Flush) -> None:
        """A flush is done: its end is the recovery point, unless the log was cut meanwhile."""
        end = min(flush.end_offset, self.next_offset)
        for file in flush.loose:
            self.disk.close(file)
        self.fresh = False
        for segment in flush.segments:
            self.synced(segment, min(end, segment.next_offset))
        self.recovery_point = max(self.recovery_point, end)

    def write_snapshot(self, offset: int, data: bytes) -> None:
        self.disk.replace_file(self.snapshot_path(offset), data)

    def snapshot_path(self, offset: int) -> str:
        return f"{self.directory}/{offset_name(offset)}{SNAPSHOT}"

    def stale_snapshots(self, keep_from: int) -> list[str]:
        """Producer snapshots that no recovery will want: all but those at `keep_from`, the one before and rolls."""
        found = sorted(
            (offset, name)
            for name in self.disk.list(self.directory)
            if (offset := snapshot_offset(name)) is not None
        )
        older = [(offset, name) for offset, name in found if offset < keep_from]
        rolls = set(self.bases)
        return [f"{self.directory}/{name}" for offset, name in older[:-1] if offset not in rolls]

    # --- read -----------------------------------------------------------------------------------------------

    def segment_for(self, offset: int) -> int:
        """The index of the segment that holds an offset."""
        return max(0, bisect_right(self.bases, offset) - 1)

    def slice(self, offset: int, end_offset: int, bytes_max: int, *, whole_first: bool) -> Slice | None:
        """Batches from the one that holds `offset` up to `end_offset`, or None if there are none.

        At most `bytes_max`, except that with `whole_first` the first batch comes whole however large it is (KIP-74).
        """
        if offset >= end_offset:
            return None
        active = self.active
        if offset >= active.base_offset:
            return _slice(active, offset, end_offset, bytes_max, whole_first)
        for segment in self.segments[self.segment_for(offset) :]:
            if segment.base_offset >= end_offset:
                return None
            found = _slice(segment, offset, end_offset, bytes_max, whole_first)
            if found is not None:
                return found
        return None

    def find_time(self, timestamp: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record that is not older than this; None if all are."""
        for segment in self.segments:
            if segment.max_timestamp < timestamp:
                continue
            for base, position, delta, _size, max_timestamp in segment.headers(
                segment.position_for_time(timestamp)
            ):
                if max_timestamp < timestamp or base + delta < self.log_start_offset:
                    continue
                found = find_timestamp(segment.batch_at(position), timestamp, DECOMPRESSED_BYTES_MAX)
                if found is not None and found[0] >= self.log_start_offset:
                    return found
        return None

    def find_newest(self) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with the largest timestamp; None for an empty log."""
        if self.next_offset == self.log_start_offset:
            return None
        newest = max(self.segments, key=lambda segment: segment.max_timestamp)
        return self.find_time(newest.max_timestamp) if newest.max_timestamp >= 0 else None

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    # --- shorten --------------------------------------------------------------------------------------------

    def delete_before(self, offset: int) -> bool:
        """Move the log's start up to `offset`; True if it moved. Segments wholly before it can then be dropped."""
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        if self.epochs.truncate_start(offset):
            self.write_epochs()
        return True

    def drop_segments(self, count: int) -> list[Segment]:
        """Take the oldest segments out of the log. Their files are the caller's to remove, readers may still hold them."""
        count = min(count, len(self.segments) - 1)
        dropped = self.segments[:count]
        del self.segments[:count]
        del self.bases[:count]
        self.unsynced = [segment for segment in self.unsynced if segment not in dropped]
        self.delete_before(self.segments[0].base_offset)
        return dropped

    def truncate(self, offset: int) -> list[Segment]:
        """Cut off everything from `offset` on; returns the segments that went whole, for the caller to remove."""
        if offset >= self.next_offset:
            return []
        dropped = [
            segment for segment in self.segments if segment.base_offset >= offset and segment.base_offset > 0
        ]
        if len(dropped) == len(self.segments):
            dropped = dropped[1:]
        if dropped:
            del self.segments[-len(dropped) :]
            del self.bases[-len(dropped) :]
        self.active = self.segments[-1]
        self.active.truncate(offset)
        self.next_offset = offset
        self.flushed_offset = min(self.flushed_offset, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self.unsynced = [segment for segment in self.unsynced if segment not in dropped]
        if self.epochs.truncate_end(offset):
            self.write_epochs()
        return dropped

    def close(self) -> None:
        for segment in self.segments:
            segment.close()


def _slice(segment: Segment, offset: int, end_offset: int, bytes_max: int, whole_first: bool) -> Slice | None:
    position = segment.locate(offset)
    end = segment.size if end_offset >= segment.next_offset else segment.locate(end_offset)
    size = end - position
    if size <= 0:
        return None
    if size > bytes_max:
        size = bytes_max
        if whole_first:
            head = segment.disk.read(segment.file, position, LENGTH_OVERHEAD)
            size = max(size, int.from_bytes(head[8:12], "big") + LENGTH_OVERHEAD)
        elif size <= 0:
            return None
    return Slice(segment.file, position, size)


def _wrong_length(batch: bytes, length: int, size: int) -> Refusal:
    if HEADER_BYTES - LENGTH_OVERHEAD <= length < size - LENGTH_OVERHEAD:
        return Refusal(
            ErrorCode.INVALID_RECORD, "a produce request may hold one batch a partition, this one holds more"
        )
    return Refusal(
        ErrorCode.CORRUPT_MESSAGE, f"the batch says {length + LENGTH_OVERHEAD} bytes and has {size}"
    )


def _bad_header(count: int, delta: int, attributes: int) -> Refusal:
    if attributes & CONTROL_BIT:
        return Refusal(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    if attributes & ~KNOWN_BITS:
        return Refusal(ErrorCode.INVALID_RECORD, f"unknown batch attributes {attributes:#06x}")
    return Refusal(
        ErrorCode.INVALID_RECORD, f"the batch counts {count} records but its last offset delta is {delta}"
    )


def _bad_time(timestamp: int, now_ms: int, config: TopicConfig) -> Refusal:
    return Refusal(
        ErrorCode.INVALID_TIMESTAMP,
        f"timestamp {timestamp} is {timestamp - now_ms} ms ahead of the broker's clock, "
        f"message.timestamp.after.max.ms allows {config.message_timestamp_after_max_ms}",
    )
