"""The blocking face of the admin client, `ottla.Admin`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Unpack

from ottla.client.admin.core import (
    AsyncAdmin,
    ClusterInfo,
    ConfigEntry,
    Election,
    GroupInfo,
    GroupListing,
    HangingTransaction,
    NewTopic,
    Producers,
    Reassignment,
    Resource,
    TransactionInfo,
    TransactionListing,
)
from ottla.client.loop_thread import Blocking
from ottla.client.metadata import TopicInfo, TopicPartition
from ottla.client.offsets import OffsetAndTime
from ottla.client.settings import ClientSettings


class Admin(Blocking):
    """Administers a cluster. Every call raises `KafkaError` for what the cluster refuses."""

    _core: AsyncAdmin

    def __init__(self, bootstrap_servers: str | Sequence[str], **settings: Unpack[ClientSettings]) -> None:
        self._core = self._open("ottla-admin", lambda: AsyncAdmin(bootstrap_servers, **settings))

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> None:
        """Create a topic; -1 leaves a number to the broker's defaults."""
        self._thread.run(
            self._core.create_topic(
                name, partitions, replication_factor, configs, validate_only=validate_only
            )
        )

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> None:
        self._thread.run(self._core.create_topics(topics, validate_only=validate_only))

    def delete_topics(self, names: Iterable[str]) -> None:
        self._thread.run(self._core.delete_topics(names))

    def create_partitions(self, topic: str, count: int, *, validate_only: bool = False) -> None:
        """Grow a topic to `count` partitions."""
        self._thread.run(self._core.create_partitions(topic, count, validate_only=validate_only))

    def list_topics(self, *, internal: bool = False) -> dict[str, TopicInfo]:
        return self._thread.run(self._core.list_topics(internal=internal))

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        return self._thread.run(self._core.describe_topics(names))

    def list_offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTime]:
        return self._thread.run(self._core.list_offsets(times))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records below an offset of each partition (-1: all); gives the new log starts."""
        return self._thread.run(self._core.delete_records(before))

    def describe_configs(
        self,
        resource: Resource,
        names: Iterable[str] | None = None,
        *,
        documentation: bool = False,
        synonyms: bool = False,
    ) -> dict[str, ConfigEntry]:
        return self._thread.run(
            self._core.describe_configs(resource, names, documentation=documentation, synonyms=synonyms)
        )

    def alter_configs(
        self, resource: Resource, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Set configs, or unset those whose value is None, and leave the others."""
        self._thread.run(self._core.alter_configs(resource, changes, validate_only=validate_only))

    def describe_cluster(self, *, include_fenced: bool = False) -> ClusterInfo:
        return self._thread.run(self._core.describe_cluster(include_fenced=include_fenced))

    def unregister_broker(self, broker_id: int) -> None:
        """Forget a broker that has stopped for good."""
        self._thread.run(self._core.unregister_broker(broker_id))

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

    def list_groups(self) -> list[GroupListing]:
        """The consumer groups of all brokers."""
        return self._thread.run(self._core.list_groups())

    def describe_group(self, group: str) -> GroupInfo:
        """A group's state and members."""
        return self._thread.run(self._core.describe_group(group))

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """All offsets that a group has committed."""
        return self._thread.run(self._core.group_offsets(group))

    def set_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit in a group's name; one with active members refuses."""
        self._thread.run(self._core.set_group_offsets(group, offsets))

    def delete_groups(self, groups: Iterable[str]) -> None:
        """Delete groups without members, and their offsets."""
        self._thread.run(self._core.delete_groups(groups))

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
