"""Leader elections and partition reassignments.

The functions implement the methods of the same names in `client/admin/core.py`. All requests go to the
controller. An election returns a code for each partition, because ELECTION_NOT_NEEDED is not a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.client.admin.requests import ask_controller, by_topic, raise_all
from ottla.client.connection import Body
from ottla.client.errors import refused
from ottla.client.metadata import TopicPartition, known_code
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster


PREFERRED, UNCLEAN = 0, 1


@dataclass(frozen=True, slots=True)
class Election:
    """The result of an election: `code` is NONE for a new leader, ELECTION_NOT_NEEDED if the right one leads
    already.
    """

    code: ErrorCode
    message: str | None

    def __str__(self) -> str:
        return self.message or self.code.name.lower().replace("_", " ")

    @property
    def failed(self) -> bool:
        return self.code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A reassignment in progress: all current replicas, the added and the removed ones."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    def __str__(self) -> str:
        return f"on {_list(self.replicas)}, adding {_list(self.adding)}, removing {_list(self.removing)}"

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return tuple(node for node in self.replicas if node not in self.removing)


async def elect_leaders(
    cluster: Cluster, partitions: Iterable[TopicPartition] | None, *, unclean: bool
) -> dict[TopicPartition, Election]:
    topics = None if partitions is None else by_topic(dict.fromkeys(partitions))
    body: Body = {
        "election_type": UNCLEAN if unclean else PREFERRED,
        "topic_partitions": None
        if topics is None
        else [{"topic": name, "partitions": list(rows)} for name, rows in topics.items()],
        "timeout": cluster.settings.request_timeout_ms,
    }
    answer, broker = await ask_controller(cluster, ApiKey.ELECT_LEADERS, body, lambda answer: [answer])
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
    cluster: Cluster, assignments: Mapping[TopicPartition, Sequence[int] | None]
) -> None:
    topics = by_topic(assignments)
    body: Body = {
        "timeout": cluster.settings.request_timeout_ms,
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
    answer, broker = await ask_controller(
        cluster, ApiKey.ALTER_PARTITION_REASSIGNMENTS, body, lambda answer: [answer]
    )
    if answer.error_code:
        raise refused(
            int(answer.error_code), "reassigning partitions", message=answer.error_message, broker=broker
        )
    errors = {
        f"{topic.name}-{row.partition_index}": refused(
            int(row.error_code), f"reassigning {topic.name}-{row.partition_index}",
            message=row.error_message, broker=broker, topic=str(topic.name), partition=int(row.partition_index),
        )
        for topic in answer.responses
        for row in topic.partitions
        if row.error_code
    }  # fmt: skip
    raise_all(errors, len(assignments), "reassigning partitions")


async def list_reassignments(
    cluster: Cluster, partitions: Iterable[TopicPartition] | None
) -> dict[TopicPartition, Reassignment]:
    topics = None if partitions is None else by_topic(dict.fromkeys(partitions))
    body: Body = {
        "timeout": cluster.settings.request_timeout_ms,
        "topics": None
        if topics is None
        else [{"name": name, "partition_indexes": list(rows)} for name, rows in topics.items()],
    }
    answer, broker = await ask_controller(
        cluster, ApiKey.LIST_PARTITION_REASSIGNMENTS, body, lambda answer: [answer]
    )
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


def _ids(nodes: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(node) for node in nodes)


def _list(nodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, nodes)) or "none"
