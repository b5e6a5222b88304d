"""Requests to the controller and to partition leaders, with retries, and the error for several failures.

Used by the modules of this folder. Requests to coordinators go through `client/coordinators.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ottla.client.backoff import backoff_ms
from ottla.client.connection import Body
from ottla.client.errors import KafkaError, SeveralFailed, TopicNotFound, refused
from ottla.client.metadata import Node, TopicPartition
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster

CONTROLLER_ATTEMPTS_MAX: Final = 5
LEADER_ATTEMPTS_MAX: Final = 8


async def ask_controller(
    cluster: Cluster, api_key: int, body: Body, rows: Callable[[Any], Iterable[Any]]
) -> tuple[Any, str]:
    """Send a request to the controller, and again to the new one if it has moved. Return the response and the
    broker.
    """
    for attempt in range(1, CONTROLLER_ATTEMPTS_MAX + 1):
        connection = await cluster.controller()
        response = await connection.request(api_key, body, timeout_ms=2 * cluster.settings.request_timeout_ms)
        moved = any(row.error_code == ErrorCode.NOT_CONTROLLER for row in rows(response))
        if not moved or attempt == CONTROLLER_ATTEMPTS_MAX:
            break
        await asyncio.sleep(backoff_ms(cluster.settings, attempt) / 1000)
        await cluster.refresh(())
    return response, connection.address


async def ask_leaders(
    cluster: Cluster,
    places: Collection[TopicPartition],
    api_key: int,
    body: Callable[[Collection[TopicPartition]], Body],
    rows: Callable[[Any], Iterable[tuple[str, Any]]],
    what: str,
) -> Mapping[TopicPartition, Any]:
    """Send a request to each partition's leader, and again if it has moved.

    `rows` returns the rows of a response with their topics.
    """
    found: dict[TopicPartition, Any] = {}
    left = set(places)
    await cluster.refresh({place.topic for place in left})
    for attempt in range(1, LEADER_ATTEMPTS_MAX + 1):
        errors: dict[TopicPartition, KafkaError] = {}
        by_leader: dict[Node, list[TopicPartition]] = {}
        for place in sorted(left):
            if cluster.metadata.partition(*place) is None:
                errors[place] = TopicNotFound(
                    f"there is no partition {place.partition} of topic {place.topic!r}", topic=place.topic,
                    partition=place.partition, advice="List the topics with `ottla topic list`",
                    code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                )  # fmt: skip
                continue
            leader = cluster.metadata.leader(*place)
            if leader is None:
                errors[place] = refused_at(ErrorCode.LEADER_NOT_AVAILABLE, what, place)
            else:
                by_leader.setdefault(leader, []).append(place)
        for node, asked in by_leader.items():
            connection = await cluster.connection(node)
            for topic, row in rows(await connection.request(api_key, body(asked))):
                place = TopicPartition(topic, int(row.partition_index))
                if row.error_code:
                    errors[place] = refused_at(int(row.error_code), what, place, connection.address)
                else:
                    found[place] = row
        left -= found.keys()
        if not left:
            return found
        hopeless = any(isinstance(each, TopicNotFound) or not each.retriable for each in errors.values())
        if hopeless or attempt == LEADER_ATTEMPTS_MAX:
            raise_all({str(place): errors[place] for place in sorted(errors)}, len(places), what)
        await asyncio.sleep(backoff_ms(cluster.settings, attempt) / 1000)
        await cluster.refresh({place.topic for place in left})
    raise AssertionError("the last attempt returns or raises")


def raise_all(errors: Mapping[str, KafkaError], asked: int, what: str) -> None:
    """Raise nothing without errors, one error as it is, and several as `SeveralFailed`."""
    if len(errors) == 1:
        raise next(iter(errors.values()))
    if errors:
        raise SeveralFailed(errors, asked, what)


def refused_at(code: int, what: str, place: TopicPartition, broker: str | None = None) -> KafkaError:
    return refused(code, f"{what} {place}", broker=broker, topic=place.topic, partition=place.partition)


def by_topic(partitions: Mapping[TopicPartition, Any]) -> dict[str, dict[int, Any]]:
    topics: dict[str, dict[int, Any]] = {}
    for (topic, number), value in sorted(partitions.items(), key=lambda item: item[0]):
        topics.setdefault(topic, {})[number] = value
    return topics
