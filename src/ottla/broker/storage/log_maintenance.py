"""Periodic work on logs: flushes and checkpoints, retention, producer id expiry, deletion of files.

A flush makes a log durable up to its end, with its indexes and a producer snapshot. Then its recovery point
moves there and is checkpointed, so a start after a crash reads only what was appended since (R12). Busy logs
are flushed every `log.recovery.point.interval.bytes`, the others in turn, by time. The disk work is a job off
the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.storage.checkpoint_writer import CheckpointWriter
from ottla.config.topic import TopicConfig
from ottla.log.flush import Flush, stale_snapshots
from ottla.log.names import DELETED, INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX, offset_name, partition_dir
from ottla.log.partition_log import PartitionLog
from ottla.log.retention import expired_segments
from ottla.log.segment import Segment
from ottla.model import limits
from ottla.model.errors import Refusal
from ottla.model.steps import Steps
from ottla.model.timer_wheel import Later, Periodic
from ottla.ports.disk import Disk, DiskError
from ottla.replication.partition_walk import PartitionWalk

if TYPE_CHECKING:
    from ottla.broker.storage.host import StorageHost
    from ottla.broker.storage.log_directory import LogDirectory
    from ottla.replication.replica import Replica

#: How often logs are checked for a background flush.
_FLUSH_CHECK_MS: Final = 1000
#: Pause before a rename or a sync of a directory is repeated.
_RETRY_MS: Final = 2000
#: A log with more unflushed bytes is flushed at the next check, any other after the checkpoint interval.
_FLUSH_SOON_BYTES: Final = 1 << 20
#: Flushes at the same time: each is a few syncs in one job.
_FLUSHES_MAX: Final = 4
_COMPACTION_CHECK_MS_MIN: Final = 100
#: Flushes per check that are due only because of the checkpoint interval. For ten thousand logs with a few
#: records each, syncing all of them every few seconds costs more than reading them again after a crash.
_FLUSHES_PER_CHECK: Final = 32
#: The cost of dropping segments, in partitions that retention visits and leaves alone.
_DROP_COST: Final = 64
#: The cost of closing and renaming a log (see `model/steps.py`).
_DELETE_COST: Final = 20
#: How often all producers are counted.
_PRODUCERS_COUNT_MS: Final = 10_000


class LogMaintenance:
    def __init__(self, host: StorageHost) -> None:
        self._host = host
        self._flushing: set[Replica] = set()
        #: Logs with unflushed records, the longest unflushed first.
        self._unflushed: dict[Replica, None] = {}
        #: Logs to flush when one of the `_FLUSHES_MAX` flushes is done.
        self._due: deque[Replica] = deque()
        self._allowance = 0
        self._retention_date_ms = 0
        self._flush_walk = PartitionWalk(host.timers, self._flush_if_due)
        self._retain_walk = PartitionWalk(host.timers, self._retain)
        #: Producer ids whose last batch is older expire.
        self._silent_since_ms = 0
        self._producers_walk = PartitionWalk(host.timers, self._forget_producers)
        #: (log directory, topic, partition) of deleted logs that could not be renamed yet.
        self._not_deleted: set[tuple[str, str, int]] = set()
        #: Logs to delete that are not renamed yet, by topic and partition.
        self.to_delete: dict[tuple[str, int], tuple[Replica, LogDirectory]] = {}
        #: The number of producers of each partition at the last count, and how many one may have.
        self._producer_counts: list[int] = []
        self._producers_max = limits.PARTITION_PRODUCERS_MAX
        self._count_walk = PartitionWalk(host.timers, self._count_producers)
        self._checkpoints = {
            directory: CheckpointWriter(host, directory) for directory in host.directories.all
        }

    def start(self, now_ms: int) -> None:
        host = self._host
        self._every(lambda: _FLUSH_CHECK_MS, self.flush_due, now_ms)
        self._every(lambda: host.config.log_retention_check_interval_ms, self.retain, now_ms)
        self._every(
            lambda: host.config.producer_id_expiration_check_interval_ms, self.forget_producers, now_ms
        )
        self._every(lambda: _PRODUCERS_COUNT_MS, self.count_producers, now_ms)
        self._every(
            lambda: max(_COMPACTION_CHECK_MS_MIN, host.config.log_cleaner_backoff_ms),
            host.log_cleaner.start_if_due,
            now_ms,
        )

    def _every(self, interval_ms: Callable[[], int], action: Callable[[int], None], now_ms: int) -> None:
        timers = self._host.timers
        timers.add(Periodic(timers, interval_ms, action), now_ms + interval_ms())

    def checkpoints(self, log: PartitionLog) -> CheckpointWriter:
        """The checkpoint writer of a log's directory."""
        return self._checkpoints[self._host.directories.of(log)]

    def checkpoints_in(self, directory: LogDirectory) -> CheckpointWriter:
        return self._checkpoints[directory]

    # --- flushes --------------------------------------------------------------------------------------------

    def written(self, replica: Replica, now_ms: int) -> None:
        """A log has unflushed records."""
        replica.since_flush_ms = now_ms
        self._unflushed[replica] = None

    def flush_due(self, now_ms: int) -> None:
        if not self._due:
            self._allowance = _FLUSHES_PER_CHECK
            self._flush_walk.begin(list(self._unflushed), now_ms)

    def _flush_if_due(self, replica: Replica, now_ms: int) -> int:
        if not replica.opened:
            self._unflushed.pop(replica, None)
        if replica not in self._unflushed:
            return 1
        waited_ms = now_ms - replica.since_flush_ms
        if waited_ms < replica.config.flush_ms and replica.log.unflushed_bytes < _FLUSH_SOON_BYTES:
            interval_ms = self._host.config.log_flush_offset_checkpoint_interval_ms
            if waited_ms < interval_ms or not self._allowance:
                return 1
            self._allowance -= 1
        self._due.append(replica)
        self._flush_next()
        return 1

    def _flush_next(self) -> None:
        while self._due and len(self._flushing) < _FLUSHES_MAX:
            replica = self._due.popleft()
            if replica in self._unflushed and replica.opened:
                self._host.isolation.run(f"a flush of {replica.topic}-{replica.number}", self.flush, replica)

    def is_flushing(self, replica: Replica) -> bool:
        return replica in self._flushing

    def flush(self, replica: Replica) -> None:
        """Flush a log in the background, unless a flush of it is under way."""
        if replica in self._flushing:
            return
        self._unflushed.pop(replica, None)
        log = replica.log
        try:
            flush = log.begin_flush()
        except DiskError as error:
            # R13: if the disk was full, the next check tries again.
            self._unflushed[replica] = None
            log.disk_failed(error)
            return
        replica.since_flush_ms = -1
        if flush is None:
            return
        self._flushing.add(replica)
        parent = log.parent if log.fresh else None
        directory = self._host.directories.of(log)

        def done(failed: DiskError | None, error: str | None) -> None:
            self._flushing.discard(replica)
            if error is not None:
                # An internal error, not an error of the disk: the flush is repeated.
                failed = DiskError(f"a flush of {replica.topic}-{replica.number} failed: {error}")
            self._host.isolation.run("a flush", finished, failed)
            self._flush_next()

        def finished(failed: DiskError | None) -> None:
            if replica.gone:
                # The partition was deleted during the flush: its errors do not matter.
                pass
            elif failed is not None and failed.broken:
                self._host.go_offline(directory, f"a sync failed: {failed}")
            elif failed is not None:
                # R13: the records are written. The rest of the flush is repeated.
                self.written(replica, self._host.now_ms)
                self._host.write_failed(directory, failed)
            elif replica.opened and not replica.gone:
                log.flushed(flush)
                self._host.advance(replica)
                self.checkpoints_in(directory).want(replica)

        def job(disk: Disk) -> DiskError | None:
            failed = _perform(disk, replica, flush, parent)
            if failed is not None and failed.broken and not replica.gone:
                directory.sync_error = str(failed)
            return failed

        self._host.run(job, done)

    # --- producers ------------------------------------------------------------------------------------------

    def forget_producers(self, now_ms: int) -> None:
        """Expire producer ids without recent batches, except those with an open transaction."""
        date_ms = self._host.wall_clock.retention_ms(now_ms)
        self._silent_since_ms = date_ms - self._host.config.producer_id_expiration_ms
        self._producers_walk.begin(self._host.partitions.replicas(), now_ms)

    def _forget_producers(self, replica: Replica, _now_ms: int) -> int:
        if replica.gone or not replica.opened:
            return 1
        producers = replica.log.producers
        producers.expire(self._silent_since_ms)
        return 1 + len(producers.by_id) // 16

    def count_producers(self, now_ms: int) -> None:
        """Trim the partitions with the most producers, if all partitions together have too many."""
        if self._count_walk.is_under_way:
            return
        self._producers_max = share_of(limits.BROKER_PRODUCERS_MAX, self._producer_counts)
        self._producer_counts = []
        self._count_walk.begin(self._host.partitions.replicas(), now_ms)

    def _count_producers(self, replica: Replica, _now_ms: int) -> int:
        if replica.gone or not replica.opened:
            return 1
        producers = replica.log.producers
        count = len(producers.by_id)
        self._producer_counts.append(count)
        if count <= self._producers_max:
            return 1
        producers.trim(self._producers_max)
        return 1 + count // 16

    # --- retention ------------------------------------------------------------------------------------------

    def retain(self, now_ms: int) -> None:
        """Delete old segments by age and size (B6)."""
        self._retention_date_ms = self._host.wall_clock.retention_ms(now_ms)
        self._retain_walk.begin(self._host.partitions.replicas(), now_ms)

    def _retain(self, replica: Replica, _now_ms: int) -> int:
        if replica.gone or not replica.opened:
            return 1
        host, log = self._host, replica.log
        try:
            count = expired_segments(log, self._retention_date_ms, replica.high_watermark)
            if not count:
                return 1
            if count == len(log.segments):
                # Even the active segment is too old: roll it, so that it can be deleted.
                log.roll(host.wall_ms)
            self.remove_segments(replica, log.drop_segments(count))
        except (DiskError, Refusal) as error:
            host.say(
                f"retention of {replica.topic}-{replica.number} failed, and is retried: {error}. Old "
                "segments stay on disk meanwhile"
            )
            if isinstance(error, DiskError):
                host.disk_failed(log.directory, error)
        return _DROP_COST

    def delete_records(self, replica: Replica, offset: int) -> None:
        """Advance a log's start offset, and delete the segments before it."""
        log = replica.log
        if log.delete_before(offset):
            whole = sum(1 for base in log.bases[1:] if base <= offset)
            if whole:
                self.remove_segments(replica, log.drop_segments(whole))
            else:
                self._start_moved(replica)

    def _start_moved(self, replica: Replica, after: Callable[[], None] | None = None) -> None:
        # With the leader epochs, which confirm the new start (`LogDirectory.load`).
        log = replica.log
        self.checkpoints(log).want(replica, before=(list(log.loose), log.directory), after=after)
        # Fetches that wait at an offset before the start must be answered.
        self._host.moved(replica)

    def remove_segments(self, replica: Replica, segments: list[Segment]) -> None:
        """Delete files of segments after `file.delete.delay.ms`: responses being sent may still read them."""
        for segment in segments:
            segment.close()
        paths: list[str] = []

        def remove(disk: Disk) -> None:
            for path in paths:
                disk.remove(path + DELETED)

        def rename() -> None:
            if replica.gone:
                # The names may belong to a new topic of the same name.
                return
            # The log may have been truncated to its start meanwhile and use one of the names again.
            used = set(replica.log.bases) if replica.opened else set()
            for segment in segments:
                if segment.base_offset in used:
                    continue
                stem = f"{segment.directory}/{offset_name(segment.base_offset)}"
                for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT):
                    paths.append(stem + suffix)
                    with suppress(DiskError):
                        self._host.disk.rename(stem + suffix, stem + suffix + DELETED)
            self.run_later(replica.config.file_delete_delay_ms, remove)

        # Only when the new start is durable. A crash may bring some of the files back and others not; the
        # start offset tells these from a log with a hole.
        self._start_moved(replica, after=rename)

    def truncated(self, replica: Replica, segments: list[Segment], done: Callable[[], None]) -> None:
        """A follower's log was truncated: delete the segments that were dropped, and checkpoint the log.

        They are renamed at once, because the next records may need one of the names. The last segment first:
        a crash then leaves a log that was truncated less.
        """
        host = self._host
        host.log_dir_moves.cancel(replica)
        paths = []
        for segment in reversed(segments):
            stem = f"{segment.directory}/{offset_name(segment.base_offset)}"
            segment.close()
            if segment.is_set_aside:
                # Its names belong to the segment that replaced it.
                paths += segment.set_aside()
                continue
            for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT):
                with suppress(DiskError):
                    host.disk.rename(stem + suffix, stem + suffix + DELETED)
                    paths.append(stem + suffix + DELETED)
        if paths:
            self.remove_later(replica, paths)
        log = replica.log
        # The truncated file too. If the next records start a new segment, nothing else syncs this one, and
        # the truncated records would be back after a crash.
        files = [*log.loose, log.active.file]
        self.checkpoints(log).want(replica, before=(files, log.directory), after=done)

    def remove_later(self, replica: Replica, paths: list[str]) -> None:
        """Delete renamed files after `file.delete.delay.ms`: responses being sent may still read them."""

        def remove(disk: Disk) -> None:
            for path in paths:
                disk.remove(path)

        self.run_later(replica.config.file_delete_delay_ms, remove)

    def delete_partition(self, replica: Replica, directory: LogDirectory) -> None:
        """Delete a log: renamed in one of the next turns, removed from disk after `file.delete.delay.ms`."""
        self._unflushed.pop(replica, None)
        directory.partitions -= 1
        if not self.to_delete:
            self._host.slices.begin(self._delete_all(), self._deleted)
        self.to_delete[replica.topic, replica.number] = (replica, directory)

    def _delete_all(self) -> Steps[None]:
        """Rename all logs in `to_delete`, a few per turn.

        New logs wait for that (`LogOpener.create_logs`).
        """
        touched: set[LogDirectory] = set()
        while self.to_delete:
            touched.add(self._delete_one(next(iter(self.to_delete))))
            yield _DELETE_COST
        for directory in touched:
            self._sync_directory(directory)

    def _deleted(self, _result: None, error: Exception | None) -> None:
        if error is not None:
            self._host.isolation.contain("the deletion of logs", error)
        if self.to_delete:
            self._host.slices.begin(self._delete_all(), self._deleted)

    def _delete_one(self, place: tuple[str, int]) -> LogDirectory:
        replica, directory = self.to_delete.pop(place)
        if replica.opened:
            replica.log.close()
            # Breaks a reference cycle between the log and the replica.
            replica.log.on_failure = None
        self.delete_log(directory, replica.topic, replica.number, replica.config)
        return directory

    def finish_deletions(self) -> None:
        """Rename the rest at once: the broker stops."""
        for directory in {self._delete_one(place) for place in list(self.to_delete)}:
            self._sync_directory(directory)

    def _sync_directory(self, directory: LogDirectory) -> None:
        """Make the renames durable: a crash must not bring back a log under the name of a new topic."""
        if directory.offline is not None:
            return
        host = self._host
        try:
            host.disk.sync_dir(directory.path)
        except DiskError as error:
            host.write_failed(directory, error)
            # Tried again, unless the device failed and the directory is offline.
            host.timers.add(Later(lambda: self._sync_directory(directory)), host.now_ms + _RETRY_MS)

    def delete_log(self, directory: LogDirectory, topic: str, number: int, config: TopicConfig) -> None:
        """Rename a log's directory, and remove it after `file.delete.delay.ms`."""
        host = self._host
        try:
            path = directory.retire(topic, number, host.entropy.id_bytes())
        except DiskError as error:
            host.write_failed(directory, error)
            if directory.offline is None and self._is_there(directory, topic, number):
                # A new topic of the same name waits: it must not find this log.
                self._not_deleted.add((directory.path, topic, number))
                again = Later(lambda: self.delete_log(directory, topic, number, config))
                host.timers.add(again, host.now_ms + _RETRY_MS)
            return
        self._not_deleted.discard((directory.path, topic, number))
        self.checkpoints_in(directory).want()
        self.run_later(config.file_delete_delay_ms, lambda disk: disk.remove_dir(path))

    def _is_there(self, directory: LogDirectory, topic: str, number: int) -> bool:
        try:
            return partition_dir(topic, number) in self._host.disk.list(directory.path)
        except DiskError:
            return True

    def check_name_is_free(self, directory: LogDirectory, topic: str, number: int) -> None:
        """Rename the log of a deleted topic of the same name now. Raises DiskError while that fails."""
        if (topic, number) in self.to_delete:
            self._sync_directory(self._delete_one((topic, number)))
        if (directory.path, topic, number) in self._not_deleted:
            raise DiskError(
                "the log of a deleted topic of the same name is still at "
                f"{directory.partition_path(topic, number)}",
                short=True,
            )

    def run_later(self, delay_ms: int, job: Callable[[Disk], None]) -> None:
        host = self._host

        def done(_result: Any, error: str | None) -> None:
            if error is not None:
                host.say(
                    f"files of deleted segments or logs could not be removed: {error}. Remove them by hand"
                )

        host.timers.add(Later(lambda: host.run(job, done)), host.now_ms + delay_ms)


def _perform(disk: Disk, replica: Replica, flush: Flush, parent: str | None) -> DiskError | None:
    """The job of a flush: sync data and indexes, then write the producer snapshot at their end.

    Returns the error. Unless the device failed (`broken`) the flush may be repeated.
    """
    log = replica.log
    try:
        for file in flush.files:
            disk.sync(file)
        if replica.gone:
            # Its directory may belong to a new topic of the same name.
            return None
        # Also makes the names of the files durable: it syncs the directory.
        disk.replace_file(log.snapshot_path(flush.end_offset), flush.snapshot)
        if parent is not None:
            disk.sync_dir(parent)
        for path in stale_snapshots(log, flush.end_offset):
            disk.remove(path)
    except DiskError as error:
        return error
    return None


def share_of(limit: int, counts: list[int]) -> int:
    """The largest maximum per partition that keeps the sum of the counts within `limit`."""
    left, share = limit, limit
    for position, count in enumerate(sorted(counts)):
        share = left // (len(counts) - position)
        if count > share:
            return share
        left -= count
    return limit
