"""DeleteRecords (21): move a partition's start up to an offset; -1 means the high watermark.

Answers the new start. Errors by partition: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE, POLICY_VIOLATION (a topic
whose cleanup.policy has no `delete`), KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Result, serves
from ottla.broker.api.shared.topic_rows import topic_rows
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.steps import Steps
from ottla.ports.disk import DiskError

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work
    from ottla.replication.replica import Replica


@serves(21)
def delete_records(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    return broker.slices.answer(call, _deleted(broker, request))


def _deleted(broker: Broker, request: Any) -> Work:
    def row(name: str, replica: Replica | None, partition: Any) -> Steps[dict[str, Any]]:
        yield 1
        try:
            if replica is None or replica.leading is None:
                elsewhere = broker.not_here(None, name, partition.partition_index)
                raise Refusal(elsewhere or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return {"low_watermark": _delete(broker, replica, partition.offset), "error_code": 0}
        except Refusal as refusal:
            code = refusal.code
        except DiskError:
            code = ErrorCode.KAFKA_STORAGE_ERROR
        return {"low_watermark": -1, "error_code": code}

    return {"topics": (yield from topic_rows(broker, request.topics, row))}


def _delete(broker: Broker, replica: Replica, offset: int) -> int:
    if not replica.config.delete:
        raise Refusal(ErrorCode.POLICY_VIOLATION)
    log = replica.log
    target = replica.high_watermark if offset == -1 else offset
    if not 0 <= target <= replica.high_watermark:
        raise Refusal(ErrorCode.OFFSET_OUT_OF_RANGE)
    broker.log_maintenance.delete_records(replica, target)
    return log.log_start_offset
