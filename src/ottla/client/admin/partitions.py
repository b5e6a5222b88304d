"""Where partitions are and who leads them: elections, reassignments, brokers that leave for good.

The requests behind the methods of the same names in `client/admin/core.py`; all of them are the controller's to answer. Unlike topics,
partitions are asked for by the thousand: an election answers each of them for itself, and a reassignment raises the first refusal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.client.connection import Body
from ottla.client.errors import BrokerNotFound, UnsupportedVersion, refused
from ottla.client.metadata import Node, TopicPartition, known_code
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.client.admin.core import AsyncAdmin

ELECT_LEADERS = 43
ALTER_PARTITION_REASSIGNMENTS = 45
LIST_PARTITION_REASSIGNMENTS = 46
DESCRIBE_CLUSTER = 60
UNREGISTER_BROKER = 64

PREFERRED, UNCLEAN = 0, 1


@dataclass(frozen=True, slots=True)
class Election:
    """What came of an election: `code` is NONE if there is a new leader, ELECTION_NOT_NEEDED if the right one leads."""

    code: ErrorCode
    message: str | None

    @property
    def failed(self) -> bool:
        return self.code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition on its way: all its replicas of now, those that are being added and those that will go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        """Where it will be."""
        return tuple(node for node in self.replicas if node not in self.removing)


async def elect_leaders(
    admin: AsyncAdmin, partitions: Iterable[TopicPartition] | None, *, unclean: bool
) -> dict[TopicPartition, Election]:
    topics = None if partitions is None else _by_topic(dict.fromkeys(partitions))
    body: Body = {
        "election_type": UNCLEAN if unclean else PREFERRED,
        "topic_partitions": None
        if topics is None
        else [{"topic": name, "partitions": list(rows)} for name, rows in topics.items()],
        "timeout": admin.settings.request_timeout_ms,
    }
    answer, broker = await admin.ask_controller(ELECT_LEADERS, body, lambda answer: [answer])
    if answer.error_code:
        raise refused(int(answer.error_code), "electing leaders", broker=broker)
    return {
        TopicPartition(str(topic.topic), int(row.partition_id)): Election(
            known_code(int(row.error_code)), row.error_message
        )
        for topic in answer.replica_election_results
        for row in topic.partition_result
    }


async def alter_reassignments(
    admin: AsyncAdmin, assignments: Mapping[TopicPartition, Sequence[int] | None]
) -> None:
    topics = _by_topic(assignments)
    body: Body = {
        "timeout": admin.settings.request_timeout_ms,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {"partition_index": number, "replicas": None if replicas is None else list(replicas)}
                    for number, replicas in rows.items()
                ],
            }
            for name, rows in topics.items()
        ],
    }
    answer, broker = await admin.ask_controller(ALTER_PARTITION_REASSIGNMENTS, body, lambda answer: [answer])
    if answer.error_code:
        raise refused(
            int(answer.error_code), "reassigning partitions", message=answer.error_message, broker=broker
        )
    for topic in answer.responses:
        for row in topic.partitions:
            if row.error_code:
                raise refused(
                    int(row.error_code), f"reassigning {topic.name}-{row.partition_index}",
                    message=row.error_message, broker=broker, topic=str(topic.name),
                    partition=int(row.partition_index),
                )  # fmt: skip


async def list_reassignments(
    admin: AsyncAdmin, partitions: Iterable[TopicPartition] | None
) -> dict[TopicPartition, Reassignment]:
    topics = None if partitions is None else _by_topic(dict.fromkeys(partitions))
    body: Body = {
        "timeout": admin.settings.request_timeout_ms,
        "topics": None
        if topics is None
        else [{"name": name, "partition_indexes": list(rows)} for name, rows in topics.items()],
    }
    answer, broker = await admin.ask_controller(LIST_PARTITION_REASSIGNMENTS, body, lambda answer: [answer])
    if answer.error_code:
        raise refused(
            int(answer.error_code), "listing reassignments", message=answer.error_message, broker=broker
        )
    return {
        TopicPartition(str(topic.name), int(row.partition_index)): Reassignment(
            _ids(row.replicas), _ids(row.adding_replicas), _ids(row.removing_replicas)
        )
        for topic in answer.topics
        for row in topic.partitions
    }


async def unregister_broker(admin: AsyncAdmin, broker_id: int) -> None:
    body: Body = {"broker_id": broker_id}
    answer, broker = await admin.ask_controller(UNREGISTER_BROKER, body, lambda answer: [answer])
    if answer.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED:
        raise BrokerNotFound(
            f"there is no broker {broker_id} in the cluster", code=ErrorCode.BROKER_ID_NOT_REGISTERED
        )
    if answer.error_code:
        raise refused(
            int(answer.error_code), f"unregistering broker {broker_id}",
            message=answer.error_message, broker=broker,
        )  # fmt: skip


async def fenced_brokers(admin: AsyncAdmin) -> tuple[Node, ...]:
    """The brokers that are registered and away; none of a cluster that cannot tell."""
    connection = await admin.cluster.any_connection()
    try:
        if connection.version_for(DESCRIBE_CLUSTER) < 2:
            return ()
    except UnsupportedVersion:
        return ()
    answer = await connection.request(DESCRIBE_CLUSTER, {"include_fenced_brokers": True})
    if answer.error_code:
        raise refused(
            int(answer.error_code), "describing the cluster",
            message=answer.error_message, broker=connection.address,
        )  # fmt: skip
    return tuple(
        Node(int(row.broker_id), str(row.host), int(row.port), row.rack)
        for row in sorted(answer.brokers, key=lambda row: int(row.broker_id))
        if row.is_fenced
    )


def _by_topic(partitions: Mapping[TopicPartition, Any]) -> dict[str, dict[int, Any]]:
    topics: dict[str, dict[int, Any]] = {}
    for (topic, number), value in sorted(partitions.items(), key=lambda item: item[0]):
        topics.setdefault(topic, {})[number] = value
    return topics


def _ids(nodes: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(node) for node in nodes)
