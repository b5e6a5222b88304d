"""The blocking face of the admin client, `ottla.Admin`: the methods of `AsyncAdmin`, each waited for."""

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
    """Administers a cluster. Every call raises `KafkaError` for what the cluster refuses; `SeveralFailed` if that is more than one thing."""

    _core: AsyncAdmin

    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Unpack[ClientSettings]) -> None:
        self._core = self._open("ottla-admin", lambda: AsyncAdmin(bootstrap_servers, **settings))

    # Topics

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, TopicInfo]:
        """Create topics, and wait until they can be used; gives them as they are, or nothing if they were only validated."""
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
        """Create a topic; -1 leaves a number to the broker's defaults, `assignments` places each partition on brokers."""
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
        """Delete topics and their records, and wait until they are gone."""
        self._thread.run(self._core.delete_topics(names))

    def create_partitions(
        self,
        topic: str,
        count: int,
        assignments: Sequence[Sequence[int]] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """Grow a topic to `count` partitions; `assignments` places each new one on brokers, the preferred leader first."""
        self._thread.run(self._core.create_partitions(topic, count, assignments, validate_only=validate_only))

    def list_topics(self, *, internal: bool = False) -> dict[str, TopicInfo]:
        """All topics by name, with their partitions and leaders."""
        return self._thread.run(self._core.list_topics(internal=internal))

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        """Topics with their partitions, leaders and replicas."""
        return self._thread.run(self._core.describe_topics(names))

    # Records and offsets

    def list_offsets(
        self, times: Mapping[TopicPartition, int], *, isolation_level: IsolationLevel = "read_uncommitted"
    ) -> dict[TopicPartition, OffsetAndTime]:
        """For each partition the offset for a time in ms, or for one of `EARLIEST`, `LATEST`, `MAX_TIMESTAMP`, `EARLIEST_LOCAL`, `LATEST_TIERED`.

        With `read_committed` the latest is where open transactions begin.
        """
        return self._thread.run(self._core.list_offsets(times, isolation_level=isolation_level))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset of each partition (-1: all); gives the new log starts."""
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
        """The configs of a topic, broker or group, with where each value comes from; all of them if none is named."""
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
        """Set configs, or unset those whose value is None, and leave the others; `append` to and `subtract` from lists."""
        self._thread.run(
            self._core.alter_configs(
                resource, changes, append=append, subtract=subtract, validate_only=validate_only
            )
        )

    def list_config_resources(self, types: Collection[ResourceType] = ()) -> list[Resource]:
        """Everything of these types (all, if none is given) that has configs, or may have."""
        return self._thread.run(self._core.list_config_resources(types))

    # The cluster

    def describe_cluster(self, *, include_fenced: bool = False) -> ClusterInfo:
        """The cluster's id, brokers and controller; with the brokers that are registered and away, if wanted."""
        return self._thread.run(self._core.describe_cluster(include_fenced=include_fenced))

    def unregister_broker(self, broker_id: int) -> None:
        """Forget a broker that has stopped for good."""
        self._thread.run(self._core.unregister_broker(broker_id))

    def describe_features(self) -> dict[str, Feature]:
        """The cluster's features by name: the level in force, and those that could be."""
        return self._thread.run(self._core.describe_features())

    def update_features(
        self, levels: Mapping[str, int], *, downgrade: Downgrade = "no", validate_only: bool = False
    ) -> None:
        """Set features to levels; a lower level than now needs `downgrade`."""
        self._thread.run(self._core.update_features(levels, downgrade=downgrade, validate_only=validate_only))

    def describe_quorum(self) -> QuorumInfo:
        """Who writes the cluster's metadata, and how far those who read it are."""
        return self._thread.run(self._core.describe_quorum())

    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[int, dict[str, LogDir]]:
        """By broker and path the directories of logs: what lies there, and how much room is left."""
        return self._thread.run(self._core.describe_log_dirs(brokers, partitions))

    def alter_replica_log_dirs(self, broker_id: int, directories: Mapping[TopicPartition, str]) -> None:
        """Begin to move replicas to other directories of a broker; `describe_log_dirs` tells how far that is."""
        self._thread.run(self._core.alter_replica_log_dirs(broker_id, directories))

    # Partitions

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, Election]:
        """Let the preferred replica lead, or (unclean) any that lives if nobody does; of all partitions if none is named."""
        return self._thread.run(self._core.elect_leaders(partitions, unclean=unclean))

    def alter_partition_reassignments(
        self, assignments: Mapping[TopicPartition, Sequence[int] | None]
    ) -> None:
        """Begin to move partitions to these brokers, the preferred leader first; None ends a move that is under way."""
        self._thread.run(self._core.alter_partition_reassignments(assignments))

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The moves that are under way."""
        return self._thread.run(self._core.list_partition_reassignments(partitions))

    # Groups

    def list_groups(self, *, states: Collection[str] = (), types: Collection[str] = ()) -> list[GroupListing]:
        """The groups of all brokers, or those in such states ("Stable", "Empty" …) and of such types ("classic", "consumer" …)."""
        return self._thread.run(self._core.list_groups(states=states, types=types))

    def describe_group(self, group: str) -> GroupInfo:
        """A group's state and members, of either protocol."""
        return self._thread.run(self._core.describe_group(group))

    def describe_groups(self, groups: Iterable[str]) -> dict[str, GroupInfo]:
        """The states and members of several groups."""
        return self._thread.run(self._core.describe_groups(groups))

    def remove_members(self, group: str, members: Iterable[str] | None = None, *, reason: str = "") -> None:
        """Send members away, by member id or instance id; all if none is named. Those that still run come back."""
        self._thread.run(self._core.remove_members(group, members, reason=reason))

    def delete_groups(self, groups: Iterable[str]) -> None:
        """Delete groups without members, and their offsets."""
        self._thread.run(self._core.delete_groups(groups))

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """All offsets that a group has committed."""
        return self._thread.run(self._core.group_offsets(group))

    def list_group_offsets(
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
        return self._thread.run(self._core.list_group_offsets(groups, stable=stable, partitions=partitions))

    def group_lag(self, groups: Iterable[str]) -> dict[str, dict[TopicPartition, int]]:
        """How many offsets lie between what each group has committed and the ends of the partitions."""
        return self._thread.run(self._core.group_lag(groups))

    def set_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        """Commit in a group's name; one with active members refuses."""
        self._thread.run(self._core.set_group_offsets(group, offsets))

    def delete_group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget what a group has committed for partitions of topics that it does not read now."""
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
        """The transactional ids of all brokers, or those that pass all filters given; `pattern` must match the whole id."""
        return self._thread.run(
            self._core.list_transactions(
                states=states, producer_ids=producer_ids, longer_than_ms=longer_than_ms, pattern=pattern
            )
        )

    def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionInfo]:
        """What transactional ids are at, and the partitions of their transactions."""
        return self._thread.run(self._core.describe_transactions(transactional_ids))

    def abort_transaction(self, transactional_id: str) -> TransactionInfo:
        """Abort what a transactional id has going on; its producer is fenced. Gives what it was before."""
        return self._thread.run(self._core.abort_transaction(transactional_id))

    def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, ProducerIdAndEpoch]:
        """Shut out the producers of transactional ids, and abort what they have going on. Ids that nobody used are made by it."""
        return self._thread.run(self._core.fence_producers(transactional_ids))

    def describe_producers(self, partitions: Iterable[TopicPartition]) -> Producers:
        """The idempotent and transactional producers that partitions remember."""
        return self._thread.run(self._core.describe_producers(partitions))

    def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition], older_than_ms: int | None = None
    ) -> list[HangingTransaction]:
        """What is open in these partitions, and known to no coordinator; only if nothing was written to it for so long."""
        return self._thread.run(self._core.find_hanging_transactions(partitions, older_than_ms))

    def abort_hanging_transaction(self, hanging: HangingTransaction) -> None:
        """End in its partition what was found to hang."""
        self._thread.run(self._core.abort_hanging_transaction(hanging))
