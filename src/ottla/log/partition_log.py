"""The log of one partition: an ordered list of segments, of which only the last is written (B1, B7).

Owns offsets: it gives each batch its base offset, and knows where the log starts, ends, and how far it is durable.
Invariants: `bases` is the sorted list of the segments' base offsets (B2); segments are contiguous and never empty of
meaning: `recovery_point` ≤ `flushed_offset` ≤ `next_offset`, `log_start_offset` ≤ `next_offset`; a failed write changes
nothing.

Appending looks at the batch's header only; records are decoded where a topic's policy demands it (compaction keys,
another codec, look-up by time).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from copy import copy
from typing import Final, NamedTuple

from crc32c import crc32c

from ottla.config.topic import TopicConfig
from ottla.log.epochs import LeaderEpochs
from ottla.log.log_reader import Slice, find_aborted, find_newest, find_time, is_hollow, slice_of
from ottla.log.markers import Marker, append_marker
from ottla.log.names import EPOCHS, PARTITION_METADATA, SNAPSHOT, offset_name, snapshot_offset
from ottla.log.producers import Producers
from ottla.log.replay import load_producers, snapshot_offsets
from ottla.log.segment import Segment
from ottla.log.transactions import Ended
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
from ottla.model.steps import Steps, run
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

__all__ = ["Appended", "Flush", "PartitionLog", "Slice"]

_NO_TIMESTAMP: Final = -1


class Appended(NamedTuple):
    base_offset: int
    last_offset: int
    append_time_ms: int
    duplicate: bool


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
        #: Where the log began before a crash took its first segments; -1 if none are missing.
        self.should_begin_at = -1
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
        #: Compaction has come so far.
        self.cleaned_offset = 0
        #: Written since the last flush began: what a start after a crash would read again.
        self.unflushed_bytes = 0
        #: Segments with records that are not durable yet, oldest first.
        self.unsynced: list[Segment] = []
        #: Small files written but not durable; whoever syncs next syncs and closes them.
        self.loose: list[File] = []
        #: Handles of small files that were written again before they were synced: a sync of theirs may be under way.
        self.replaced: list[File] = []
        #: Whether the directory's own name is not durable yet.
        self.fresh = False
        self.epochs = LeaderEpochs()
        #: Whether the file of the epochs says the same; it does before the first record of an epoch is written (R1).
        self.epochs_written = True
        self.producers = Producers()
        #: Whether some segment has aborted transactions.
        self.has_aborted = False
        #: Set when the disk failed in a way that nothing may be trusted to it any more.
        self.failed = False
        #: Told of each error in writing, those for want of room too.
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

    def append(
        self,
        batch: bytes,
        leader_epoch: int,
        now_ms: int,
        *,
        has_new_epoch: bool = False,
        validated: Validated | None = None,
    ) -> Appended:
        """Validate one batch from a client, give it its offsets and write it. Raises Refusal; then nothing changed.

        `has_new_epoch`: its producer has another epoch in each transaction, and begins each at sequence 0 (KIP-890).
        `validated` is given for a batch whose records were looked at already.
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
        # More records than bytes for them is a batch that is compressed, or one whose count is wrong.
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
        """End a producer's transaction with a control batch. Raises Refusal; then nothing changed.

        A producer that has none open here gets its marker all the same, and the epochs in it count from now on.
        """
        marker = Marker(commit, coordinator_epoch, raises_epoch)
        return append_marker(self, producer_id, producer_epoch, marker, leader_epoch, now_ms)

    def note_aborted(self, segment: Segment, ended: Ended) -> None:
        """This transaction was aborted, by a marker in this segment."""
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
        """Write a batch that was found good, at the end of the log. Raises Refusal; then nothing changed.

        A follower gives the `base_offset`, which is the leader's: there it may lie beyond the end, because compaction leaves gaps.
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
            # An index can only be too full when it is due for an entry.
            or active.since_index_bytes > config.index_interval_bytes
        ) and self._must_roll(size, max_time, last_offset, now_ms):
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
        """R11, R13: the device failed, or the file is not as it was: nothing more is appended. Else it may work later."""
        if error.broken or error.torn:
            self.failed = True
        if self.on_failure is not None:
            self.on_failure(error)

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
            or waited > config.roll_ms - self._jitter_ms(active)
            or active.index.full
            or active.times.full
            or last_offset - active.base_offset > RELATIVE_OFFSET_MAX
        )

    def _jitter_ms(self, segment: Segment) -> int:
        """What is taken off the age at which this segment rolls: the same whenever it is asked, different for others."""
        jitter_ms = self.config.segment_jitter_ms
        return crc32c(segment.file.path.encode()) % (jitter_ms + 1) if jitter_ms else 0

    def roll(self, now_ms: int) -> Segment:
        """Begin a new segment at the log's end. The old one stays in `unsynced` until it is durable."""
        before = self.active
        if before.base_offset == self.next_offset:
            return before
        try:
            if self.config.durable and not before.names_synced:
                # Rolled before its first sync, which is rare: a crash that keeps the next segment's name must keep this
                # one's, or the log would begin in the middle of what was never acknowledged.
                self.disk.sync_dir(self.directory)
                before.names_synced = True
            before.flush_indexes()
            # For whoever opens or cuts the log at this offset. Torn it is ignored, so it need not be waited for.
            self._write_loose(self.snapshot_path(self.next_offset), self.producers.render())
            segment = Segment(
                self.disk, self.directory, self.next_offset,
                index_bytes_max=self.config.segment_index_bytes, created_ms=now_ms, create=True,
            )  # fmt: skip
        except DiskError as error:
            self.disk_failed(error)
            raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        before.finish()
        self.segments.append(segment)
        self.bases.append(segment.base_offset)
        self.active = segment
        return segment

    def lead(self, epoch: int) -> None:
        """An epoch of this replica as leader begins at the log's end. It is written down before its first record."""
        if self.epochs.assign(epoch, self.next_offset):
            self.epochs_written = False

    def begin_epoch(self, epoch: int, start_offset: int) -> None:
        """R1: an epoch's start is written down before its first record."""
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
        self._write_loose(f"{self.directory}/{EPOCHS}", self.epochs.render())
        self.epochs_written = True

    def _write_loose(self, path: str, data: bytes) -> None:
        """Write a small file, to be made durable by whoever syncs next."""
        # A handle of its own each time: a sync of the one before that is under way does not cover these bytes.
        file = self.disk.open(path, create=True)
        self.replaced += [other for other in self.loose if other.path == path]
        self.loose = [*(other for other in self.loose if other.path != path), file]
        self.disk.truncate(file, self.disk.write(file, 0, (data,)))

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
        is_durable = self.recovery_point == self.next_offset and not self.loose and self.active.names_synced
        if is_durable or self.failed:
            return None
        segments = tuple(self.segments[self.segment_for(self.recovery_point) :])
        for segment in segments:
            segment.flush_indexes()
        loose = tuple(self.loose)
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
        self.settle_loose(flush.loose)
        self.fresh = False
        for segment in flush.segments:
            self.synced(segment, min(flush.end_offset, segment.next_offset))
        last = flush.segments[-1]
        if last in self.segments:
            self.recovery_point = max(self.recovery_point, flush.end_offset)

    def settle_loose(self, files: Iterable[File]) -> None:
        """These are durable now."""
        for file in files:
            if file in self.loose:
                self.loose.remove(file)
                # It is the newest of its path: what the ones before it wrote is durable too.
                done = [file, *(other for other in self.replaced if other.path == file.path)]
            else:
                done = [file] if file in self.replaced else []
            for each in done:
                if each in self.replaced:
                    self.replaced.remove(each)
                self.disk.close(each)

    def leave_snapshot(self, offset: int, data: bytes) -> None:
        """Left to be synced. Torn it would be ignored, but one that a recovery point rests on is not touched for nothing."""
        path = self.snapshot_path(offset)
        if offset != self.recovery_point or self.disk.read_file(path) != data:
            self._write_loose(path, data)

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
        # The recovery point on disk is the last one until the checkpoint that follows this flush.
        wanted = {*self.bases, self.recovery_point}
        return [f"{self.directory}/{name}" for offset, name in older[:-1] if offset not in wanted]

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
            found = slice_of(active, offset, end_offset, bytes_max, whole_first)
            return found if found is not None and found.size else None
        hollow: Slice | None = None
        for at in range(self.segment_for(offset), len(self.segments)):
            segment = self.segments[at]
            if segment.base_offset >= end_offset:
                return hollow
            found = slice_of(segment, offset, end_offset, bytes_max, whole_first)
            if found is not None and at + 1 < len(self.segments) and is_hollow(segment, found):
                # Some clients take an answer without records for one that was cut too short.
                hollow = found
                continue
            if found is not None:
                # What does not fit must come before what lies in the next segment.
                return found if found.size else hollow
        return hollow

    def last_stable_offset(self, high_watermark: int) -> int:
        """Where readers of committed records stop: of everything before it is known whether it was committed."""
        transactions = self.producers.transactions
        if transactions is None:
            return high_watermark
        first = transactions.first_unstable(high_watermark)
        if first is None:
            return high_watermark
        return min(max(first, self.log_start_offset), high_watermark)

    def aborted(self, offset: int, end_offset: int, piece: Slice) -> list[Ended]:
        """The aborted transactions that have records in a slice from `offset` on, bounded by `end_offset`."""
        if not self.has_aborted:
            return []
        return find_aborted(self.segments, self.segment_for(offset), offset, end_offset, piece)

    def find_time(self, timestamp: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record that is not older than this; None if all are."""
        return run(self.look_up_time(timestamp))

    def find_newest(self) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with the largest timestamp; None for an empty log."""
        return run(self.look_up_newest())

    def look_up_time(self, timestamp: int) -> Steps[tuple[int, int] | None]:
        """`find_time` in steps: it may have to decode a large batch."""
        return find_time(list(self.segments), timestamp, self.log_start_offset)

    def look_up_newest(self) -> Steps[tuple[int, int] | None]:
        """`find_newest` in steps."""
        return find_newest(list(self.segments), self.log_start_offset)

    @property
    def parent(self) -> str:
        """The log directory that its own directory is in."""
        return self.directory.rpartition("/")[0]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    # --- shorten --------------------------------------------------------------------------------------------

    def delete_before(self, offset: int) -> bool:
        """Move the log's start up to `offset`; True if it moved. Segments wholly before it can then be dropped."""
        if not self.log_start_offset < offset <= self.next_offset:
            return False
        pairs = list(self.epochs.pairs)
        if self.epochs.truncate_start(offset):
            try:
                self.write_epochs()
            except Refusal:
                self.epochs.pairs = pairs
                raise
        self.log_start_offset = offset
        return True

    def drop_segments(self, count: int) -> list[Segment]:
        """Take the oldest segments out of the log. Their files are the caller's to remove, readers may still hold them."""
        count = min(count, len(self.segments) - 1)
        # First, because it may fail, and then nothing has changed.
        self.delete_before(self.bases[count])
        dropped = self.segments[:count]
        del self.segments[:count]
        del self.bases[:count]
        self.unsynced = [segment for segment in self.unsynced if segment not in dropped]
        # What is gone need not be made durable any more.
        start = self.segments[0].base_offset
        self.flushed_offset = max(self.flushed_offset, start)
        self.recovery_point = max(self.recovery_point, start)
        return dropped

    def truncate(self, offset: int, now_ms: int) -> list[Segment]:
        """Cut off everything from `offset` on; returns the segments that went whole, for the caller to remove.

        A batch goes whole: the log ends where the one that holds `offset` began. The caller writes down the recovery
        point before anything is appended. Below the log's first segment nothing is left, and the log begins there anew.
        """
        if offset >= self.next_offset:
            return []
        if offset < self.bases[0]:
            return self.begin_at(offset, now_ms)
        keep = self.segment_for(offset) + 1
        dropped = self.segments[keep:]
        del self.segments[keep:]
        del self.bases[keep:]
        # A new object for the same files: syncs and flushes that were on their way speak of bytes that are no more,
        # and must not count for those that will stand in their place.
        before = self.segments[-1]
        active = self.active = self.segments[-1] = copy(before)
        active.truncate(offset)
        self.unsynced = [
            active if segment is before else segment for segment in self.unsynced if segment not in dropped
        ]
        self._ended(active.next_offset, now_ms)
        return dropped

    def begin_at(self, offset: int, now_ms: int) -> list[Segment]:
        """Forget everything and begin anew at an offset that the log does not reach, or has left behind.

        Returns all segments that were there, for the caller to remove. One that begins at the same offset has its files
        renamed first: the new segment gets new files, and whoever removes the old one cannot hit the new one.
        """
        for same in self.segments:
            if same.base_offset == offset:
                same.set_aside()
        segment = Segment(
            self.disk, self.directory, offset,
            index_bytes_max=self.config.segment_index_bytes, created_ms=now_ms, create=True,
        )  # fmt: skip
        dropped, self.segments, self.bases = self.segments, [segment], [offset]
        self.active = segment
        self.unsynced = []
        self.log_start_offset = offset
        for snapshot in snapshot_offsets(self.disk.list(self.directory)):
            # They tell of a history that this one does not go on from.
            self.disk.remove(self.snapshot_path(snapshot))
        self._ended(offset, now_ms)
        return dropped

    def _ended(self, offset: int, now_ms: int) -> None:
        """The log was cut: everything that speaks of offsets follows."""
        self.next_offset = offset
        self.log_start_offset = min(self.log_start_offset, offset)
        self.flushed_offset = min(self.flushed_offset, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self.cleaned_offset = min(self.cleaned_offset, offset)
        if self.epochs.truncate_end(offset):
            self.epochs_written = False
            try:
                self.save_epochs()
            except DiskError as error:
                # The records are cut all the same. If only room was missing, the file is written before the next record.
                self.disk_failed(error)
        load_producers(self, now_ms)

    def close(self) -> None:
        for file in (*self.loose, *self.replaced):
            self.disk.close(file)
        for segment in self.segments:
            segment.close()
