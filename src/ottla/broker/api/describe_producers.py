"""DescribeProducers (61): the idempotent and transactional producers that partitions remember (KIP-664).

Leaders and followers answer alike, from their own logs: `kafka-transactions find-hanging --broker-id` asks every replica of
one broker. NOT_LEADER_OR_FOLLOWER is the answer for a partition that has no replica on this broker.

`last_timestamp` is when the producer's last batch was written here, by the broker's clock and not by the producer's: a
producer is forgotten by it. Errors by partition: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, INVALID_TOPIC_EXCEPTION,
KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Result, merged, serves
from ottla.model.errors import ErrorCode
from ottla.model.names import topic_name_problem
from ottla.ports.disk import DiskError

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work
    from ottla.log.producers import Producer
    from ottla.replication.replica import Replica


@serves(61)
def describe_producers(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    return broker.slices.answer(call, _described(broker, request))


def _described(broker: Broker, request: Any) -> Work:
    topics = []
    # The same partition twice is described once: it may remember many producers.
    for name, numbers in merged((topic.name, topic.partition_indexes) for topic in request.topics).items():
        hosted = broker.partitions.by_name.get(name)
        rows = []
        for number in numbers:
            replica = hosted.replicas.get(number) if hosted is not None else None
            row = _row(broker, name, number, replica) | {"partition_index": number}
            rows.append(row)
            yield 1 + len(row["active_producers"])
        topics.append({"name": name, "partitions": rows})
    return {"topics": topics}


def _row(broker: Broker, name: str, number: int, replica: Replica | None) -> dict[str, Any]:
    if replica is None:
        problem = topic_name_problem(name)
        if broker.not_here(None, name, number) is not None:
            return {"error_code": ErrorCode.NOT_LEADER_OR_FOLLOWER, "active_producers": ()}
        return {
            "error_code": ErrorCode.INVALID_TOPIC_EXCEPTION
            if problem
            else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "error_message": problem or f"there is no partition {number} of '{name}' here",
            "active_producers": (),
        }
    if not replica.opened and replica.offline is None and replica not in broker.partitions.unopened:
        # A log that is not made yet remembers nobody.
        return {"error_code": 0, "active_producers": ()}
    try:
        known = replica.log.producers.by_id
    except DiskError as error:
        return {
            "error_code": ErrorCode.KAFKA_STORAGE_ERROR,
            "error_message": str(error),
            "active_producers": (),
        }
    return {
        "error_code": 0,
        "active_producers": [_producer(producer_id, producer) for producer_id, producer in known.items()],
    }


def _producer(producer_id: int, producer: Producer) -> dict[str, Any]:
    return {
        "producer_id": producer_id,
        "producer_epoch": producer.epoch,
        "last_sequence": producer.batches[-1][1] if producer.batches else -1,
        "last_timestamp": producer.timestamp,
        "coordinator_epoch": producer.coordinator_epoch,
        "current_txn_start_offset": producer.transaction_start,
    }
