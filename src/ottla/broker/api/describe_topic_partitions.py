"""DescribeTopicPartitions (75): topics with their partitions, a page at a time, in the order of their names (KIP-966).

No topics in the request means all. A page holds at most `response_partition_limit` partitions, and never more than
2,000; what did not fit begins at `next_cursor`, which the next request hands back. The cursor's topic need not exist
any more, but a request that names topics must name it. Errors by topic: UNKNOWN_TOPIC_OR_PARTITION,
INVALID_TOPIC_EXCEPTION, INVALID_REQUEST for a cursor that cannot be.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.metadata import TOPIC_OPERATIONS, partition_row
from ottla.broker.api.shared.api_table import Response, serves
from ottla.metadata.image import TopicImage
from ottla.model.errors import ErrorCode
from ottla.model.names import topic_name_problem

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call

#: Kafka's default of `max.request.partition.size.limit`.
_PAGE_PARTITIONS_MAX: Final = 2000


@serves(75, request_bytes_max=1 << 20)
def describe_topic_partitions(broker: Broker, call: Call, request: Any, now_ms: int) -> Response:
    asked = {topic.name for topic in request.topics}
    first, start = "", 0
    if request.cursor is not None:
        first, start = request.cursor.topic_name, request.cursor.partition_index
        if start < 0 or (asked and first not in asked):
            rows = [_failed(name, ErrorCode.INVALID_REQUEST) for name in sorted(asked or {first})]
            return {"topics": rows, "next_cursor": None}
    room = max(1, min(request.response_partition_limit, _PAGE_PARTITIONS_MAX))
    topics: list[dict[str, Any]] = []
    for name in sorted(name for name in asked or broker.image.topics if name >= first):
        if room == 0:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": 0}}
        topic = broker.image.topics.get(name)
        if topic is None:
            bad = topic_name_problem(name)
            code = ErrorCode.INVALID_TOPIC_EXCEPTION if bad else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(_failed(name, code))
            continue
        begin = start if name == first else 0
        end = min(begin + room, len(topic.partitions))
        topics.append(_topic(broker, topic, begin, end))
        if end < len(topic.partitions):
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": end}}
        room -= max(0, end - begin)
    return {"topics": topics, "next_cursor": None}


def _failed(name: str, code: ErrorCode) -> dict[str, Any]:
    return {"error_code": code, "name": name, "partitions": ()}


def _topic(broker: Broker, topic: TopicImage, begin: int, end: int) -> dict[str, Any]:
    offline = broker.partitions.offline_partitions(topic.name)
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "topic_authorized_operations": TOPIC_OPERATIONS,
        "partitions": [
            partition_row(broker, partition, is_offline=partition.partition in offline)
            | {
                "eligible_leader_replicas": partition.eligible,
                "last_known_elr": (partition.last_leader,) if partition.last_leader >= 0 else (),
            }
            for partition in islice(topic.partitions, begin, max(begin, end))
        ],
    }
