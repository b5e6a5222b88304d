"""DeleteTopics (20): topics by name, or from version 6 on by id. Their files go after `file.delete.delay.ms`.

Errors by topic: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, TOPIC_DELETION_DISABLED, INVALID_REQUEST (named twice, or by
name and id at once).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.proposing import answer_after, refused
from ottla.broker.api.table import Response, serves
from ottla.controller import records as r
from ottla.controller.image import TopicImage
from ottla.model.errors import ErrorCode, Refusal

if TYPE_CHECKING:
    from ottla.broker.connection import Call
    from ottla.broker.core import Broker


@serves(20)
def delete_topics(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    asked: list[tuple[str | None, bytes | None]]
    if call.version >= 6:
        asked = [(topic.name, topic.topic_id.bytes if topic.topic_id else None) for topic in request.topics]
    else:
        asked = [(name, None) for name in request.topic_names]
    records: list[r.Record] = []
    rows = []
    gone: set[bytes] = set()
    for name, topic_id in asked:
        row: dict[str, Any] = {"name": name, "topic_id": topic_id, "error_code": 0}
        try:
            topic = _find(broker, name, topic_id)
            row.update(name=topic.name, topic_id=topic.topic_id)
            if topic.topic_id in gone:
                raise Refusal(ErrorCode.INVALID_REQUEST, f"topic '{topic.name}' is named twice")
            gone.add(topic.topic_id)
            records.append(r.TopicRemoved(topic.topic_id))
        except Refusal as refusal:
            row.update(refused(refusal))
        rows.append(row)
    return answer_after(broker, call, records, {"responses": rows})


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
