"""Metadata (3): brokers, topics, partitions and who leads them; and the creation of topics on first use (A1).

Version 0 asks for all topics with an empty list, later ones with null. A topic that is not there is created if both the
request and `auto.create.topics.enable` allow it; the answer then waits until it is. Errors by topic:
UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INVALID_TOPIC_EXCEPTION and those of creating a topic (LEADER_NOT_AVAILABLE if it is
being made and this broker has not heard of it in time); by partition: LEADER_NOT_AVAILABLE while nobody may lead it.

An answer that would name a leader to whom the connection just broke waits for the election, half a second at most.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.shared.api_table import NoResponse, Result, serves
from ottla.broker.cluster.broker_lifecycle import UNREACHABLE_MS
from ottla.metadata.image import Image, TopicImage
from ottla.model.errors import ErrorCode
from ottla.model.limits import AUTO_CREATED_PER_REQUEST_MAX
from ottla.model.names import INTERNAL_TOPICS, topic_name_problem
from ottla.wire.sliced import chunks

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.broker.requests.slices import Work
    from ottla.metadata.records import Partition

NO_LEADER: Final = -1
#: How long a topic's creation may take before the client is told to ask again.
_CREATE_MS: Final = 5_000
_NOT_ASKED: Final = -(2**31)
#: What one may do without an authorizer, as bits of the protocol's operation numbers.
TOPIC_OPERATIONS: Final = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))


@serves(3)
def metadata(broker: Broker, call: Call, request: Any, now_ms: int) -> Result:
    if broker.lifecycle.registration_check.has_expired:
        # What this broker knows is old, and it cannot learn more: others can answer.
        broker.close(call.connection, "this broker is cut off from its cluster")
        return NoResponse.DONE
    missing = _to_create(broker, request) if request.topics and request.allow_auto_topic_creation else []
    if not missing:
        if _names_doubted(broker, request):
            # A client whose leader just died asks at once, and not again for a second if it is told of the dead one.
            broker.controller_channel.when(
                lambda: not _names_doubted(broker, request),
                lambda: _answer_later(broker, call, request, {}),
                UNREACHABLE_MS,
            )
            return NoResponse.LATER
        return _answer(broker, call, request, {})
    put_off = dict.fromkeys(missing[AUTO_CREATED_PER_REQUEST_MAX:], int(ErrorCode.LEADER_NOT_AVAILABLE))
    del missing[AUTO_CREATED_PER_REQUEST_MAX:]
    outcome: Result = NoResponse.LATER
    is_handled = False

    def created(failed: dict[str, int]) -> None:
        nonlocal outcome
        if is_handled:
            _answer_later(broker, call, request, {**put_off, **failed})
        else:
            outcome = _answer(broker, call, request, {**put_off, **failed})

    _ask_to_create(broker, missing, now_ms, created)
    is_handled = True
    return outcome


def _names_doubted(broker: Broker, request: Any) -> bool:
    """Whether the answer would name a leader that has probably just died."""
    doubted = broker.lifecycle.unreachable_brokers()
    if not doubted:
        return False
    image = broker.image
    topics: Iterable[TopicImage | None]
    if request.topics is None:
        topics = image.topics.values()
    else:
        topics = (
            image.topics_by_id.get(each.topic_id.bytes)
            if each.topic_id is not None
            else image.topics.get(each.name)
            for each in _once(request.topics)
        )
    return any(
        partition.leader in doubted for topic in topics if topic is not None for partition in topic.partitions
    )


def _ask_to_create(
    broker: Broker, names: list[str], now_ms: int, done: Callable[[dict[str, int]], None]
) -> None:
    """Have the controller create them; `done` with those that are not there, once this broker knows of the others."""

    def is_moved(answer: Any) -> bool:
        return any(int(row.error_code) == ErrorCode.NOT_CONTROLLER for row in answer.topics)

    def answered(answer: Any, error: str | None) -> None:
        if answer is None:
            # Retriable: the client asks again.
            done(dict.fromkeys(names, ErrorCode.LEADER_NOT_AVAILABLE))
            return
        failed = {
            str(row.name): int(row.error_code)
            for row in answer.topics
            if int(row.error_code) not in (0, ErrorCode.TOPIC_ALREADY_EXISTS)
        }
        there = [name for name in names if name not in failed]
        broker.controller_channel.when(
            lambda: all(name in broker.image.topics for name in there),
            lambda: done({**dict.fromkeys(there, ErrorCode.LEADER_NOT_AVAILABLE), **failed}),
            max(0, now_ms + _CREATE_MS - broker.now_ms),
        )

    topics = [{"name": name, "num_partitions": -1, "replication_factor": -1} for name in names]
    broker.controller_channel.insist(
        19, 7, {"topics": topics, "timeout": _CREATE_MS}, is_moved, answered, _CREATE_MS
    )


def _to_create(broker: Broker, request: Any) -> list[str]:
    if not broker.config.auto_create_topics_enable:
        return []
    names = dict.fromkeys(
        topic.name for topic in request.topics if topic.topic_id is None and topic.name is not None
    )
    # The broker's own topics are made by those who need them, with settings of their own.
    return [
        name
        for name in names
        if name not in broker.image.topics
        and name not in INTERNAL_TOPICS
        and topic_name_problem(name) is None
    ]


def _once(topics: Iterable[Any]) -> Iterable[Any]:
    """The topics of a request, each once: Kafka takes them for a set too."""
    return {each.topic_id or each.name: each for each in topics}.values()


def _answer(broker: Broker, call: Call, request: Any, failed: dict[str, int]) -> Result:
    rows: list[dict[str, Any]] = []
    return broker.slices.answer(call, _described(broker, call, request, failed, rows), "topics", rows)


def _answer_later(broker: Broker, call: Call, request: Any, failed: dict[str, int]) -> None:
    rows: list[dict[str, Any]] = []
    broker.slices.answer_later(call, _described(broker, call, request, failed, rows), "topics", rows)


def _described(
    broker: Broker, call: Call, request: Any, failed: dict[str, int], rows: list[dict[str, Any]]
) -> Work:
    image = broker.image
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else _NOT_ASKED
    if request.topics is None or (call.version == 0 and not request.topics):
        for topic in image.topics.values():
            row = yield from _topic(broker, topic, operations)
            rows.append(row)
    else:
        # Before version 12 a topic in the answer has a name, even one that was asked for without.
        nameless = None if call.version >= 12 else ""
        for asked in _once(request.topics):
            found = _found(image, asked)
            if found is None:
                rows.append(_missing(asked, failed, nameless))
                yield 1
            else:
                rows.append((yield from _topic(broker, found, operations)))
    return {
        "brokers": [
            {"node_id": node.node_id, "host": node.host, "port": node.port, "rack": node.rack}
            for node in image.brokers.values()
            if not node.fenced
        ],
        "cluster_id": image.cluster_id,
        "controller_id": broker.lifecycle.controller_id,
        "cluster_authorized_operations": (
            CLUSTER_OPERATIONS
            if getattr(request, "include_cluster_authorized_operations", False)
            else _NOT_ASKED
        ),
    }


def _found(image: Image, asked: Any) -> TopicImage | None:
    # An id goes before a name: Java's clients send the empty name beside it.
    if asked.topic_id is not None:
        return image.topics_by_id.get(asked.topic_id.bytes)
    return image.topics.get(asked.name)


def _missing(asked: Any, failed: dict[str, int], nameless: str | None) -> dict[str, Any]:
    if asked.topic_id is not None:
        return {
            "error_code": ErrorCode.UNKNOWN_TOPIC_ID, "name": nameless, "topic_id": asked.topic_id.bytes,
            "partitions": (), "topic_authorized_operations": _NOT_ASKED,
        }  # fmt: skip
    if asked.name is None:
        return {"error_code": ErrorCode.INVALID_REQUEST, "name": nameless, "partitions": ()}
    code = failed.get(asked.name)
    if code is None:
        bad = topic_name_problem(asked.name)
        code = ErrorCode.INVALID_TOPIC_EXCEPTION if bad else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return {
        "error_code": code, "name": asked.name, "partitions": (), "topic_authorized_operations": _NOT_ASKED,
    }  # fmt: skip


def _topic(broker: Broker, topic: TopicImage, operations: int) -> Generator[int, None, dict[str, Any]]:
    offline = broker.partitions.offline_partitions(topic.name)
    rows: list[dict[str, Any]] = []
    for some in chunks(topic.partitions):
        rows += [
            partition_row(broker, partition, is_offline=partition.partition in offline) for partition in some
        ]
        yield len(some)
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "topic_authorized_operations": operations,
        "partitions": rows,
    }


def partition_row(broker: Broker, partition: Partition, *, is_offline: bool) -> dict[str, Any]:
    """What clients are told of a partition; `is_offline` tells that the log directory of the replica here failed.

    If this broker leads it nevertheless, nobody does, as on Kafka, until the controller has chosen another. A broker that is
    about to stop is still there.
    """
    brokers, here = broker.image.brokers, broker.config.node_id
    leader = NO_LEADER if is_offline and partition.leader == here else partition.leader
    return {
        "error_code": ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else 0,
        "partition_index": partition.partition,
        "leader_id": leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": [
            node
            for node in partition.replicas
            if (is_offline and node == here) or node not in brokers or brokers[node].fenced
        ],
    }
