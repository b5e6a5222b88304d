"""One partition of a fetch: what the response holds of it.

`read_partition` checks the leader epoch, the role of the replica, the offset and the last fetched epoch, and finds the slice
of the log that is sent. It reads no records: a slice is a range of bytes in a segment file.

Consumers read up to the high watermark, or up to the last stable offset (read committed); followers up to the log end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ottla.log.log_reader import Slice
from ottla.log.transactions import Ended
from ottla.model.errors import ErrorCode
from ottla.ports.disk import DamagedFile, DiskError

if TYPE_CHECKING:
    from ottla.broker.requests.fetch_session import FetchPartition
    from ottla.log.partition_log import PartitionLog
    from ottla.replication.replica import Replica


class PartitionData(NamedTuple):
    """One partition of the response."""

    partition: FetchPartition
    error: int
    high_watermark: int
    log_start_offset: int
    data: Slice | None
    diverging: tuple[int, int] | None = None
    last_stable_offset: int = -1
    #: Aborted transactions; None for a fetch that reads uncommitted records.
    aborted: list[Ended] | None = None
    #: The preferred read replica (KIP-392); -1 if the consumer should go on fetching here.
    preferred: int = -1


#: Rows that belong into the response, their bytes, and whether one of them must not wait.
Collected: TypeAlias = tuple[list[PartitionData], int, bool]


def read_partition(partition: FetchPartition, bytes_left: int, *, whole_first: bool) -> PartitionData:
    """Read up to `bytes_left` bytes of one partition. `whole_first`: the first batch is read whole, whatever its size."""
    replica = partition.replica
    if replica is None or replica.gone:
        error = partition.find_again(partition.session.sessions.partitions)
        replica = partition.replica
        if replica is None:
            return PartitionData(partition, error, -1, -1, None)
    if partition.leader_epoch >= 0 and partition.leader_epoch != replica.leader_epoch:
        # R2: the client and this broker know different leaders.
        older = partition.leader_epoch < replica.leader_epoch
        return PartitionData(
            partition,
            ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH,
            -1,
            -1,
            None,
        )
    session = partition.session
    follower = session.follower >= 0
    if replica.leading is None and (follower or session.leader_only or replica.following is None):
        return PartitionData(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, None)
    try:
        log = replica.log
    except DiskError:
        # Its directory is offline. Or the log is created now, and there is no disk space (R13).
        return PartitionData(partition, ErrorCode.KAFKA_STORAGE_ERROR, -1, -1, None)
    offset = partition.offset
    watermark = stable = replica.high_watermark
    if log.producers.transactions is not None:
        stable = log.last_stable_offset(watermark)
    committed = session.committed
    if committed:
        partition.seen_stable = stable
    if offset < log.log_start_offset:
        return PartitionData(partition, ErrorCode.OFFSET_OUT_OF_RANGE, watermark, log.log_start_offset, None)
    if partition.last_fetched_epoch >= 0:
        # R1: checked before the range, so that a follower that is ahead of this log gets the diverging epoch.
        epoch, end = log.epochs.end_of(partition.last_fetched_epoch, log.next_offset)
        if end < 0:
            # This log has no such epoch and none before it: the client's log has nothing in common with it.
            return PartitionData(
                partition, ErrorCode.OFFSET_OUT_OF_RANGE, watermark, log.log_start_offset, None
            )
        if epoch < partition.last_fetched_epoch or end < offset:
            return PartitionData(partition, 0, watermark, log.log_start_offset, None, (epoch, end), stable)
    if offset > log.next_offset:
        # A follower may not have the offset yet. Its consumers must not reset their positions.
        code = (
            ErrorCode.OFFSET_OUT_OF_RANGE if replica.leading is not None else ErrorCode.OFFSET_NOT_AVAILABLE
        )
        return PartitionData(partition, code, watermark, log.log_start_offset, None)
    if session.rack and (nearer := session.sessions.nearer(replica, session.rack, offset)) >= 0:
        return PartitionData(
            partition,
            0,
            watermark,
            log.log_start_offset,
            None,
            None,
            stable,
            [] if committed else None,
            nearer,
        )
    limit = stable if committed else watermark
    if follower:
        if not partition.is_recorded:
            # Only after the check for a diverging epoch: a diverged follower has no record of this log.
            if not session.sessions.record_follower(partition, replica):
                return PartitionData(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, None)
            partition.is_recorded = True
            watermark = replica.high_watermark
        limit = log.next_offset
        if replica.config.leader_replication_throttled_replicas:
            return _throttled(partition, replica, bytes_left, whole_first, stable)
    data = None
    aborted: list[Ended] | None = None
    if bytes_left > 0 or whole_first:
        try:
            data = log.slice(
                offset,
                limit,
                min(partition.bytes_max, bytes_left),
                whole_first=whole_first,
            )
            if committed:
                aborted = log.aborted(offset, stable, data) if data is not None else []
        except DiskError as error:
            return _unreadable(partition, log, error)
    return PartitionData(partition, 0, watermark, log.log_start_offset, data, None, stable, aborted)


def _throttled(
    partition: FetchPartition, replica: Replica, bytes_left: int, whole_first: bool, stable: int
) -> PartitionData:
    """Read for a follower within the replication throttle (KIP-73)."""
    throttle = partition.session.sessions.replication_throttle
    log, data = replica.log, None
    slow = throttle.is_slow_leader(replica, partition.session.follower)
    if (bytes_left > 0 or whole_first) and not (slow and throttle.leader_wait_ms()):
        try:
            data = log.slice(
                partition.offset,
                log.next_offset,
                min(partition.bytes_max, bytes_left),
                whole_first=whole_first,
            )
        except DiskError as error:
            return _unreadable(partition, log, error)
    if slow and data is not None:
        throttle.handed_out.take(data.size)
    return PartitionData(partition, 0, replica.high_watermark, log.log_start_offset, data, None, stable)


def _unreadable(partition: FetchPartition, log: PartitionLog, error: DiskError) -> PartitionData:
    """The row of a partition that cannot be read. The other partitions of the response are not affected."""
    partition.session.sessions.read_failed(log.directory, error)
    damaged = isinstance(error, DamagedFile)
    return PartitionData(
        partition, ErrorCode.CORRUPT_MESSAGE if damaged else ErrorCode.KAFKA_STORAGE_ERROR, -1, -1, None
    )
