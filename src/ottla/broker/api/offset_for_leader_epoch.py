"""OffsetForLeaderEpoch (23): where the records of a leader epoch end, so that a reader finds out what was cut off (R1).

The answer is the largest epoch not after the one asked for, and where the next one begins, or the end of the log. An
epoch that only a newer leader can know is answered with -1 and -1. Errors by partition: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER,
FENCED_LEADER_EPOCH and UNKNOWN_LEADER_EPOCH if the caller's own epoch is not the leader's (R2), KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Result, serves
from ottla.broker.api.shared.topic_rows import topic_rows
from ottla.model.errors import ErrorCode
from ottla.model.steps import Steps
from ottla.ports.disk import DiskError

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work
    from ottla.replication.replica import Replica


@serves(23)
def offset_for_leader_epoch(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    return broker.slices.answer(call, _found(broker, request))


def _found(broker: Broker, request: Any) -> Work:
    def row(name: str, replica: Replica | None, partition: Any) -> Steps[dict[str, Any]]:
        yield 1
        return _row(broker, name, replica, partition)

    topics = yield from topic_rows(broker, request.topics, row, name_field="topic", number_field="partition")
    return {"topics": topics}


def _row(broker: Broker, name: str, replica: Replica | None, partition: Any) -> dict[str, Any]:
    if replica is None:
        elsewhere = broker.not_here(None, name, partition.partition)
        return {"error_code": elsewhere or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    current = partition.current_leader_epoch
    if current >= 0 and current != replica.leader_epoch:
        older = current < replica.leader_epoch
        return {"error_code": ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH}
    if replica.leading is None:
        return {"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER}
    try:
        epoch, end_offset = _end_of(replica, partition.leader_epoch)
    except DiskError:
        return {"error_code": ErrorCode.KAFKA_STORAGE_ERROR}
    return {"error_code": 0, "leader_epoch": epoch, "end_offset": end_offset}


def _end_of(replica: Replica, epoch: int) -> tuple[int, int]:
    log = replica.log
    latest = log.epochs.latest
    if latest < epoch <= replica.leader_epoch:
        # The leader's own epoch has written nothing yet: it will begin at the end of the log, where the one before ends.
        return (epoch if epoch == replica.leader_epoch or latest < 0 else latest), log.next_offset
    return log.epochs.end_of(epoch, log.next_offset)
