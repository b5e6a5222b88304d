"""The blocking admin client, `ottla.Admin`: it runs each method of `AsyncAdmin` and waits for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Unpack

from ottla.client.admin.core import (
    AsyncAdmin,
    ClusterInfo,
    Committed,
    ConfigEntry,
    Downgrade,
    Election,
    Feature,
    GroupInfo,
    GroupListing,
    HangingTransaction,
    IsolationLevel,
    LogDir,
    NewTopic,
    ProducerIdAndEpoch,
    Producers,
    QuorumInfo,
    Reassignment,
    Resource,
    ResourceType,
    TransactionInfo,
    TransactionListing,
)
from ottla.client.loop_thread import BlockingClient
from ottla.client.metadata import OffsetAndMetadata, TopicInfo, TopicPartition
from ottla.client.offsets import OffsetAndTime
from ottla.client.settings import ClientSettings


class Admin(BlockingClient):
    """An admin client for threads: it manages topics, configs, groups, transactions and brokers.

    The constructor connects. Every method raises a `KafkaError` if the cluster refuses the request:
    `NotAuthorized` without an ACL, `BrokerUnreachable` or `RequestTimedOut` if no broker answers,
    `ClientClosed` after `close()`. The method's own errors are under `Raises`. Methods that take several
    topics, groups or partitions do all that is possible; if more than one is refused, they raise
    `SeveralFailed`, whose `errors` has each error by name.

    Args:
        bootstrap_servers: `host:port` of one or more brokers, as a string with commas or a sequence.
        settings: Kafka's client settings with underscores, for example `request_timeout_ms=10_000`. The
            defaults are in `ottla.client.settings.ClientConfig`.

    Raises:
        SettingError: A setting has an unknown name or an invalid value.
        BrokerUnreachable: No bootstrap server can be reached.
        AuthenticationFailed: The broker refuses the credentials, or TLS fails.

    Example:
        >>> import ottla
        >>> with ottla.Admin(broker.address) as admin:
        ...     admin.create_topic("payments", 3)
        ...     print(len(admin.describe_topics(["payments"])["payments"].partitions))
        3
    """

    _core: AsyncAdmin

    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Unpack[ClientSettings]) -> None:
        self._core = self._open("ottla-admin", lambda: AsyncAdmin(bootstrap_servers, **settings))

    # Topics

    def create_topics(
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

        Example:
            >>> from ottla.client.admin.core import NewTopic
            >>> list(admin.create_topics([NewTopic("payments", 3), NewTopic("refunds", 1)]))
            ['payments', 'refunds']
        """
        return self._thread.run(self._core.create_topics(topics, validate_only=validate_only))

    def create_topic(
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

        Example:
            >>> admin.create_topic("payments", 3, configs={"cleanup.policy": "compact"})
        """
        self._thread.run(
            self._core.create_topic(
                name,
                partitions,
                replication_factor,
                configs,
                assignments=assignments,
                validate_only=validate_only,
            )
        )

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete topics with their records, and wait until the brokers have removed them.

        Args:
            names: Names of the topics.

        Raises:
            TopicNotFound: A topic does not exist.

        Example:
            >>> admin.delete_topics(["orders"])
            >>> list(admin.list_topics())
            []
        """
        self._thread.run(self._core.delete_topics(names))

    def create_partitions(
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

        Example:
            >>> admin.create_partitions("orders", 4)
        """
        self._thread.run(self._core.create_partitions(topic, count, assignments, validate_only=validate_only))

    def list_topics(self, *, internal: bool = False) -> dict[str, TopicInfo]:
        """List all topics.

        Args:
            internal: Also list internal topics, such as `__consumer_offsets`. Default: False.

        Returns:
            The topics by name, with partitions, leaders and replicas.

        Example:
            >>> list(admin.list_topics())
            ['orders']
        """
        return self._thread.run(self._core.list_topics(internal=internal))

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Describe topics: partitions, leaders, replicas and in-sync replicas.

        Args:
            names: Names of the topics.

        Returns:
            The topics by name. `print()` shows a topic as a table.

        Raises:
            TopicNotFound: A topic does not exist.

        Example:
            >>> print(admin.describe_topics(["orders"])["orders"])
            topic orders: 1 partition(s)
              0: leader 1, replicas 1, in sync 1
        """
        return self._thread.run(self._core.describe_topics(names))

    # Records and offsets

    def list_offsets(
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

        Example:
            >>> from ottla.client.admin.core import LATEST
            >>> tp = ottla.TopicPartition("orders", 0)
            >>> admin.list_offsets({tp: LATEST})[tp].offset
            3
        """
        return self._thread.run(self._core.list_offsets(times, isolation_level=isolation_level))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records of partitions below an offset.

        Args:
            before: The offset by partition. -1 deletes all records.

        Returns:
            The new log start offset by partition.

        Raises:
            TopicNotFound: A topic or a partition does not exist.
            OffsetOutOfRange: The offset is larger than the high watermark.

        Example:
            >>> admin.delete_records({ottla.TopicPartition("orders", 0): 2})
            {TopicPartition(topic='orders', partition=0): 2}
        """
        return self._thread.run(self._core.delete_records(before))

    # Configs

    def describe_configs(
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

        Example:
            >>> from ottla.client.admin.core import Resource
            >>> configs = admin.describe_configs(Resource("topic", "orders"))
            >>> print(configs["cleanup.policy"])
            cleanup.policy=delete (default)
        """
        return self._thread.run(
            self._core.describe_configs(resource, names, documentation=documentation, synonyms=synonyms)
        )

    def alter_configs(
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

        Example:
            >>> from ottla.client.admin.core import Resource
            >>> admin.alter_configs(Resource("topic", "orders"), {"retention.ms": "3600000"})
        """
        self._thread.run(
            self._core.alter_configs(
                resource, changes, append=append, subtract=subtract, validate_only=validate_only
            )
        )

    def list_config_resources(self, types: Collection[ResourceType] = ()) -> list[Resource]:
        """List the resources that can have configs (KIP-1142).

        Args:
            types: Resource types, such as "topic". Default: all types.

        Returns:
            The resources.

        Raises:
            UnsupportedVersion: The broker cannot list these types.

        Example:
            >>> admin.list_config_resources(["topic"])
            [Resource(type='topic', name='orders')]
        """
        return self._thread.run(self._core.list_config_resources(types))

    # The cluster

    def describe_cluster(self, *, include_fenced: bool = False) -> ClusterInfo:
        """Describe the cluster: its id, its brokers and its controller.

        Args:
            include_fenced: Also return the registered brokers that are fenced. Default: False.

        Returns:
            The `ClusterInfo`. `print()` shows it as a table.

        Example:
            >>> [node.id for node in admin.describe_cluster().nodes]
            [1]
        """
        return self._thread.run(self._core.describe_cluster(include_fenced=include_fenced))

    def unregister_broker(self, broker_id: int) -> None:
        """Remove the registration of a broker that has stopped for good.

        Args:
            broker_id: Id of the broker.

        Raises:
            BrokerNotFound: No broker of that id is registered.

        Example:
            >>> try:
            ...     admin.unregister_broker(99)
            ... except ottla.errors.BrokerNotFound as error:
            ...     print(error.code.name)
            BROKER_ID_NOT_REGISTERED
        """
        self._thread.run(self._core.unregister_broker(broker_id))

    def describe_features(self) -> dict[str, Feature]:
        """Describe the features of the cluster (KIP-584).

        Returns:
            By name: the finalized level, and the levels that the broker supports.

        Example:
            >>> admin.describe_features()["transaction.version"].level
            2
        """
        return self._thread.run(self._core.describe_features())

    def update_features(
        self, levels: Mapping[str, int], *, downgrade: Downgrade = "no", validate_only: bool = False
    ) -> None:
        """Set the levels of features (KIP-584).

        Args:
            levels: The new level by feature name.
            downgrade: "no", "safe" or "unsafe": whether a level may become lower. Default: "no".
            validate_only: Only check the request. Default: False.

        Raises:
            KafkaError: A feature or a level is not supported.

        Example:
            >>> admin.update_features({"transaction.version": 2})
        """
        self._thread.run(self._core.update_features(levels, downgrade=downgrade, validate_only=validate_only))

    def describe_quorum(self) -> QuorumInfo:
        """Describe the quorum that writes the cluster metadata.

        Returns:
            The leader, its epoch, the high watermark, and the log end offset of each voter and observer.

        Example:
            >>> admin.describe_quorum().leader_id
            1
        """
        return self._thread.run(self._core.describe_quorum())

    def describe_log_dirs(
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

        Example:
            >>> [log_dir] = admin.describe_log_dirs()[1].values()
            >>> log_dir.replicas[ottla.TopicPartition("orders", 0)].offset_lag
            0
        """
        return self._thread.run(self._core.describe_log_dirs(brokers, partitions))

    def alter_replica_log_dirs(self, broker_id: int, directories: Mapping[TopicPartition, str]) -> None:
        """Start to move replicas to other log directories of a broker (KIP-113).

        `describe_log_dirs` shows the progress.

        Args:
            broker_id: Id of the broker.
            directories: The target path by partition.

        Raises:
            BrokerNotFound: The cluster has no such broker.
            KafkaError: The path is not in the broker's `log.dirs`, or the broker has no such replica.

        Example:
            >>> [path] = admin.describe_log_dirs()[1]
            >>> admin.alter_replica_log_dirs(1, {ottla.TopicPartition("orders", 0): path})
        """
        self._thread.run(self._core.alter_replica_log_dirs(broker_id, directories))

    # Partitions

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, Election]:
        """Elect leaders of partitions (KIP-460).

        Args:
            partitions: Partitions. Default: all of them.
            unclean: Elect any live replica for a partition without a leader; records may be lost. Default:
                False, which elects the preferred leader.

        Returns:
            The `Election` by partition: a code and a message. ELECTION_NOT_NEEDED is not a failure.

        Example:
            >>> tp = ottla.TopicPartition("orders", 0)
            >>> print(admin.elect_leaders([tp])[tp])
            broker 1 leads and is preferred
        """
        return self._thread.run(self._core.elect_leaders(partitions, unclean=unclean))

    def alter_partition_reassignments(
        self, assignments: Mapping[TopicPartition, Sequence[int] | None]
    ) -> None:
        """Start to move partitions to other brokers, or cancel that (KIP-455).

        `list_partition_reassignments` shows the progress.

        Args:
            assignments: Broker ids by partition, the preferred leader first. None cancels a reassignment.

        Raises:
            InvalidRequest: A broker id is unknown, or the list is invalid.
            TopicNotFound: A topic or a partition does not exist.

        Example:
            >>> admin.alter_partition_reassignments({ottla.TopicPartition("orders", 0): [1]})
        """
        self._thread.run(self._core.alter_partition_reassignments(assignments))

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """List the reassignments in progress (KIP-455).

        Args:
            partitions: Partitions. Default: all of them.

        Returns:
            By partition: the current replicas, the added and the removed ones.

        Example:
            >>> admin.list_partition_reassignments()
            {}
        """
        return self._thread.run(self._core.list_partition_reassignments(partitions))

    # Groups

    def list_groups(self, *, states: Collection[str] = (), types: Collection[str] = ()) -> list[GroupListing]:
        """List the groups of all brokers.

        Args:
            states: Only groups in these states, such as "Stable" or "Empty". Default: all states.
            types: Only groups of these types, such as "classic" or "consumer". Default: all types.

        Returns:
            Group id, state, type and protocol type of each group.

        Raises:
            UnsupportedVersion: A broker is too old for a filter.

        Example:
            >>> admin.set_group_offsets("billing", {ottla.TopicPartition("orders", 0): 1})
            >>> [each.group for each in admin.list_groups(states=["Empty"])]
            ['billing']
        """
        return self._thread.run(self._core.list_groups(states=states, types=types))

    def describe_group(self, group: str) -> GroupInfo:
        """Describe a group: its state, its assignor and its members.

        Args:
            group: The group id, of either protocol.

        Returns:
            The `GroupInfo`. `print()` shows it as a table.

        Raises:
            KafkaError: The group does not exist (GROUP_ID_NOT_FOUND).

        Example:
            >>> admin.set_group_offsets("billing", {ottla.TopicPartition("orders", 0): 1})
            >>> admin.describe_group("billing").state
            'Empty'
        """
        return self._thread.run(self._core.describe_group(group))

    def describe_groups(self, groups: Iterable[str]) -> dict[str, GroupInfo]:
        """Describe several groups.

        Args:
            groups: The group ids, of either protocol.

        Returns:
            The `GroupInfo`s by group id.

        Raises:
            KafkaError: A group does not exist (GROUP_ID_NOT_FOUND).

        Example:
            >>> admin.set_group_offsets("billing", {ottla.TopicPartition("orders", 0): 1})
            >>> list(admin.describe_groups(["billing"]))
            ['billing']
        """
        return self._thread.run(self._core.describe_groups(groups))

    def remove_members(self, group: str, members: Iterable[str] | None = None, *, reason: str = "") -> None:
        """Remove members from a group. Members that still run join again.

        Args:
            group: The group id.
            members: Member ids or group instance ids. Default: all members.
            reason: A text for the broker's log. Default: "".

        Raises:
            KafkaError: The group or a member does not exist.

        Example:
            >>> admin.set_group_offsets("billing", {ottla.TopicPartition("orders", 0): 1})
            >>> admin.remove_members("billing")
        """
        self._thread.run(self._core.remove_members(group, members, reason=reason))

    def delete_groups(self, groups: Iterable[str]) -> None:
        """Delete groups without members, with their committed offsets.

        Args:
            groups: The group ids.

        Raises:
            KafkaError: A group has members (NON_EMPTY_GROUP) or does not exist (GROUP_ID_NOT_FOUND).

        Example:
            >>> admin.set_group_offsets("billing", {ottla.TopicPartition("orders", 0): 1})
            >>> admin.delete_groups(["billing"])
        """
        self._thread.run(self._core.delete_groups(groups))

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """Return all committed offsets of a group.

        Args:
            group: The group id.

        Returns:
            The offset by partition; empty for an unknown group.

        Example:
            >>> admin.set_group_offsets("billing", {ottla.TopicPartition("orders", 0): 1})
            >>> admin.group_offsets("billing")
            {TopicPartition(topic='orders', partition=0): 1}
        """
        return self._thread.run(self._core.group_offsets(group))

    def list_group_offsets(
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

        Example:
            >>> tp = ottla.TopicPartition("orders", 0)
            >>> admin.set_group_offsets("billing", {tp: 1})
            >>> admin.list_group_offsets(["billing"])["billing"][tp].offset
            1
        """
        return self._thread.run(self._core.list_group_offsets(groups, stable=stable, partitions=partitions))

    def group_lag(self, groups: Iterable[str]) -> dict[str, dict[TopicPartition, int]]:
        """Return the lag of groups: the end offset minus the committed offset of each partition.

        Args:
            groups: The group ids.

        Returns:
            The number of offsets by group id and partition. Deleted partitions are left out.

        Example:
            >>> admin.set_group_offsets("billing", {ottla.TopicPartition("orders", 0): 1})
            >>> admin.group_lag(["billing"])
            {'billing': {TopicPartition(topic='orders', partition=0): 2}}
        """
        return self._thread.run(self._core.group_lag(groups))

    def set_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        """Commit offsets for a group without members.

        Args:
            group: The group id. The group is created if it does not exist.
            offsets: For each partition the next offset to read.

        Raises:
            KafkaError: The group has members (NON_EMPTY_GROUP).

        Example:
            >>> admin.set_group_offsets("billing", {ottla.TopicPartition("orders", 0): 1})
        """
        self._thread.run(self._core.set_group_offsets(group, offsets))

    def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete committed offsets of a group, of topics that the group does not read.

        Args:
            group: The group id.
            partitions: The partitions.

        Raises:
            KafkaError: The group reads a topic (GROUP_SUBSCRIBED_TO_TOPIC) or does not exist
                (GROUP_ID_NOT_FOUND).

        Example:
            >>> tp = ottla.TopicPartition("orders", 0)
            >>> admin.set_group_offsets("billing", {tp: 1})
            >>> admin.delete_group_offsets("billing", [tp])
        """
        self._thread.run(self._core.delete_group_offsets(group, partitions))

    # Transactions

    def list_transactions(
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

        Example:
            >>> admin.list_transactions(states=["Ongoing"])
            []
        """
        return self._thread.run(
            self._core.list_transactions(
                states=states, producer_ids=producer_ids, longer_than_ms=longer_than_ms, pattern=pattern
            )
        )

    def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionInfo]:
        """Describe transactional ids: state, producer id, epoch, and the partitions of the transaction.

        Args:
            transactional_ids: The transactional ids.

        Returns:
            The `TransactionInfo`s by transactional id.

        Raises:
            TransactionalIdNotFound: A transactional id does not exist.

        Example:
            >>> ids = admin.fence_producers(["billing-1"])
            >>> admin.describe_transactions(ids)["billing-1"].state
            'Empty'
        """
        return self._thread.run(self._core.describe_transactions(transactional_ids))

    def abort_transaction(self, transactional_id: str) -> TransactionInfo:
        """Abort the open transaction of a transactional id. Its producer is fenced.

        Args:
            transactional_id: The transactional id.

        Returns:
            The `TransactionInfo` before the abort.

        Raises:
            TransactionalIdNotFound: The transactional id does not exist.
            KafkaError: The id has no open transaction (INVALID_TXN_STATE).

        Example:
            >>> with ottla.Producer(broker.address, transactional_id="billing-1") as producer:
            ...     producer.begin()
            ...     metadata = producer.send("orders", b"value").result(timeout=10)
            ...     print(admin.abort_transaction("billing-1").state)
            Ongoing
        """
        return self._thread.run(self._core.abort_transaction(transactional_id))

    def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, ProducerIdAndEpoch]:
        """Fence the producers of transactional ids and abort their transactions.

        Args:
            transactional_ids: The transactional ids. An unknown id is created.

        Returns:
            The new producer id and epoch by transactional id.

        Example:
            >>> list(admin.fence_producers(["billing-1"]))
            ['billing-1']
        """
        return self._thread.run(self._core.fence_producers(transactional_ids))

    def describe_producers(self, partitions: Iterable[TopicPartition]) -> Producers:
        """Describe the active idempotent and transactional producers of partitions (KIP-664).

        Args:
            partitions: The partitions.

        Returns:
            The `ProducerState`s by partition.

        Raises:
            TopicNotFound: A topic or a partition does not exist.

        Example:
            >>> tp = ottla.TopicPartition("orders", 0)
            >>> [state.last_sequence for state in admin.describe_producers([tp])[tp]]
            [2]
        """
        return self._thread.run(self._core.describe_producers(partitions))

    def find_hanging_transactions(
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

        Example:
            >>> admin.find_hanging_transactions([ottla.TopicPartition("orders", 0)])
            []
        """
        return self._thread.run(self._core.find_hanging_transactions(partitions, older_than_ms))

    def abort_hanging_transaction(self, hanging: HangingTransaction) -> None:
        """Write the abort marker of a hanging transaction (KIP-664).

        Args:
            hanging: A result of `find_hanging_transactions`. Aborting a live transaction would lose half of
                it.

        Raises:
            TopicNotFound: The topic or the partition does not exist.

        Example:
            >>> for hanging in admin.find_hanging_transactions([ottla.TopicPartition("orders", 0)]):
            ...     admin.abort_hanging_transaction(hanging)
        """
        self._thread.run(self._core.abort_hanging_transaction(hanging))
