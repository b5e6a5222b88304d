"""The admin client on asyncio: all that the protocol lets an administrator do, and both ottla and Apache Kafka serve.

Each method is a request or a few, made by the module of its subject in this room. What the cluster refuses is raised as a `KafkaError` that
names the topic, group or resource; of several things asked for at once those that can be done are done, and if more than one is refused
a `SeveralFailed` lists them. The blocking face of it is `ottla.Admin`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, Unpack

from ottla.client.admin import cluster as clusters
from ottla.client.admin import configs, group_offsets, log_dirs, transactions
from ottla.client.admin import groups as groups_of
from ottla.client.admin import partitions as replicas
from ottla.client.admin import topics as topics_of
from ottla.client.admin.cluster import ClusterInfo, Downgrade, Feature, QuorumInfo
from ottla.client.admin.configs import ConfigEntry, Resource, ResourceType
from ottla.client.admin.group_offsets import Committed
from ottla.client.admin.groups import GroupInfo, GroupListing
from ottla.client.admin.log_dirs import LogDir
from ottla.client.admin.partitions import Election, Reassignment
from ottla.client.admin.topics import NewTopic
from ottla.client.admin.transactions import (
    HangingTransaction,
    ProducerIdAndEpoch,
    Producers,
    TransactionInfo,
    TransactionListing,
)
from ottla.client.cluster import Cluster
from ottla.client.metadata import OffsetAndMetadata, TopicInfo, TopicPartition
from ottla.client.offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    OffsetAndTime,
    list_offsets,
)
from ottla.client.settings import ClientConfig, ClientSettings, bootstrap_addresses, settings_of

__all__ = [
    "EARLIEST",
    "EARLIEST_LOCAL",
    "LATEST",
    "LATEST_TIERED",
    "MAX_TIMESTAMP",
    "AsyncAdmin",
    "ClusterInfo",
    "Committed",
    "ConfigEntry",
    "Downgrade",
    "Election",
    "Feature",
    "GroupInfo",
    "GroupListing",
    "HangingTransaction",
    "IsolationLevel",
    "LogDir",
    "NewTopic",
    "ProducerIdAndEpoch",
    "Producers",
    "QuorumInfo",
    "Reassignment",
    "Resource",
    "ResourceType",
    "TransactionInfo",
    "TransactionListing",
]

IsolationLevel = Literal["read_uncommitted", "read_committed"]
ISOLATION_LEVELS: Final[tuple[IsolationLevel, ...]] = ("read_uncommitted", "read_committed")


class AsyncAdmin:
    """Administers a cluster. Use `await start()` first and `await close()` last, or `async with`."""

    def __init__(self, bootstrap_servers: str | Sequence[str], **given: Unpack[ClientSettings]) -> None:
        settings = settings_of(ClientConfig, given)
        self._cluster = Cluster(bootstrap_addresses(bootstrap_servers), settings)

    async def __aenter__(self) -> AsyncAdmin:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Reach the cluster, or raise `BrokerUnreachable`."""
        await self._cluster.start()

    async def close(self) -> None:
        """Disconnect."""
        await self._cluster.close()

    # Topics

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, TopicInfo]:
        """Create topics, and wait until they can be used; gives them as they are, or nothing if they were only validated."""
        return await topics_of.create_topics(self._cluster, topics, validate_only=validate_only)

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        *,
        assignments: Mapping[int, Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Create a topic; -1 leaves a number to the broker's defaults, `assignments` places each partition on brokers."""
        topic = NewTopic(name, partitions, replication_factor, configs or {}, assignments or {})
        await self.create_topics([topic], validate_only=validate_only)

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics and their records, and wait until they are gone."""
        await topics_of.delete_topics(self._cluster, names)

    async def create_partitions(
        self,
        topic: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """Grow a topic to `count` partitions; `assignments` places each new one on brokers, the preferred leader first."""
        await topics_of.create_partitions(
            self._cluster, topic, count, assignments, validate_only=validate_only
        )

    async def list_topics(self, *, internal: bool = False) -> dict[str, TopicInfo]:
        """All topics by name, with their partitions and leaders."""
        return await topics_of.list_topics(self._cluster, internal=internal)

    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Topics with their partitions, leaders and replicas."""
        return await topics_of.describe_topics(self._cluster, names)

    # Records and offsets

    async def list_offsets(
        self, times: Mapping[TopicPartition, int], *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> dict[TopicPartition, OffsetAndTime]:
        """For each partition the offset for a time in ms, or for one of `EARLIEST`, `LATEST`, `MAX_TIMESTAMP`, `EARLIEST_LOCAL`, `LATEST_TIERED`.

        With `read_committed` the latest is where open transactions begin.
        """
        if isolation_level not in ISOLATION_LEVELS:
            raise ValueError(
                f"isolation_level must be one of {', '.join(ISOLATION_LEVELS)}, not {isolation_level!r}"
            )
        return await list_offsets(
            self._cluster, times, isolation_level=ISOLATION_LEVELS.index(isolation_level)
        )

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset of each partition (-1: all); gives the new log starts."""
        return await topics_of.delete_records(self._cluster, before)

    # Configs

    async def describe_configs(
        self,
        resource: Resource,
        names: Iterable[str] | None = None,
        *,
        documentation: bool = False,
        synonyms: bool = False,
    ) -> dict[str, ConfigEntry]:
        """The configs of a topic, broker or group, with where each value comes from; all of them if none is named."""
        return await configs.describe_configs(
            self._cluster, resource, names, documentation=documentation, synonyms=synonyms
        )

    async def alter_configs(
        self,
        resource: Resource,
        changes: Mapping[str, str | None],
        *,
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Set configs, or unset those whose value is None, and leave the others; `append` to and `subtract` from lists."""
        await configs.alter_configs(
            self._cluster,
            resource,
            changes,
            append=append or {},
            subtract=subtract or {},
            validate_only=validate_only,
        )

    async def list_config_resources(self, types: Collection[ResourceType] = ()) -> list[Resource]:
        """Everything of these types (all, if none is given) that has configs, or may have."""
        return await configs.list_config_resources(self._cluster, types)

    # The cluster

    async def describe_cluster(self, *, include_fenced: bool = False) -> ClusterInfo:
        """The cluster's id, brokers and controller; with the brokers that are registered and away, if wanted."""
        return await clusters.describe_cluster(self._cluster, include_fenced=include_fenced)

    async def unregister_broker(self, broker_id: int) -> None:
        """Forget a broker that has stopped for good."""
        await clusters.unregister_broker(self._cluster, broker_id)

    async def describe_features(self) -> dict[str, Feature]:
        """The cluster's features by name: the level in force, and those that could be."""
        return await clusters.describe_features(self._cluster)

    async def update_features(
        self, levels: Mapping[str, int], *, downgrade: Downgrade = "no", validate_only: bool = False
    ) -> None:
        """Set features to levels; a lower level than now needs `downgrade`."""
        await clusters.update_features(
            self._cluster, levels, downgrade=downgrade, validate_only=validate_only
        )

    async def describe_quorum(self) -> QuorumInfo:
        """Who writes the cluster's metadata, and how far those who read it are."""
        return await clusters.describe_quorum(self._cluster)

    async def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[int, dict[str, LogDir]]:
        """By broker and path the directories of logs: what lies there, and how much room is left."""
        return await log_dirs.describe_log_dirs(self._cluster, brokers, partitions)

    async def alter_replica_log_dirs(self, broker_id: int, directories: Mapping[TopicPartition, str]) -> None:
        """Begin to move replicas to other directories of a broker; `describe_log_dirs` tells how far that is."""
        await log_dirs.alter_replica_log_dirs(self._cluster, broker_id, directories)

    # Partitions

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, Election]:
        """Let the preferred replica lead, or (unclean) any that lives if nobody does; of all partitions if none is named."""
        return await replicas.elect_leaders(self._cluster, partitions, unclean=unclean)

    async def alter_partition_reassignments(
        self, assignments: Mapping[TopicPartition, Sequence[int] | None]
    ) -> None:
        """Begin to move partitions to these brokers, the preferred leader first; None ends a move that is under way."""
        await replicas.alter_reassignments(self._cluster, assignments)

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The moves that are under way."""
        return await replicas.list_reassignments(self._cluster, partitions)

    # Groups

    async def list_groups(
        self, *, states: Collection[str] = (), types: Collection[str] = ()
    ) -> list[GroupListing]:
        """The groups of all brokers, or those in such states ("Stable", "Empty" …) and of such types ("classic", "consumer" …)."""
        return await groups_of.list_groups(self._cluster, states=states, types=types)

    async def describe_group(self, group: str) -> GroupInfo:
        """A group's state and members, of either protocol."""
        return await groups_of.describe_group(self._cluster, group)

    async def describe_groups(self, groups: Iterable[str]) -> dict[str, GroupInfo]:
        """The states and members of several groups."""
        return await groups_of.describe_groups(self._cluster, groups)

    async def remove_members(
        self, group: str, members: Iterable[str] | None = None, *, reason: str = ""
    ) -> None:
        """Send members away, by member id or instance id; all if none is named. Those that still run come back."""
        await groups_of.remove_members(self._cluster, group, members, reason=reason)

    async def delete_groups(self, groups: Iterable[str]) -> None:
        """Delete groups without members, and their offsets."""
        await groups_of.delete_groups(self._cluster, groups)

    async def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """All offsets that a group has committed."""
        return {
            place: each.offset
            for place, each in (await group_offsets.group_offsets(self._cluster, group)).items()
        }

    async def list_group_offsets(
        self,
        groups: Iterable[str],
        *,
        stable: bool = False,
        partitions: Iterable[TopicPartition] | None = None,
    ) -> dict[str, Committed]:
        """All that several groups have committed, with the metadata of each offset; with `partitions` only what they have for these.

        `stable` waits for transactions that are about to change it. Apache Kafka waits so for offsets that it knows already, and for those of
        the `partitions` that are asked for; of others it says nothing before their transaction has ended.
        """
        return await group_offsets.list_group_offsets(
            self._cluster, groups, stable=stable, partitions=partitions
        )

    async def group_lag(self, groups: Iterable[str]) -> dict[str, dict[TopicPartition, int]]:
        """How many offsets lie between what each group has committed and the ends of the partitions."""
        return await group_offsets.group_lag(self._cluster, groups)

    async def set_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        """Commit in a group's name; one with active members refuses."""
        await group_offsets.set_group_offsets(self._cluster, group, offsets)

    async def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget what a group has committed for partitions of topics that it does not read now."""
        await group_offsets.delete_group_offsets(self._cluster, group, partitions)

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
        return await transactions.list_transactions(
            self._cluster,
            states=states,
            producer_ids=producer_ids,
            longer_than_ms=longer_than_ms,
            pattern=pattern,
        )

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionInfo]:
        """What transactional ids are at, and the partitions of their transactions."""
        return await transactions.describe_transactions(self._cluster, transactional_ids)

    async def abort_transaction(self, transactional_id: str) -> TransactionInfo:
        """Abort what a transactional id has going on; its producer is fenced. Gives what it was before."""
        return await transactions.abort_transaction(self._cluster, transactional_id)

    async def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, ProducerIdAndEpoch]:
        """Shut out the producers of transactional ids, and abort what they have going on. Ids that nobody used are made by it."""
        return await transactions.fence_producers(self._cluster, transactional_ids)

    async def describe_producers(self, partitions: Iterable[TopicPartition]) -> Producers:
        """The idempotent and transactional producers that partitions remember."""
        return await transactions.describe_producers(self._cluster, partitions)

    async def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition], older_than_ms: int | None = None
    ) -> list[HangingTransaction]:
        """What is open in these partitions, and known to no coordinator; only if nothing was written to it for so long."""
        return await transactions.find_hanging(self._cluster, partitions, older_than_ms)

    async def abort_hanging_transaction(self, hanging: HangingTransaction) -> None:
        """End in its partition what was found to hang."""
        await transactions.abort_hanging(self._cluster, hanging)
