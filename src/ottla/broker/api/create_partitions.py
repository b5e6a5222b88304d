"""CreatePartitions (37): give topics more partitions; existing ones keep theirs (E10).

Every topic asked for is answered, in order. With validate_only nothing is changed. Errors by topic:
UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS (also for the topics of the coordinators), INVALID_REPLICA_ASSIGNMENT, INVALID_REQUEST
(named twice), POLICY_VIOLATION (too many partitions in one request, too many replicas per broker, or too large for the metadata log),
REQUEST_TIMED_OUT.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.shared.api_table import Result, serves
from ottla.broker.api.shared.proposals import Change, Proposals, refused
from ottla.broker.coordinators.group_coordinator import OFFSETS_TOPIC
from ottla.broker.coordinators.transaction_coordinator import TRANSACTIONS_TOPIC
from ottla.controller.topics import TOPIC_COST, Drafts, partitions_of
from ottla.metadata import records as r
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import ROWS_PER_WRITE_MAX

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work

#: The topics whose partitions say where something is coordinated.
_FIXED: Final = {
    OFFSETS_TOPIC: "groups belong to them by their number, and would lose their offsets",
    TRANSACTIONS_TOPIC: "transactional ids belong to them by their number, and would lose their producers and transactions",
}


@serves(37, rows_max=ROWS_PER_WRITE_MAX, by_controller=True)
def create_partitions(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    return broker.slices.answer(call, _created(broker, call, request))


def _created(broker: Broker, call: Call, request: Any) -> Work:
    times = Counter(topic.name for topic in request.topics)
    proposals = Proposals(broker, call, request)
    drafts = Drafts(broker.proposed, broker.config, broker.entropy)
    rows: dict[str, dict[str, Any]] = {}
    for topic in request.topics:
        row: dict[str, Any] = {"name": topic.name, "error_code": 0}
        made: list[r.Record] = []
        try:
            if times[topic.name] > 1:
                raise Refusal(
                    ErrorCode.INVALID_REQUEST, f"topic '{topic.name}' is named {times[topic.name]} times"
                )
            if topic.name in _FIXED:
                raise Refusal(
                    ErrorCode.INVALID_PARTITIONS, f"{topic.name} keeps its partitions: {_FIXED[topic.name]}"
                )
            given = None if topic.assignments is None else [each.broker_ids for each in topic.assignments]
            made = drafts.widen(topic.name, topic.count, given)
            if not request.validate_only:
                proposals.add(Change(made, row))
        except Refusal as refusal:
            row.update(refused(refusal))
        rows[topic.name] = row
        if proposals.is_slice_full(TOPIC_COST + partitions_of(made)):
            yield from proposals.end_slice()
            drafts.rebase(broker.proposed, with_drafts=request.validate_only)
    return proposals.answer({"results": list(rows.values())})
