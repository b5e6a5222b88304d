"""DeleteTopics (20): topics by name, or from version 6 on by id. Their files go after `file.delete.delay.ms`.

Errors by topic: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, TOPIC_DELETION_DISABLED, INVALID_REQUEST (by name and id at
once, or more than once in the request: such a one stays), REQUEST_TIMED_OUT.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import Result, serves
from ottla.broker.api.shared.proposals import Change, Proposals, refused
from ottla.metadata import records as r
from ottla.metadata.image import TopicImage
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import ROWS_PER_WRITE_MAX
from ottla.model.steps import STEP_COST

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work


@serves(20, rows_max=ROWS_PER_WRITE_MAX, by_controller=True)
def delete_topics(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    asked: list[tuple[str | None, bytes | None]]
    if call.version >= 6:
        asked = [(topic.name, topic.topic_id.bytes if topic.topic_id else None) for topic in request.topics]
    else:
        asked = [(name, None) for name in request.topic_names]
    return broker.slices.answer(call, _deleted(broker, call, request, Counter(asked)))


def _deleted(
    broker: Broker, call: Call, request: Any, times: Counter[tuple[str | None, bytes | None]]
) -> Work:
    rows = []
    found: dict[bytes, dict[str, Any]] = {}
    for at, (name, topic_id) in enumerate(times):
        row: dict[str, Any] = {"name": name, "topic_id": topic_id, "error_code": 0}
        rows.append(row)
        try:
            topic = _find(broker, name, topic_id)
            row.update(name=topic.name, topic_id=topic.topic_id)
            other = found.setdefault(topic.topic_id, row)
            if times[name, topic_id] > 1 or other is not row:
                twice = Refusal(ErrorCode.INVALID_REQUEST, f"topic '{topic.name}' is named more than once")
                other.update(refused(twice))
                raise twice
        except Refusal as refusal:
            row.update(refused(refusal))
        if at % STEP_COST == STEP_COST - 1:
            yield STEP_COST
    proposals = Proposals(broker, call, request)
    for topic_id, row in found.items():
        # It may have gone meanwhile.
        present = broker.proposed.topics_by_id.get(topic_id)
        if row["error_code"] or present is None:
            row["error_code"] = row["error_code"] or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            continue
        proposals.add(Change([r.TopicRemoved(topic_id)], row))
        if proposals.is_slice_full(3 + len(present.partitions)):
            yield from proposals.end_slice()
    return proposals.answer({"responses": rows})


def _find(broker: Broker, name: str | None, topic_id: bytes | None) -> TopicImage:
    if not broker.config.delete_topic_enable:
        raise Refusal(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false on this broker")
    if (name is None) == (topic_id is None):
        raise Refusal(ErrorCode.INVALID_REQUEST, "a topic is named either by its name or by its id")
    image = broker.proposed
    if topic_id is not None:
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        return topic
    assert name is not None
    topic = image.topics.get(name)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{name}' does not exist")
    return topic
