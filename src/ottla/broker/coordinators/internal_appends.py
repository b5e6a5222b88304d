"""Appends of the broker itself to partitions that it leads: records of coordinators, and transaction markers.

`append_as_leader` is a produce with acks=-1 without a client; `append_marker_as_leader` is the same for a
marker.

A coordinator owns the partitions of its topic (`ReplicaRoles.owners`): `on_election` is called when this
broker becomes the leader, `on_resignation` when it stops. The outcome of every append is reported before
`on_resignation`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla.log.markers import Marker, append_marker
from ottla.log.replay import ATTRIBUTES, DELTA, MAX_TIMESTAMP, PRODUCER
from ottla.log.validation import too_large
from ottla.model import limits
from ottla.model.errors import ErrorCode, Refusal
from ottla.ports.disk import DiskError
from ottla.records.batch import HEADER, TRANSACTIONAL_BIT

if TYPE_CHECKING:
    from ottla.broker.coordinators.host import LeaderHost
    from ottla.log.partition_log import PartitionLog
    from ottla.replication.replica import Replica


class PendingAppend:
    """An append that waits for the high watermark, in the same queue as the produce requests of clients."""

    __slots__ = ("_done",)

    def __init__(self, done: Callable[[ErrorCode], None]) -> None:
        self._done = done

    def reached(self, _row: dict[str, Any]) -> None:
        self._done(ErrorCode.NONE)

    def failed(self, _replica: Replica, _row: dict[str, Any], code: ErrorCode) -> bool:
        if code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
            # A client gets this error. The coordinator keeps waiting: the records are in its log.
            return True
        self._done(code)
        return False


def append_as_leader(
    broker: LeaderHost, replica: Replica, batch: bytes, done: Callable[[ErrorCode], None]
) -> int:
    """Append a batch to a partition that this broker leads; returns its first offset.

    Calls `done(NONE)` when the high watermark has passed the batch, which may be before this returns. Calls
    `done(error)` when this broker stops leading; then the next leader decides the outcome. Raises Refusal if
    nothing was written.
    """
    _check_leading(replica)
    if len(batch) > limits.COORDINATOR_RECORD_BYTES and len(batch) > batch_bytes_max(replica):
        raise too_large(len(batch), replica.config)
    # An own batch needs no validation.
    header = HEADER.unpack_from(batch)
    try:
        log = replica.log
        base_offset, last_offset, _append_time, _duplicate = log.write(
            batch,
            len(batch),
            log.next_offset + header[DELTA],
            header[MAX_TIMESTAMP],
            replica.leader_epoch,
            broker.wall_ms,
            -1,
        )
    except DiskError as error:
        raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
    producer_id, producer_epoch, sequence, count = header[PRODUCER:]
    if producer_id >= 0:
        log.producers.appended(
            producer_id, producer_epoch, sequence, count, base_offset, last_offset, broker.wall_ms,
            header[ATTRIBUTES] & TRANSACTIONAL_BIT,
        )  # fmt: skip
    _await(broker, replica, log, last_offset, done)
    return int(base_offset)


def append_marker_as_leader(
    broker: LeaderHost,
    replica: Replica,
    producer_id: int,
    producer_epoch: int,
    marker: Marker,
    done: Callable[[ErrorCode], None],
) -> int:
    """Like `append_as_leader`, for a marker."""
    _check_leading(replica)
    try:
        log = replica.log
        appended = append_marker(
            log, producer_id, producer_epoch, marker, replica.leader_epoch, broker.wall_ms
        )
    except DiskError as error:
        raise Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
    _await(broker, replica, log, appended[1], done)
    replica.settle()
    return int(appended[0])


def batch_bytes_max(replica: Replica) -> int:
    """The largest batch of a coordinator. Its own records fit even if max.message.bytes is set very low."""
    return max(replica.config.max_message_bytes, limits.COORDINATOR_RECORD_BYTES)


def _check_leading(replica: Replica) -> None:
    leading = replica.leading
    if leading is None:
        raise Refusal(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{replica.topic}-{replica.number} is not led by this broker"
        )
    if len(leading.isr) < leading.isr_min:
        raise Refusal(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"{replica.topic}-{replica.number} has fewer in-sync replicas than min.insync.replicas",
        )


def _await(
    broker: LeaderHost,
    replica: Replica,
    log: PartitionLog,
    last_offset: int,
    done: Callable[[ErrorCode], None],
) -> None:
    broker.appended(replica, log, broker.now_ms)
    if last_offset < replica.high_watermark:
        done(ErrorCode.NONE)
    else:
        replica.waiting.append((last_offset + 1, PendingAppend(done), {}))
