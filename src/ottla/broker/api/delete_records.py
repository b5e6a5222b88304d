"""DeleteRecords (21): move a partition's start up to an offset; -1 means the high watermark.

Answers the new start. Errors by partition: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE, POLICY_VIOLATION (a topic
whose cleanup.policy has no `delete`), KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Result, serves
from ottla.model.errors import ErrorCode, Refusal
from ottla.ports.disk import DiskError

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work


@serves(21)
def delete_records(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    return broker.slices.answer(call, _deleted(broker, request))


def _deleted(broker: Broker, request: Any) -> Work:
    topics = []
    for topic in request.topics:
        rows = []
        for partition in topic.partitions:
            row = {"partition_index": partition.partition_index, "low_watermark": -1, "error_code": 0}
            try:
                row["low_watermark"] = _delete(
                    broker, topic.name, partition.partition_index, partition.offset
                )
            except Refusal as refusal:
                row["error_code"] = refusal.code
            except DiskError:
                row["error_code"] = ErrorCode.KAFKA_STORAGE_ERROR
            rows.append(row)
            yield 1
        topics.append({"name": topic.name, "partitions": rows})
    return {"topics": topics}


def _delete(broker: Broker, name: str, number: int, offset: int) -> int:
    hosted = broker.partitions.by_name.get(name)
    replica = hosted.replicas.get(number) if hosted is not None else None
    if replica is None or replica.leading is None:
        raise Refusal(broker.not_here(None, name, number) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if not replica.config.delete:
        raise Refusal(ErrorCode.POLICY_VIOLATION)
    log = replica.log
    target = replica.high_watermark if offset == -1 else offset
    if not 0 <= target <= replica.high_watermark:
        raise Refusal(ErrorCode.OFFSET_OUT_OF_RANGE)
    broker.log_maintenance.delete_records(replica, target)
    return log.log_start_offset
