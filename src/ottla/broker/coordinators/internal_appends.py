"""Records of the broker's own: what a coordinator writes into a partition that this broker leads, and hearing that they count.

`append_as_leader` is a produce with acks=-1 without a client, and so is `append_marker_as_leader` for the end of a transaction. A
coordinator owns the partitions of its topic (`Replicating.owners`): it hears `lead` when a role begins and `rest` when it ends, in
between appends, and reads what is there. What it has appended in a role is told of before that role's `rest`, so afterwards nothing
is left under way.
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
    """Records that wait for the high watermark, in the same line as clients' produces."""

    __slots__ = ("_done",)

    def __init__(self, done: Callable[[ErrorCode], None]) -> None:
        self._done = done

    def reached(self, _row: dict[str, Any]) -> None:
        self._done(ErrorCode.NONE)

    def failed(self, _replica: Replica, _row: dict[str, Any], code: ErrorCode) -> bool:
        if code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
            # A client is told that nobody knows. But they are in this log, and whoever owns it waits until somebody does.
            return True
        self._done(code)
        return False


def append_as_leader(
    broker: LeaderHost, replica: Replica, batch: bytes, done: Callable[[ErrorCode], None]
) -> int:
    """Append a batch to a partition that this broker leads; returns its first offset.

    `done(NONE)` once, when the high watermark has passed it, which may be before this returns; or with an error when this broker
    leads no more: then whether it counts the next leader knows. Raises Refusal if nothing was written.
    """
    _check_leading(replica)
    if len(batch) > limits.COORDINATOR_RECORD_BYTES and len(batch) > batch_bytes_max(replica):
        raise too_large(len(batch), replica.config)
    # It is our own: what else an append looks for in a client's batch is not looked for.
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
    """The same for a marker."""
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
    """The largest batch that a coordinator may write. What it needs to go on fits, however low max.message.bytes is set."""
    return max(replica.config.max_message_bytes, limits.COORDINATOR_RECORD_BYTES)


def _check_leading(replica: Replica) -> None:
    leading = replica.leading
    if leading is None:
        raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{replica.topic}-{replica.number} is led elsewhere")
    if len(leading.isr) < leading.isr_min:
        raise Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, f"{replica.topic}-{replica.number} has too small an ISR")


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
