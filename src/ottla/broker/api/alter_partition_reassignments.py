"""AlterPartitionReassignments (45): give partitions other replicas, or with null take a move back that runs (KIP-455).

A move that runs is replaced by the new one. The answer leaves when the move has begun; ListPartitionReassignments tells how it
goes on. Version 1 may forbid a change of the replication factor. Errors by partition: UNKNOWN_TOPIC_OR_PARTITION,
INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR, NO_REASSIGNMENT_IN_PROGRESS, INVALID_REQUEST (named twice); of the whole:
NOT_CONTROLLER, REQUEST_TIMED_OUT.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.shared.api_table import Response, Result, serves
from ottla.broker.api.shared.controller_decisions import Decisions
from ottla.broker.api.shared.proposals import TIMED_OUT, refused
from ottla.controller.leader_election import rules_of
from ottla.controller.reassignment import cancel, reassign
from ottla.metadata import records as r
from ottla.metadata.image import Image, TopicImage
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import ROWS_PER_REASSIGNMENT_MAX
from ottla.model.steps import STEP_COST

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work

#: What deciding about a topic costs, and about each of its partitions (see `model/steps.py`).
_TOPIC_COST: Final = 3
_PARTITION_COST: Final = 3


@serves(45, by_controller=True, rows_max=ROWS_PER_REASSIGNMENT_MAX)
def alter_partition_reassignments(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    may_change_factor = request.allow_replication_factor_change if call.version >= 1 else True

    def failed(code: ErrorCode) -> Response:
        text = TIMED_OUT if code is ErrorCode.REQUEST_TIMED_OUT else "the change is not made here"
        return {
            "error_code": code, "error_message": text, "responses": (),
            "allow_replication_factor_change": may_change_factor,
        }  # fmt: skip

    if not broker.controller_driver.may_decide:
        return failed(ErrorCode.NOT_CONTROLLER)
    return broker.slices.answer(call, _reassigned(broker, call, request, may_change_factor, failed))


def _reassigned(
    broker: Broker, call: Call, request: Any, may_change_factor: bool, failed: Callable[[ErrorCode], Response]
) -> Work:
    decisions = Decisions(broker, request)
    times = Counter(
        (topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
    )
    records: list[r.Record] = []
    topics = []
    cost = len(times) // 5
    for wanted in request.topics:
        image = broker.proposed
        topic = image.topics.get(wanted.name)
        rules = rules_of(image, broker.config, wanted.name)
        rows = []
        cost += _TOPIC_COST
        if cost >= STEP_COST and not wanted.partitions:
            yield cost
            cost = 0
            if not broker.controller_driver.may_decide:
                return failed(ErrorCode.NOT_CONTROLLER)
        for each in wanted.partitions:
            cost += _PARTITION_COST
            if cost >= STEP_COST:
                if records:
                    decisions.propose(records)
                    records = []
                yield cost
                cost = 0
                if not broker.controller_driver.may_decide:
                    return failed(ErrorCode.NOT_CONTROLLER)
                image = broker.proposed
                topic = image.topics.get(wanted.name)
            row: dict[str, Any] = {
                "partition_index": each.partition_index, "error_code": 0, "error_message": None,
            }  # fmt: skip
            try:
                if times[wanted.name, each.partition_index] > 1:
                    raise Refusal(ErrorCode.INVALID_REQUEST, "the partition is named more than once")
                old = _find(image, topic, wanted.name, each.partition_index)
                if each.replicas is None:
                    new = cancel(image, rules, old)
                else:
                    new = reassign(image, rules, old, each.replicas, may_change_factor=may_change_factor)
                if new is not old:
                    records.append(new)
            except Refusal as refusal:
                row.update(refused(refusal))
            rows.append(row)
        topics.append({"name": wanted.name, "partitions": rows})
    answer = {
        "error_code": 0, "error_message": None, "responses": topics,
        "allow_replication_factor_change": may_change_factor,
    }  # fmt: skip
    if records:
        decisions.propose(records)
    return decisions.answer(call, lambda: answer, failed)


def _find(image: Image, topic: TopicImage | None, name: str, number: int) -> r.Partition:
    if topic is None or not 0 <= number < len(topic.partitions):
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{name}' has no partition {number}")
    return topic.partitions[number]
