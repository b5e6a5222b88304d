"""The log of one partition: an ordered list of segments, of which only the last is written (B1, B7).

`PartitionLog` owns the offsets. It gives each batch its base offset and knows the log start, the log end, and
the offset up to which records are durable. Its parts:

    append, roll, leader epochs    here; roll rules in `log/segment_roll.py`, refusals in `log/validation.py`
    flush, producer snapshots      `log/flush.py`
    truncation at both ends        `log/truncation.py`
    transaction markers            `log/markers.py`
    producer state                 `log/producers.py`, rebuilt by `log/replay.py`
    reads                          `slice` here; searches in `log/log_reader.py`

Invariants:

- `bases` is the sorted list of the segments' base offsets (B2). Segments are contiguous.
- `recovery_point` <= `flushed_offset` <= `next_offset`, and `log_start_offset` <= `next_offset`.
- A failed write changes nothing.

An append reads only the header of a batch. Records are decoded only if a topic's configuration requires it:
compaction keys, another codec, LogAppendTime.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from crc32c import crc32c

from ottla.config.topic import TopicConfig
from ottla.log.epochs import LeaderEpochs
from ottla.log.flush import Flush, begin_flush, end_flush, settle_loose, write_loose
from ottla.log.log_reader import Slice, find_aborted, find_newest, find_time, is_hollow, slice_of
from ottla.log.markers import Marker, append_marker
from ottla.log.names import EPOCHS, PARTITION_METADATA, SNAPSHOT, offset_name
from ottla.log.producers import Producers
from ottla.log.segment import Segment
from ottla.log.segment_roll import must_roll
from ottla.log.transactions import Ended
from ottla.log.truncation import begin_at, delete_before, drop_segments, truncate
from ottla.log.validation import (
    CLIENT_ATTRIBUTES,
    Validated,
    check_header,
    check_policies,
    no_producer,
    too_large,
    too_new,
    wrong_length,
)
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import RECORDS_LOOKED_AT_MAX, RELATIVE_OFFSET_MAX
from ottla.model.steps import Steps
from ottla.ports.disk import Buffer, Disk, DiskError, File
from ottla.records.batch import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    PREFIX,
    PREFIX_BYTES,
    TRANSACTIONAL_BIT,
)
from ottla.records.record import RECORD_BYTES_MIN

__all__ = ["Appended", "PartitionLog", "Slice"]

_NO_TIMESTAMP: Final = -1


class Appended(NamedTuple):
    base_offset: int
    last_offset: int
    append_time_ms: int
    duplicate: bool


class PartitionLog:
    __slots__ = (
        "active", "bases", "cleaned_offset", "config", "directory", "disk", "epochs", "epochs_written", "failed",
        "flushed_offset", "fresh", "has_aborted",
        "log_start_offset", "loose", "next_offset", "on_failure", "producers", "recovery_point", "replaced", "segments", "should_begin_at",
        "unflushed_bytes", "unsynced",
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
        #: The log start offset before a crash lost the first segments; -1 if none are missing.
        self.should_begin_at = -1
        self.disk = disk
        self.directory = directory
        self.config = config
        self.segments = segments
        self.bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]
        self.next_offset = self.active.next_offset
        self.log_start_offset = log_start_offset
        #: Recovery begins here: all files are durable up to this offset.
        self.recovery_point = self.next_offset
        #: Every record below this offset is durable.
        self.flushed_offset = self.next_offset
        #: The log cleaner has compacted the log up to this offset.
        self.cleaned_offset = 0
        #: Bytes written since the last flush began. A start after a crash reads them again.
        self.unflushed_bytes = 0
        #: Segments with records that are not durable yet, oldest first.
        self.unsynced: list[Segment] = []
        #: Small files that are written but not durable. The next sync or flush syncs and closes them.
        self.loose: list[File] = []
        #: Older handles of small files that were rewritten before a sync; a sync of them may be in progress.
        self.replaced: list[File] = []
        #: Whether the name of the partition directory is not durable yet.
        self.fresh = False
        self.epochs = LeaderEpochs()
        #: Whether leader-epoch-checkpoint holds `epochs`. It must before the first record of an epoch is
        #: written (R1).
        self.epochs_written = True
        self.producers = Producers()
        #: Whether some segment has aborted transactions.
        self.has_aborted = False
        #: The disk failed for good: nothing more is appended (R11).
        self.failed = False
        #: Called with every write error, a full disk included.
        self.on_failure: Callable[[DiskError], None] | None = None

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
        """Create an empty log. Its file names become durable with its first sync."""
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

    def append(
        self,
        batch: bytes,
        leader_epoch: int,
        now_ms: int,
        *,
        has_new_epoch: bool = False,
        validated: Validated | None = None,
    ) -> Appended:
        """Validate one batch from a client, assign its offsets and write it. After a Refusal nothing has
        changed.

        `has_new_epoch`: the producer gets a new epoch for each transaction, which starts at sequence 0
        (KIP-890). `validated`: the result of an earlier validation of the records.
        """
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
            raise wrong_length(length, size)
        if size > config.max_message_bytes:
            raise too_large(size, config)
        if crc32c(memoryview(batch)[CRC_START:]) != crc:
            raise Refusal(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not match its content")
        # More records than fit in its bytes: the batch is compressed, or its count is wrong.
        if (
            count != delta + 1
            or not 0 < count * RECORD_BYTES_MIN <= size - HEADER_BYTES
            or count > RECORDS_LOOKED_AT_MAX
            or attributes not in CLIENT_ATTRIBUTES
        ):
            check_header(count, delta, attributes, size)
        if producer_id >= 0:
            if producer_epoch < 0 or sequence < 0:
                raise Refusal(
                    ErrorCode.INVALID_RECORD, "a batch with a producer id needs an epoch and a sequence"
                )
            producers = self.producers
            if has_new_epoch:
                producers.check_first(producer_id, sequence)
            repeated = producers.check(producer_id, producer_epoch, sequence, count)
            if repeated is not None:
                return Appended(repeated[2], repeated[3], _NO_TIMESTAMP, True)
            if producers.transactions is not None and not attributes & TRANSACTIONAL_BIT:
                producers.check_outside(producer_id)
        elif attributes & TRANSACTIONAL_BIT:
            raise no_producer()

        append_time = _NO_TIMESTAMP
        data: Buffer = batch
        if config.plain:
            if max_time > now_ms + config.message_timestamp_after_max_ms:
                raise too_new(batch, max_time, now_ms, config)
        else:
            where = self.directory.rpartition("/")[2]
            data, append_time = check_policies(
                batch, attributes, base_time, max_time, now_ms, config, where, validated
            )
            if append_time >= 0:
                max_time = append_time
            size = len(data)
            if size > config.max_message_bytes:
                raise too_large(size, config)

        appended = self.write(
            data, size, self.next_offset + delta, max_time, leader_epoch, now_ms, append_time
        )
        if producer_id >= 0:
            producers.appended(
                producer_id, producer_epoch, sequence, count, appended[0], appended[1], now_ms,
                attributes & TRANSACTIONAL_BIT,
            )  # fmt: skip
        return appended

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        leader_epoch: int,
        now_ms: int,
        *,
        raises_epoch: bool = False,
    ) -> Appended:
        """Write a control batch that ends a producer's transaction. After a Refusal nothing has changed.

        The marker is also written if the producer has no open transaction here. Its epochs are in force from
        then on.
        """
        marker = Marker(commit, coordinator_epoch, raises_epoch)
        return append_marker(self, producer_id, producer_epoch, marker, leader_epoch, now_ms)

    def note_aborted(self, segment: Segment, ended: Ended) -> None:
        """Add an aborted transaction to the index of the segment that holds its marker."""
        segment.aborted.append(ended)
        self.has_aborted = True

    def write(
        self,
        data: Buffer,
        size: int,
        last_offset: int,
        max_time: int,
        leader_epoch: int,
        now_ms: int,
        append_time: int,
        base_offset: int = -1,
    ) -> Appended:
        """Write a validated batch at the log end. After a Refusal nothing has changed.

        A follower passes the leader's `base_offset`. It can lie beyond the log end, because compaction leaves
        gaps.
        """
        config = self.config
        if base_offset < 0:
            base_offset = self.next_offset
        epochs = self.epochs.pairs
        if not epochs or leader_epoch != epochs[-1][0] or not self.epochs_written:
            self.begin_epoch(leader_epoch, base_offset)
        active = self.active
        if (
            active.size + size > config.segment_bytes
            or max_time - active.first_timestamp > config.roll_ms - config.segment_jitter_ms
            or max_time < 0
            or last_offset - active.base_offset > RELATIVE_OFFSET_MAX
            # An index can be full only when the next entry is due.
            or active.since_index_bytes > config.index_interval_bytes
        ) and must_roll(active, config, size, max_time, last_offset, now_ms):
            active = self.roll(now_ms)
        if self.failed:
            raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "this log directory is offline after a disk error")
        prefix = PREFIX.pack(base_offset, size - LENGTH_OVERHEAD, leader_epoch)
        try:
            active.append(
                (prefix, memoryview(data)[PREFIX_BYTES:]),
                size,
                last_offset,
                max_time,
                config.index_interval_bytes,
            )
        except DiskError as error:
            self.disk_failed(error)
            raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        if not self.unsynced or self.unsynced[-1] is not active:
            self.unsynced.append(active)
        self.unflushed_bytes += size
        self.next_offset = last_offset + 1
        return Appended(base_offset, last_offset, append_time, False)

    def disk_failed(self, error: DiskError) -> None:
        """R11, R13: a device error or a torn file ends all appends. After any other error appends can succeed
        again.
        """
        if error.broken or error.torn:
            self.failed = True
        if self.on_failure is not None:
            self.on_failure(error)

    def roll(self, now_ms: int) -> Segment:
        """Begin a new segment at the log end. The previous one stays in `unsynced` until it is durable."""
        before = self.active
        if before.base_offset == self.next_offset:
            return before
        try:
            if self.config.durable and not before.names_synced:
                # Rare: the segment is full before its first sync. Its name must be durable before the next
                # segment's, or a crash could leave a log that starts in the middle.
                self.disk.sync_dir(self.directory)
                before.names_synced = True
            before.flush_indexes()
            # Used when the log is opened or truncated at this offset. A torn snapshot is ignored: no sync is
            # needed.
            write_loose(self, self.snapshot_path(self.next_offset), self.producers.render())
            segment = self.new_segment(self.next_offset, now_ms)
        except DiskError as error:
            self.disk_failed(error)
            raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        before.finish()
        self.segments.append(segment)
        self.bases.append(segment.base_offset)
        self.active = segment
        return segment

    def new_segment(self, base_offset: int, now_ms: int) -> Segment:
        return Segment(
            self.disk, self.directory, base_offset,
            index_bytes_max=self.config.segment_index_bytes, created_ms=now_ms, create=True,
        )  # fmt: skip

    def lead(self, epoch: int) -> None:
        """This replica leads from the log end on in this epoch. The epoch is written before its first record."""
        if self.epochs.assign(epoch, self.next_offset):
            self.epochs_written = False

    def begin_epoch(self, epoch: int, start_offset: int) -> None:
        """R1: the start offset of an epoch is written before its first record."""
        pairs = list(self.epochs.pairs)
        if self.epochs.assign(epoch, start_offset) or not self.epochs_written:
            try:
                self.write_epochs()
            except Refusal:
                self.epochs.pairs = pairs
                raise

    def write_epochs(self) -> None:
        try:
            self.save_epochs()
        except DiskError as error:
            self.disk_failed(error)
            raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def save_epochs(self) -> None:
        write_loose(self, f"{self.directory}/{EPOCHS}", self.epochs.render())
        self.epochs_written = True

    # --- durability -----------------------------------------------------------------------------------------

    def synced(self, segment: Segment, end_offset: int) -> None:
        """The segment's records below `end_offset` are durable: advance the log's `flushed_offset`."""
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
        """Everything to sync so that recovery can begin at the log end; None if that is durable already."""
        return begin_flush(self)

    def flushed(self, flush: Flush) -> None:
        """A flush is done: its end becomes the recovery point, unless the log was truncated meanwhile."""
        end_flush(self, flush)

    def settle_loose(self, files: Iterable[File]) -> None:
        """These small files are durable: close them."""
        settle_loose(self, files)

    def snapshot_path(self, offset: int) -> str:
        return f"{self.directory}/{offset_name(offset)}{SNAPSHOT}"

    # --- read -----------------------------------------------------------------------------------------------

    def segment_for(self, offset: int) -> int:
        """The index of the segment that holds an offset."""
        return max(0, bisect_right(self.bases, offset) - 1)

    def slice(self, offset: int, end_offset: int, bytes_max: int, *, whole_first: bool) -> Slice | None:
        """The batches from the one that holds `offset` up to `end_offset`, or None if there are none.

        The slice has at most `bytes_max` bytes. With `whole_first` the first batch is complete whatever its
        size (KIP-74).
        """
        if offset >= end_offset:
            return None
        active = self.active
        if offset >= active.base_offset:
            found = slice_of(active, offset, end_offset, bytes_max, whole_first)
            return found if found is not None and found.size else None
        hollow: Slice | None = None
        for at in range(self.segment_for(offset), len(self.segments)):
            segment = self.segments[at]
            if segment.base_offset >= end_offset:
                return hollow
            found = slice_of(segment, offset, end_offset, bytes_max, whole_first)
            if found is not None and at + 1 < len(self.segments) and is_hollow(segment, found):
                # Some clients take a response without records for one that was cut off.
                hollow = found
                continue
            if found is not None:
                # Batches that do not fit must not be skipped in favour of the next segment.
                return found if found.size else hollow
        return hollow

    def last_stable_offset(self, high_watermark: int) -> int:
        """The last stable offset: no transaction is undecided below it (R19)."""
        transactions = self.producers.transactions
        if transactions is None:
            return high_watermark
        first = transactions.first_unstable(high_watermark)
        if first is None:
            return high_watermark
        return min(max(first, self.log_start_offset), high_watermark)

    def aborted(self, offset: int, end_offset: int, piece: Slice) -> list[Ended]:
        """Aborted transactions with records in `piece`, which starts at `offset` and ends at or before
        `end_offset`.
        """
        if not self.has_aborted:
            return []
        return find_aborted(self.segments, self.segment_for(offset), offset, end_offset, piece)

    def look_up_time(self, timestamp: int) -> Steps[tuple[int, int] | None]:
        """(offset, timestamp) of the first record at or after this timestamp; None if all are older.

        In steps (`model/steps.py`), because a large batch may have to be decoded.
        """
        return find_time(list(self.segments), timestamp, self.log_start_offset)

    def look_up_newest(self) -> Steps[tuple[int, int] | None]:
        """(offset, timestamp) of the first record with the largest timestamp; None for an empty log."""
        return find_newest(list(self.segments), self.log_start_offset)

    @property
    def parent(self) -> str:
        """The log directory (`log.dirs`) that holds the partition directory."""
        return self.directory.rpartition("/")[0]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    # --- truncate -------------------------------------------------------------------------------------------

    def delete_before(self, offset: int) -> bool:
        """Advance the log start offset; True if it moved."""
        return delete_before(self, offset)

    def drop_segments(self, count: int) -> list[Segment]:
        """Remove the oldest segments from the log; the caller removes their files."""
        return drop_segments(self, count)

    def truncate(self, offset: int, now_ms: int) -> list[Segment]:
        """Remove every record from `offset` on; returns the removed segments, whose files the caller removes."""
        return truncate(self, offset, now_ms)

    def begin_at(self, offset: int, now_ms: int) -> list[Segment]:
        """Remove every record and start at `offset`; returns the removed segments, whose files the caller
        removes.
        """
        return begin_at(self, offset, now_ms)

    def close(self) -> None:
        for file in (*self.loose, *self.replaced):
            self.disk.close(file)
        for segment in self.segments:
            segment.close()
