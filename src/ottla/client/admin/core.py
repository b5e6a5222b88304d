"""The asyncio admin client, `ottla.aio.Admin`: every admin operation that both ottla and Apache Kafka
support.

Each method sends one request or a few, through the module of its subject in this folder. `ottla.Admin` is the
blocking twin.
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
    """An admin client for asyncio: it manages topics, configs, groups, transactions and brokers.

    Use it with `async with`, or call `await start()` first and `await close()` last. Every method raises a
    `KafkaError` if the cluster refuses the request: `NotAuthorized` without an ACL, `BrokerUnreachable` or
    `RequestTimedOut` if no broker answers, `ClientClosed` after `close()`. The method's own errors are under
    `Raises`. Methods that take several topics, groups or partitions do all that is possible; if more than one
    is refused, they raise `SeveralFailed`, whose `errors` has each error by name.

    Args:
        bootstrap_servers: `host:port` of one or more brokers, as a string with commas or a sequence.
        settings: Kafka's client settings with underscores, for example `request_timeout_ms=10_000`. The
            defaults are in `ottla.client.settings.ClientConfig`.

    Raises:
        SettingError: A setting has an unknown name or an invalid value.

    Example:
        >>> import ottla.aio
        >>> async with ottla.aio.Admin(broker.address) as admin:
        ...     await admin.create_topic("payments", 3)
        ...     print(len((await admin.describe_topics(["payments"]))["payments"].partitions))
        3
    """

    def __init__(self, bootstrap_servers: str | Sequence[str], **given: Unpack[ClientSettings]) -> None:
        settings = settings_of(ClientConfig, given)
        self._cluster = Cluster(bootstrap_addresses(bootstrap_servers), settings)

    async def __aenter__(self) -> AsyncAdmin:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect to the cluster.

        Raises:
            BrokerUnreachable: No bootstrap server can be reached.
            AuthenticationFailed: The broker refuses the credentials, or TLS fails.
        """
        await self._cluster.start()

    async def close(self) -> None:
        """Disconnect. A second call does nothing."""
        await self._cluster.close()

    # Topics

    async def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, TopicInfo]:
        """Create topics and wait until the brokers know them.

        Args:
            topics: The topics to create.
            validate_only: Only check the request. Default: False.

        Returns:
            The new topics by name; empty with `validate_only`.

        Raises:
            TopicExists: A topic of that name exists.
            InvalidRequest: The name, the numbers, the assignment or a config is invalid.
        """
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
        """Create one topic and wait until the brokers know it.

        Args:
            name: Name of the topic.
            partitions: Number of partitions. Default: the broker's `num.partitions`.
            replication_factor: Number of replicas. Default: the broker's `default.replication.factor`.
            configs: Topic configs by name. Default: none.
            assignments: Broker ids by partition, the preferred leader first, instead of both numbers.
                Default: None.
            validate_only: Only check the request. Default: False.

        Raises:
            TopicExists: A topic of that name exists.
            InvalidRequest: The name, the numbers, the assignment or a config is invalid.
        """
        topic = NewTopic(name, partitions, replication_factor, configs or {}, assignments or {})
        await self.create_topics([topic], validate_only=validate_only)

    async def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics with their records, and wait until the brokers have removed them.

        Args:
            names: Names of the topics.

        Raises:
            TopicNotFound: A topic does not exist.
        """
        await topics_of.delete_topics(self._cluster, names)

    async def create_partitions(
        self,
        topic: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """Increase the number of partitions of a topic.

        Args:
            topic: Name of the topic.
            count: The new total.
            assignments: Broker ids for each new partition, the preferred leader first. Default: the
                controller chooses.
            validate_only: Only check the request. Default: False.

        Raises:
            TopicNotFound: The topic does not exist.
            InvalidRequest: `count` is not larger than the current number, or the assignment is invalid.
        """
        await topics_of.create_partitions(
            self._cluster, topic, count, assignments, validate_only=validate_only
        )

    async def list_topics(self, *, internal: bool = False) -> dict[str, TopicInfo]:
        """List all topics.

        Args:
            internal: Also list internal topics, such as `__consumer_offsets`. Default: False.

        Returns:
            The topics by name, with partitions, leaders and replicas.
        """
        return await topics_of.list_topics(self._cluster, internal=internal)

    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Describe topics: partitions, leaders, replicas and in-sync replicas.

        Args:
            names: Names of the topics.

        Returns:
            The topics by name. `print()` shows a topic as a table.

        Raises:
            TopicNotFound: A topic does not exist.
        """
        return await topics_of.describe_topics(self._cluster, names)

    # Records and offsets

    async def list_offsets(
        self, times: Mapping[TopicPartition, int], *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> dict[TopicPartition, OffsetAndTime]:
        """Return for each partition the offset of a time, or of one end of the log.

        Args:
            times: By partition: milliseconds since 1970 UTC, or one of `EARLIEST`, `LATEST`, `MAX_TIMESTAMP`,
                `EARLIEST_LOCAL` and `LATEST_TIERED` of `ottla.client.admin.core`.
            isolation_level: With "read_committed", `LATEST` is the last stable offset. Default:
                "read_uncommitted".

        Returns:
            Offset and timestamp by partition; -1 where there is no such record.

        Raises:
            TopicNotFound: A topic or a partition does not exist.
            ValueError: The isolation level is unknown.
        """
        if isolation_level not in ISOLATION_LEVELS:
            raise ValueError(
                f"isolation_level must be one of {', '.join(ISOLATION_LEVELS)}, not {isolation_level!r}"
            )
        return await list_offsets(
            self._cluster, times, isolation_level=ISOLATION_LEVELS.index(isolation_level)
        )

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records of partitions below an offset.

        Args:
            before: The offset by partition. -1 deletes all records.

        Returns:
            The new log start offset by partition.

        Raises:
            TopicNotFound: A topic or a partition does not exist.
            OffsetOutOfRange: The offset is larger than the high watermark.
        """
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
        """Describe the configs of a topic, broker or group.

        Args:
            resource: The topic, broker or group.
            names: Names of configs. Default: all of them.
            documentation: Also return the documentation of each config. Default: False.
            synonyms: Also return the values that this one overrides. Default: False.

        Returns:
            The configs by name, each with its value and the source of the value.

        Raises:
            TopicNotFound: The topic does not exist.
            BrokerNotFound: The cluster has no such broker.
        """
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
        """Change some configs of a resource and leave the others (KIP-339).

        Args:
            resource: The topic, broker or group.
            changes: New values by name. None removes the config, so that the default applies.
            append: Values to append to list configs. Default: none.
            subtract: Values to remove from list configs. Default: none.
            validate_only: Only check the request. Default: False.

        Raises:
            InvalidRequest: A name or a value is invalid.
            TopicNotFound: The topic does not exist.
            BrokerNotFound: The cluster has no such broker.
        """
        await configs.alter_configs(
            self._cluster,
            resource,
            changes,
            append=append or {},
            subtract=subtract or {},
            validate_only=validate_only,
        )

    async def list_config_resources(self, types: Collection[ResourceType] = ()) -> list[Resource]:
        """List the resources that can have configs (KIP-1142).

        Args:
            types: Resource types, such as "topic". Default: all types.

        Returns:
            The resources.

        Raises:
            UnsupportedVersion: The broker cannot list these types.
        """
        return await configs.list_config_resources(self._cluster, types)

    # The cluster

    async def describe_cluster(self, *, include_fenced: bool = False) -> ClusterInfo:
        """Describe the cluster: its id, its brokers and its controller.

        Args:
            include_fenced: Also return the registered brokers that are fenced. Default: False.

        Returns:
            The `ClusterInfo`. `print()` shows it as a table.
        """
        return await clusters.describe_cluster(self._cluster, include_fenced=include_fenced)

    async def unregister_broker(self, broker_id: int) -> None:
        """Remove the registration of a broker that has stopped for good.

        Args:
            broker_id: Id of the broker.

        Raises:
            BrokerNotFound: No broker of that id is registered.
        """
        await clusters.unregister_broker(self._cluster, broker_id)

    async def describe_features(self) -> dict[str, Feature]:
        """Describe the features of the cluster (KIP-584).

        Returns:
            By name: the finalized level, and the levels that the broker supports.
        """
        return await clusters.describe_features(self._cluster)

    async def update_features(
        self, levels: Mapping[str, int], *, downgrade: Downgrade = "no", validate_only: bool = False
    ) -> None:
        """Set the levels of features (KIP-584).

        Args:
            levels: The new level by feature name.
            downgrade: "no", "safe" or "unsafe": whether a level may become lower. Default: "no".
            validate_only: Only check the request. Default: False.

        Raises:
            KafkaError: A feature or a level is not supported.
        """
        await clusters.update_features(
            self._cluster, levels, downgrade=downgrade, validate_only=validate_only
        )

    async def describe_quorum(self) -> QuorumInfo:
        """Describe the quorum that writes the cluster metadata.

        Returns:
            The leader, its epoch, the high watermark, and the log end offset of each voter and observer.
        """
        return await clusters.describe_quorum(self._cluster)

    async def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[int, dict[str, LogDir]]:
        """Describe the log directories of brokers: replicas, sizes and free disk space.

        Args:
            brokers: Broker ids. Default: all brokers.
            partitions: Only the replicas of these partitions. Default: all partitions.

        Returns:
            The `LogDir`s by broker id and path.

        Raises:
            BrokerNotFound: The cluster has no such broker.
        """
        return await log_dirs.describe_log_dirs(self._cluster, brokers, partitions)

    async def alter_replica_log_dirs(self, broker_id: int, directories: Mapping[TopicPartition, str]) -> None:
        """Start to move replicas to other log directories of a broker (KIP-113).

        `describe_log_dirs` shows the progress.

        Args:
            broker_id: Id of the broker.
            directories: The target path by partition.

        Raises:
            BrokerNotFound: The cluster has no such broker.
            KafkaError: The path is not in the broker's `log.dirs`, or the broker has no such replica.
        """
        await log_dirs.alter_replica_log_dirs(self._cluster, broker_id, directories)

    # Partitions

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, Election]:
        """Elect leaders of partitions (KIP-460).

        Args:
            partitions: Partitions. Default: all of them.
            unclean: Elect any live replica for a partition without a leader; records may be lost. Default:
                False, which elects the preferred leader.

        Returns:
            The `Election` by partition: a code and a message. ELECTION_NOT_NEEDED is not a failure.
        """
        return await replicas.elect_leaders(self._cluster, partitions, unclean=unclean)

    async def alter_partition_reassignments(
        self, assignments: Mapping[TopicPartition, Sequence[int] | None]
    ) -> None:
        """Start to move partitions to other brokers, or cancel that (KIP-455).

        `list_partition_reassignments` shows the progress.

        Args:
            assignments: Broker ids by partition, the preferred leader first. None cancels a reassignment.

        Raises:
            InvalidRequest: A broker id is unknown, or the list is invalid.
            TopicNotFound: A topic or a partition does not exist.
        """
        await replicas.alter_reassignments(self._cluster, assignments)

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """List the reassignments in progress (KIP-455).

        Args:
            partitions: Partitions. Default: all of them.

        Returns:
            By partition: the current replicas, the added and the removed ones.
        """
        return await replicas.list_reassignments(self._cluster, partitions)

    # Groups

    async def list_groups(
        self, *, states: Collection[str] = (), types: Collection[str] = ()
    ) -> list[GroupListing]:
        """List the groups of all brokers.

        Args:
            states: Only groups in these states, such as "Stable" or "Empty". Default: all states.
            types: Only groups of these types, such as "classic" or "consumer". Default: all types.

        Returns:
            Group id, state, type and protocol type of each group.

        Raises:
            UnsupportedVersion: A broker is too old for a filter.
        """
        return await groups_of.list_groups(self._cluster, states=states, types=types)

    async def describe_group(self, group: str) -> GroupInfo:
        """Describe a group: its state, its assignor and its members.

        Args:
            group: The group id, of either protocol.

        Returns:
            The `GroupInfo`. `print()` shows it as a table.

        Raises:
            KafkaError: The group does not exist (GROUP_ID_NOT_FOUND).
        """
        return await groups_of.describe_group(self._cluster, group)

    async def describe_groups(self, groups: Iterable[str]) -> dict[str, GroupInfo]:
        """Describe several groups.

        Args:
            groups: The group ids, of either protocol.

        Returns:
            The `GroupInfo`s by group id.

        Raises:
            KafkaError: A group does not exist (GROUP_ID_NOT_FOUND).
        """
        return await groups_of.describe_groups(self._cluster, groups)

    async def remove_members(
        self, group: str, members: Iterable[str] | None = None, *, reason: str = ""
    ) -> None:
        """Remove members from a group. Members that still run join again.

        Args:
            group: The group id.
            members: Member ids or group instance ids. Default: all members.
            reason: A text for the broker's log. Default: "".

        Raises:
            KafkaError: The group or a member does not exist.
        """
        await groups_of.remove_members(self._cluster, group, members, reason=reason)

    async def delete_groups(self, groups: Iterable[str]) -> None:
        """Delete groups without members, with their committed offsets.

        Args:
            groups: The group ids.

        Raises:
            KafkaError: A group has members (NON_EMPTY_GROUP) or does not exist (GROUP_ID_NOT_FOUND).
        """
        await groups_of.delete_groups(self._cluster, groups)

    async def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """Return all committed offsets of a group.

        Args:
            group: The group id.

        Returns:
            The offset by partition; empty for an unknown group.
        """
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
        """Return the committed offsets of several groups, with their metadata.

        Args:
            groups: The group ids.
            stable: Wait for open transactions that change these offsets (KIP-447). Default: False. Apache
                Kafka waits only for partitions that have a committed offset or are in `partitions`.
            partitions: Only these partitions. Default: all of them.

        Returns:
            The `OffsetAndMetadata` by group id and partition.
        """
        return await group_offsets.list_group_offsets(
            self._cluster, groups, stable=stable, partitions=partitions
        )

    async def group_lag(self, groups: Iterable[str]) -> dict[str, dict[TopicPartition, int]]:
        """Return the lag of groups: the end offset minus the committed offset of each partition.

        Args:
            groups: The group ids.

        Returns:
            The number of offsets by group id and partition. Deleted partitions are left out.
        """
        return await group_offsets.group_lag(self._cluster, groups)

    async def set_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        """Commit offsets for a group without members.

        Args:
            group: The group id. The group is created if it does not exist.
            offsets: For each partition the next offset to read.

        Raises:
            KafkaError: The group has members (NON_EMPTY_GROUP).
        """
        await group_offsets.set_group_offsets(self._cluster, group, offsets)

    async def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete committed offsets of a group, of topics that the group does not read.

        Args:
            group: The group id.
            partitions: The partitions.

        Raises:
            KafkaError: The group reads a topic (GROUP_SUBSCRIBED_TO_TOPIC) or does not exist
                (GROUP_ID_NOT_FOUND).
        """
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
        """List the transactional ids of all brokers.

        Args:
            states: Only ids in these states, such as "Ongoing". Default: all states.
            producer_ids: Only ids with these producer ids. Default: all producer ids.
            longer_than_ms: Only transactions that are open for longer, in milliseconds. Default: None.
            pattern: An RE2 expression that matches whole transactional ids. Default: None.

        Returns:
            Transactional id, state, producer id and coordinator of each.

        Raises:
            InvalidRequest: A state is unknown, or the pattern is invalid.
            UnsupportedVersion: A broker is too old for a filter.
        """
        return await transactions.list_transactions(
            self._cluster,
            states=states,
            producer_ids=producer_ids,
            longer_than_ms=longer_than_ms,
            pattern=pattern,
        )

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionInfo]:
        """Describe transactional ids: state, producer id, epoch, and the partitions of the transaction.

        Args:
            transactional_ids: The transactional ids.

        Returns:
            The `TransactionInfo`s by transactional id.

        Raises:
            TransactionalIdNotFound: A transactional id does not exist.
        """
        return await transactions.describe_transactions(self._cluster, transactional_ids)

    async def abort_transaction(self, transactional_id: str) -> TransactionInfo:
        """Abort the open transaction of a transactional id. Its producer is fenced.

        Args:
            transactional_id: The transactional id.

        Returns:
            The `TransactionInfo` before the abort.

        Raises:
            TransactionalIdNotFound: The transactional id does not exist.
            KafkaError: The id has no open transaction (INVALID_TXN_STATE).
        """
        return await transactions.abort_transaction(self._cluster, transactional_id)

    async def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, ProducerIdAndEpoch]:
        """Fence the producers of transactional ids and abort their transactions.

        Args:
            transactional_ids: The transactional ids. An unknown id is created.

        Returns:
            The new producer id and epoch by transactional id.
        """
        return await transactions.fence_producers(self._cluster, transactional_ids)

    async def describe_producers(self, partitions: Iterable[TopicPartition]) -> Producers:
        """Describe the active idempotent and transactional producers of partitions (KIP-664).

        Args:
            partitions: The partitions.

        Returns:
            The `ProducerState`s by partition.

        Raises:
            TopicNotFound: A topic or a partition does not exist.
        """
        return await transactions.describe_producers(self._cluster, partitions)

    async def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition], older_than_ms: int | None = None
    ) -> list[HangingTransaction]:
        """Find transactions that are open in a partition and unknown to their coordinator (KIP-664).

        Args:
            partitions: The partitions.
            older_than_ms: Only transactions without a write for longer, in milliseconds. Default: all of
                them.

        Returns:
            The hanging transactions, for `abort_hanging_transaction`.

        Raises:
            TopicNotFound: A topic or a partition does not exist.
        """
        return await transactions.find_hanging(self._cluster, partitions, older_than_ms)

    async def abort_hanging_transaction(self, hanging: HangingTransaction) -> None:
        """Write the abort marker of a hanging transaction (KIP-664).

        Args:
            hanging: A result of `find_hanging_transactions`. Aborting a live transaction would lose half of
                it.

        Raises:
            TopicNotFound: The topic or the partition does not exist.
        """
        await transactions.abort_hanging(self._cluster, hanging)
