"""Topic requests: create, grow, describe and delete topics, and delete records below an offset.

The functions implement the methods of the same names in `client/admin/core.py`. Each topic of a request
succeeds or fails on its own. A change returns when the brokers' metadata has it, so that the next request
finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ottla.client.admin.requests import ask_controller, ask_leaders, by_topic, raise_all
from ottla.client.backoff import backoff_ms
from ottla.client.connection import Body
from ottla.client.errors import KafkaError, TopicNotFound, refused
from ottla.client.metadata import TopicInfo, TopicPartition
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 leaves a number to the broker's default.

    `assignments` has the broker ids of each partition, the preferred leader first. It replaces both numbers.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


async def create_topics(
    cluster: Cluster, topics: Iterable[NewTopic], *, validate_only: bool
) -> dict[str, TopicInfo]:
    wanted = list(topics)
    body: Body = {
        "topics": [
            {
                "name": topic.name,
                "num_partitions": -1 if topic.assignments else topic.partitions,
                "replication_factor": -1 if topic.assignments else topic.replication_factor,
                "assignments": [
                    {"partition_index": index, "broker_ids": list(brokers)}
                    for index, brokers in sorted(topic.assignments.items())
                ],
                "configs": [{"name": name, "value": value} for name, value in topic.configs.items()],
            }
            for topic in wanted
        ],
        "timeout": cluster.settings.request_timeout_ms,
        "validate_only": validate_only,
    }
    response, broker = await ask_controller(cluster, ApiKey.CREATE_TOPICS, body, lambda answer: answer.topics)
    errors = _refusals(response.topics, "creating topic", broker)
    made = {str(row.name) for row in response.topics} - errors.keys()
    if not validate_only:
        await _see(cluster, made, present=True)
    raise_all(errors, len(wanted), "creating topics")
    return {} if validate_only else {name: cluster.metadata.topics[name] for name in sorted(made)}


async def delete_topics(cluster: Cluster, names: Iterable[str]) -> None:
    wanted = list(names)
    body: Body = {
        "topics": [{"name": name, "topic_id": None} for name in wanted],
        "topic_names": wanted,
        "timeout": cluster.settings.request_timeout_ms,
    }
    response, broker = await ask_controller(
        cluster, ApiKey.DELETE_TOPICS, body, lambda answer: answer.responses
    )
    errors = _refusals(response.responses, "deleting topic", broker)
    await _see(cluster, set(wanted) - errors.keys(), present=False)
    raise_all(errors, len(wanted), "deleting topics")


async def create_partitions(
    cluster: Cluster,
    topic: str,
    count: int,
    assignments: Sequence[Sequence[int]] | None,
    *,
    validate_only: bool,
) -> None:
    rows = None if assignments is None else [{"broker_ids": list(brokers)} for brokers in assignments]
    body: Body = {
        "topics": [{"name": topic, "count": count, "assignments": rows}],
        "timeout": cluster.settings.request_timeout_ms,
        "validate_only": validate_only,
    }
    response, broker = await ask_controller(
        cluster, ApiKey.CREATE_PARTITIONS, body, lambda answer: answer.results
    )
    raise_all(_refusals(response.results, "adding partitions to", broker), 1, "adding partitions")


async def list_topics(cluster: Cluster, *, internal: bool) -> dict[str, TopicInfo]:
    metadata = await cluster.refresh(None)
    return {name: topic for name, topic in sorted(metadata.topics.items()) if internal or not topic.internal}


async def describe_topics(cluster: Cluster, names: Iterable[str]) -> dict[str, TopicInfo]:
    wanted = list(names)
    metadata = await cluster.refresh(wanted)
    errors: dict[str, KafkaError] = {}
    for name in wanted:
        if name in metadata.topics:
            continue
        code = metadata.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        errors[name] = (
            TopicNotFound(
                f"topic {name!r} does not exist",
                code=code,
                topic=name,
                advice="List the topics with `ottla topic list`",
            )
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else refused(code, f"topic {name!r}", topic=name)
        )
    raise_all(errors, len(wanted), "describing topics")
    return {name: metadata.topics[name] for name in wanted}


async def delete_records(cluster: Cluster, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    def body(places: Collection[TopicPartition]) -> Body:
        topics = by_topic({place: before[place] for place in places})
        return {
            "topics": [
                {
                    "name": name,
                    "partitions": [{"partition_index": at, "offset": offset} for at, offset in rows.items()],
                }
                for name, rows in topics.items()
            ],
            "timeout": cluster.settings.request_timeout_ms,
        }

    def rows(answer: Any) -> Iterable[tuple[str, Any]]:
        return ((str(topic.name), row) for topic in answer.topics for row in topic.partitions)

    found = await ask_leaders(
        cluster, before.keys(), ApiKey.DELETE_RECORDS, body, rows, "deleting records of"
    )
    return {place: int(row.low_watermark) for place, row in found.items()}


def _refusals(rows: Iterable[Any], what: str, broker: str) -> dict[str, KafkaError]:
    return {
        str(row.name): refused(
            int(row.error_code), f"{what} {str(row.name)!r}", message=row.error_message, broker=broker,
            topic=str(row.name),
        )
        for row in rows
        if row.error_code
    }  # fmt: skip


async def _see(cluster: Cluster, names: set[str], *, present: bool) -> None:
    """Wait until the brokers' metadata has the change, so that the next request finds it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + cluster.settings.request_timeout_ms / 1000
    attempt = 0
    while names and loop.time() < deadline:
        metadata = await cluster.refresh(names)
        ready = {
            name
            for name in names
            if (
                name in metadata.topics
                and all(p.leader >= 0 for p in metadata.topics[name].partitions.values())
            )
            == present
        }
        if ready == names:
            return
        attempt += 1
        await asyncio.sleep(backoff_ms(cluster.settings, attempt) / 2000)
