"""Administration over the protocol: topics, partitions, configs, offsets, the cluster itself.

Requests that change the cluster go to the controller; when it has moved, they go to the new one. Each call raises the
first refusal as a `KafkaError` naming the topic or resource. The blocking face of it is `ottla.Admin`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Unpack

from ottla.client.admin import groups as group_requests
from ottla.client.admin import transactions as transaction_requests
from ottla.client.admin.groups import GroupInfo, GroupListing
from ottla.client.admin.partitions import (
    Election,
    Reassignment,
    alter_reassignments,
    elect_leaders,
    fenced_brokers,
    list_reassignments,
    unregister_broker,
)
from ottla.client.admin.transactions import HangingTransaction, Producers, TransactionInfo, TransactionListing
from ottla.client.cluster import Cluster, backoff_ms
from ottla.client.connection import Body, BrokerConnection
from ottla.client.errors import BrokerNotFound, TopicNotFound, refused
from ottla.client.metadata import Node, TopicInfo, TopicPartition
from ottla.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, OffsetAndTime, list_offsets
from ottla.client.settings import Client, ClientSettings, bootstrap_addresses, settings_of
from ottla.model.errors import ErrorCode

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "AsyncAdmin",
    "ClusterInfo",
    "ConfigEntry",
    "Election",
    "GroupInfo",
    "GroupListing",
    "HangingTransaction",
    "NewTopic",
    "Producers",
    "Reassignment",
    "Resource",
    "TransactionInfo",
    "TransactionListing",
]

CREATE_TOPICS = 19
DELETE_TOPICS = 20
DELETE_RECORDS = 21
DESCRIBE_CONFIGS = 32
CREATE_PARTITIONS = 37
INCREMENTAL_ALTER_CONFIGS = 44

RESOURCE_TYPES: dict[str, int] = {"topic": 2, "broker": 4}
SET, DELETE = 0, 1
ATTEMPTS_MAX = 5

#: The protocol's numbers for where a config's value comes from.
SOURCES = {1: "topic", 2: "dynamic broker", 3: "dynamic default broker", 4: "static broker", 5: "default"}
TYPES = {
    1: "boolean",
    2: "string",
    3: "int",
    4: "short",
    5: "long",
    6: "double",
    7: "list",
    8: "class",
    9: "password",
}

ResourceType = Literal["topic", "broker"]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 leaves a number to the broker's defaults."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resource:
    """What a config belongs to. The broker named "" stands for the default of all brokers."""

    type: ResourceType
    name: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    type: str
    documentation: str | None
    synonyms: tuple[tuple[str, str | None, str], ...] = ()

    @property
    def is_default(self) -> bool:
        return self.source == "default"


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    cluster_id: str | None
    controller_id: int
    nodes: tuple[Node, ...]
    #: Registered, and away: told only if they were asked for.
    fenced: tuple[Node, ...] = ()


class AsyncAdmin:
    """Use `await start()` first and `await close()` last, or `async with`."""

    def __init__(self, bootstrap_servers: str | Sequence[str], **given: Unpack[ClientSettings]) -> None:
        settings = settings_of(Client, given)
        self.settings = settings
        self.cluster = Cluster(bootstrap_addresses(bootstrap_servers), settings)

    async def __aenter__(self) -> AsyncAdmin:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        await self.cluster.start()

    async def close(self) -> None:
        await self.cluster.close()

    # Topics

    async def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
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
            "timeout": self.settings.request_timeout_ms,
            "validate_only": validate_only,
        }
        response, broker = await self.ask_controller(CREATE_TOPICS, body, lambda answer: answer.topics)
        for row in response.topics:
            self._raise(row, f"creating topic {row.name!r}", broker, topic=str(row.name))
        if not validate_only:
            await self._see({topic.name for topic in wanted}, present=True)

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        topic = NewTopic(name, partitions, replication_factor, configs or {})
        await self.create_topics([topic], validate_only=validate_only)

    async def delete_topics(self, names: Iterable[str]) -> None:
        wanted = list(names)
        body: Body = {
            "topics": [{"name": name, "topic_id": None} for name in wanted],
            "topic_names": wanted,
            "timeout": self.settings.request_timeout_ms,
        }
        response, broker = await self.ask_controller(DELETE_TOPICS, body, lambda answer: answer.responses)
        for row in response.responses:
            self._raise(row, f"deleting topic {row.name!r}", broker, topic=str(row.name))
        await self._see(set(wanted), present=False)

    async def create_partitions(self, topic: str, count: int, *, validate_only: bool = False) -> None:
        """Grow a topic to `count` partitions."""
        body: Body = {
            "topics": [{"name": topic, "count": count, "assignments": None}],
            "timeout": self.settings.request_timeout_ms,
            "validate_only": validate_only,
        }
        response, broker = await self.ask_controller(CREATE_PARTITIONS, body, lambda answer: answer.results)
        for row in response.results:
            self._raise(row, f"adding partitions to {row.name!r}", broker, topic=str(row.name))

    async def list_topics(self, *, internal: bool = False) -> dict[str, TopicInfo]:
        metadata = await self.cluster.refresh(None)
        return {
            name: topic for name, topic in sorted(metadata.topics.items()) if internal or not topic.internal
        }

    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        wanted = list(names)
        metadata = await self.cluster.refresh(wanted)
        for name in wanted:
            if name not in metadata.topics:
                code = metadata.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise refused(code, f"topic {name!r}", topic=name)
                raise TopicNotFound(
                    f"topic {name!r} does not exist",
                    code=code,
                    topic=name,
                    advice="Look with `ottla topic list`",
                )
        return {name: metadata.topics[name] for name in wanted}

    async def list_offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTime]:
        """For each partition the offset for a time in ms, or for `EARLIEST`, `LATEST` or `MAX_TIMESTAMP`."""
        return await list_offsets(self.cluster, times)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset of each partition (-1: all); gives the new log starts."""
        by_leader: dict[Node, dict[str, list[dict[str, int]]]] = {}
        for topic in {tp.topic for tp in before}:
            await self.cluster.topic(topic, self.settings.request_timeout_ms)
        for tp, offset in before.items():
            leader = self.cluster.metadata.leader(*tp)
            if leader is None:
                raise refused(
                    ErrorCode.LEADER_NOT_AVAILABLE,
                    f"deleting records of {tp}",
                    topic=tp.topic,
                    partition=tp.partition,
                )
            rows = by_leader.setdefault(leader, {}).setdefault(tp.topic, [])
            rows.append({"partition_index": tp.partition, "offset": offset})
        found: dict[TopicPartition, int] = {}
        for node, topics in by_leader.items():
            connection = await self.cluster.connection(node)
            body: Body = {
                "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
                "timeout": self.settings.request_timeout_ms,
            }
            response = await connection.request(DELETE_RECORDS, body)
            for row in response.topics:
                for part in row.partitions:
                    tp = TopicPartition(str(row.name), int(part.partition_index))
                    if part.error_code:
                        raise refused(
                            int(part.error_code),
                            f"deleting records of {tp}",
                            broker=connection.address,
                            topic=tp.topic,
                            partition=tp.partition,
                        )
                    found[tp] = int(part.low_watermark)
        return found

    # Configs

    async def describe_configs(
        self,
        resource: Resource,
        names: Iterable[str] | None = None,
        *,
        documentation: bool = False,
        synonyms: bool = False,
    ) -> dict[str, ConfigEntry]:
        connection = await self._connection_for(resource)
        row: Body = {
            "resource_type": RESOURCE_TYPES[resource.type],
            "resource_name": resource.name,
            "configuration_keys": None if names is None else list(names),
        }
        body: Body = {
            "resources": [row],
            "include_synonyms": synonyms,
            "include_documentation": documentation,
        }
        response = await connection.request(DESCRIBE_CONFIGS, body)
        found: dict[str, ConfigEntry] = {}
        for result in response.results:
            topic = resource.name if resource.type == "topic" else None
            self._raise(
                result, f"configs of {resource.type} {resource.name!r}", connection.address, topic=topic
            )
            for entry in result.configs:
                found[str(entry.name)] = ConfigEntry(
                    str(entry.name),
                    entry.value,
                    SOURCES.get(int(entry.config_source), "unknown"),
                    bool(entry.read_only),
                    bool(entry.is_sensitive),
                    TYPES.get(int(entry.config_type), "unknown"),
                    entry.documentation,
                    tuple(
                        (str(s.name), s.value, SOURCES.get(int(s.source), "unknown")) for s in entry.synonyms
                    ),
                )
        return dict(sorted(found.items()))

    async def alter_configs(
        self, resource: Resource, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Set configs, or unset those whose value is None, and leave the others."""
        body: Body = {
            "resources": [
                {
                    "resource_type": RESOURCE_TYPES[resource.type],
                    "resource_name": resource.name,
                    "configs": [
                        {"name": name, "config_operation": DELETE if value is None else SET, "value": value}
                        for name, value in changes.items()
                    ],
                }
            ],
            "validate_only": validate_only,
        }
        try:
            connection = await self._connection_for(resource)
        except BrokerNotFound:
            if not resource.name.isdigit():
                raise
            # It may be away for now: the controller knows.
            connection = await self.cluster.controller()
        response = await connection.request(INCREMENTAL_ALTER_CONFIGS, body)
        for row in response.responses:
            topic = resource.name if resource.type == "topic" else None
            self._raise(row, f"configs of {resource.type} {resource.name!r}", connection.address, topic=topic)

    async def _connection_for(self, resource: Resource) -> BrokerConnection:
        """A broker's own configs are asked of that broker; everything else of the controller."""
        if resource.type == "broker" and resource.name:
            if resource.name.isdigit() and int(resource.name) in self.cluster.metadata.nodes:
                return await self.cluster.connection(self.cluster.metadata.nodes[int(resource.name)])
            known = ", ".join(str(node_id) for node_id in sorted(self.cluster.metadata.nodes))
            raise BrokerNotFound(
                f"there is no broker {resource.name!r} in the cluster",
                code=ErrorCode.BROKER_NOT_AVAILABLE,
                advice=f"The brokers are {known}",
            )
        return await self.cluster.controller()

    # The cluster

    async def describe_cluster(self, *, include_fenced: bool = False) -> ClusterInfo:
        metadata = await self.cluster.refresh(())
        nodes = tuple(metadata.nodes[node_id] for node_id in sorted(metadata.nodes))
        fenced = await fenced_brokers(self) if include_fenced else ()
        return ClusterInfo(metadata.cluster_id, metadata.controller_id, nodes, fenced)

    async def unregister_broker(self, broker_id: int) -> None:
        """Forget a broker that has stopped for good."""
        await unregister_broker(self, broker_id)

    # Partitions

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, Election]:
        """Let the preferred replica lead, or (unclean) any that lives if nobody does; of all partitions if none is named."""
        return await elect_leaders(self, partitions, unclean=unclean)

    async def alter_partition_reassignments(
        self, assignments: Mapping[TopicPartition, Sequence[int] | None]
    ) -> None:
        """Begin to move partitions to these brokers, the preferred leader first; None ends a move that is under way."""
        await alter_reassignments(self, assignments)

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The moves that are under way."""
        return await list_reassignments(self, partitions)

    # Groups

    async def list_groups(self) -> list[GroupListing]:
        """The consumer groups of all brokers."""
        return await group_requests.list_groups(self)

    async def describe_group(self, group: str) -> GroupInfo:
        """A group's state and members."""
        return await group_requests.describe_group(self, group)

    async def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """All offsets that a group has committed."""
        return await group_requests.group_offsets(self, group)

    async def set_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit in a group's name; one with active members refuses."""
        await group_requests.set_group_offsets(self, group, offsets)

    async def delete_groups(self, groups: Iterable[str]) -> None:
        """Delete groups without members, and their offsets."""
        await group_requests.delete_groups(self, groups)

    # Transactions

    async def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        longer_than_ms: int | None = None,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """The transactional ids of all brokers, or those that pass all filters given; `pattern` must match the whole id."""
        return await transaction_requests.list_transactions(
            self, states=states, producer_ids=producer_ids, longer_than_ms=longer_than_ms, pattern=pattern
        )

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionInfo]:
        """What transactional ids are at, and the partitions of their transactions."""
        return await transaction_requests.describe_transactions(self, transactional_ids)

    async def abort_transaction(self, transactional_id: str) -> TransactionInfo:
        """Abort what a transactional id has going on; its producer is fenced. Gives what it was before."""
        return await transaction_requests.abort_transaction(self, transactional_id)

    async def describe_producers(self, partitions: Iterable[TopicPartition]) -> Producers:
        """The idempotent and transactional producers that partitions remember."""
        return await transaction_requests.describe_producers(self, partitions)

    async def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition], older_than_ms: int | None = None
    ) -> list[HangingTransaction]:
        """What is open in these partitions, and known to no coordinator; only if nothing was written to it for so long."""
        return await transaction_requests.find_hanging(self, partitions, older_than_ms)

    async def abort_hanging_transaction(self, hanging: HangingTransaction) -> None:
        """End in its partition what was found to hang."""
        await transaction_requests.abort_hanging(self, hanging)

    async def ask_controller(self, api_key: int, body: Body, rows: Any) -> tuple[Any, str]:
        """Ask the controller; when it is not the controller any more, learn the new one and ask again."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            connection = await self.cluster.controller()
            response = await connection.request(
                api_key, body, timeout_ms=2 * self.settings.request_timeout_ms
            )
            moved = any(row.error_code == ErrorCode.NOT_CONTROLLER for row in rows(response))
            if not moved or attempt == ATTEMPTS_MAX:
                break
            await asyncio.sleep(backoff_ms(self.settings, attempt) / 1000)
            await self.cluster.refresh(())
        return response, connection.address

    async def _see(self, names: set[str], *, present: bool) -> None:
        """Wait until the brokers tell of the change, so that what comes next finds it."""
        deadline = asyncio.get_running_loop().time() + self.settings.request_timeout_ms / 1000
        attempt = 0
        while asyncio.get_running_loop().time() < deadline:
            metadata = await self.cluster.refresh(names)
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
            await asyncio.sleep(backoff_ms(self.settings, attempt) / 2000)

    def _raise(self, row: Any, what: str, broker: str, *, topic: str | None = None) -> None:
        if row.error_code:
            raise refused(int(row.error_code), what, message=row.error_message, broker=broker, topic=topic)
