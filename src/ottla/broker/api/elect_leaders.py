"""ElectLeaders (43): let the preferred replica lead (0), or any live one a partition that nobody leads (1: unclean, KIP-460).

Without partitions all of the cluster are meant, and those that need no election are not in the answer. Version 0 knows preferred
elections only. Errors by partition: UNKNOWN_TOPIC_OR_PARTITION, ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
ELIGIBLE_LEADERS_NOT_AVAILABLE; of the whole: INVALID_REQUEST for another kind of election, NOT_CONTROLLER. Version 0 has no
place for an error of the whole: each partition has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Response, Result, serves
from ottla.broker.api.shared.controller_decisions import Decisions
from ottla.broker.api.shared.proposals import refused
from ottla.controller.leader_election import Rules, rules_of
from ottla.controller.preferred_election import PREFERRED, UNCLEAN, elect
from ottla.metadata import records as r
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.steps import STEP_COST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work


@serves(43, by_controller=True)
def elect_leaders(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    kind = request.election_type if call.version >= 1 else PREFERRED
    image = broker.proposed
    is_all = request.topic_partitions is None
    if is_all:
        asked = {topic.name: range(len(topic.partitions)) for topic in image.topics.values()}
    else:
        asked = {topic.topic: topic.partitions for topic in request.topic_partitions}

    def failed(code: ErrorCode) -> Response:
        rows = [] if is_all else [_failed_row(name, numbers, code) for name, numbers in asked.items()]
        return {"error_code": code, "replica_election_results": rows}

    if kind not in (PREFERRED, UNCLEAN):
        return failed(ErrorCode.INVALID_REQUEST)
    if not broker.controller_driver.may_decide:
        return failed(ErrorCode.NOT_CONTROLLER)
    return broker.slices.answer(call, _elected(broker, call, request, asked, kind, failed))


def _elected(
    broker: Broker,
    call: Call,
    request: Any,
    asked: Mapping[str, Sequence[int]],
    kind: int,
    failed: Callable[[ErrorCode], Response],
) -> Work:
    is_all = request.topic_partitions is None
    decisions = Decisions(broker, request)
    records: list[r.Record] = []
    results = []
    cost = 0
    for name, numbers in asked.items():
        rows = []
        rules: Rules | None = None
        image = broker.proposed
        topic = image.topics.get(name)
        for at, number in enumerate(dict.fromkeys(numbers)):
            if cost + at >= STEP_COST:
                if records:
                    decisions.propose(records)
                    records = []
                yield cost + at
                cost = -at
                if not broker.controller_driver.may_decide:
                    return failed(ErrorCode.NOT_CONTROLLER)
                image = broker.proposed
                topic = image.topics.get(name)
            row: dict[str, Any] = {"partition_id": number, "error_code": 0, "error_message": None}
            try:
                if topic is None or not 0 <= number < len(topic.partitions):
                    raise Refusal(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{name}' has no partition {number}"
                    )
                rules = rules or rules_of(image, broker.config, name)
                records.append(elect(image, rules, topic.partitions[number], kind))
            except Refusal as refusal:
                if is_all and refusal.code is ErrorCode.ELECTION_NOT_NEEDED:
                    continue
                row.update(refused(refusal))
            rows.append(row)
        if rows or not is_all:
            results.append({"topic": name, "partition_result": rows})
        cost += 1 + len(numbers)
    if records:
        decisions.propose(records)
    answer = {"error_code": 0, "replica_election_results": results}
    return decisions.answer(call, lambda: answer, failed)


def _failed_row(name: str, numbers: Any, code: ErrorCode) -> dict[str, Any]:
    return {
        "topic": name,
        "partition_result": [
            {"partition_id": number, "error_code": code, "error_message": None} for number in numbers
        ],
    }
