"""The group coordinator: the partitions of `__consumer_offsets` that this broker leads, each with a shard
(`groups/shard.py`).

It gives the shards what they need of the broker. It also handles deleted topics and expires offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ottla.broker.coordinators.coordinator import Coordinator
from ottla.broker.coordinators.coordinator_partition import CoordinatorPartition
from ottla.broker.coordinators.internal_appends import (
    append_as_leader,
    append_marker_as_leader,
    batch_bytes_max,
)
from ottla.groups.budget import Budget, Usage
from ottla.groups.classic_group import ClassicGroup
from ottla.groups.formats import OFFSET_COMMIT, Encoded, decode, encode
from ottla.groups.formats import Record as GroupRecord
from ottla.groups.host import TopicView
from ottla.groups.shard import Commit, Shard
from ottla.log.validation import too_large
from ottla.metadata.image import GROUP_RESOURCE, NO_CONFIG
from ottla.metadata.records import BrokerRegistration as BrokerRecord
from ottla.metadata.records import NewPartitions, Topic, TopicRemoved
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.steps import Steps
from ottla.model.timer_wheel import Periodic
from ottla.ports.coordination import CommitCallback, Reply, Response
from ottla.records.layout import Malformed
from ottla.records.record import Record, encode_batch

if TYPE_CHECKING:
    from ottla.broker.coordinators.host import CoordinatorHost
    from ottla.log.markers import Marker
    from ottla.metadata.image import Image
    from ottla.replication.replica import Replica

OFFSETS_TOPIC: Final = "__consumer_offsets"
#: The first bytes of the key of a committed offset.
_OFFSET_KIND: Final = OFFSET_COMMIT.to_bytes(2, "big")
_MANY_RECORDS: Final = 100
_NO_RACKS: Final[frozenset[str]] = frozenset()


class GroupPartition(CoordinatorPartition):
    shard: Shard

    def __init__(self, groups: GroupCoordinator, broker: CoordinatorHost, replica: Replica) -> None:
        super().__init__(broker, OFFSETS_TOPIC, replica, groups.reload)
        self._groups = groups
        #: By producer id: TxnOffsetCommit requests that are processed in slices. The end of the transaction
        #: stops them.
        self.under_way: dict[int, set[Any]] = {}
        self.shard = Shard(replica.number, self)
        #: Groups to rebalance after the load.
        self._changed: list[ClassicGroup] = []

    def encode(self, record: GroupRecord) -> tuple[bytes, bytes | None]:
        return encode(record)

    def _encoded(self, records: Sequence[GroupRecord | Encoded]) -> list[tuple[bytes, bytes | None]]:
        if len(records) < _MANY_RECORDS:
            return super()._encoded(records)
        # Encoded records were checked when they were encoded.
        others = iter(super()._encoded([record for record in records if type(record) is not Encoded]))
        return [record if type(record) is Encoded else next(others) for record in records]

    def decode(self, record: Record) -> GroupRecord | None:
        return decode(record.key, record.value)

    def replay(self, records: Iterable[Record]) -> None:
        """Replay a slice of the log.

        Only the last offset of each key is replayed, unless it is malformed: offsets do not depend on other
        kinds of records. `coordinator_loader.py` ends a slice at transactional batches and markers.
        """
        offsets: list[Record] = []
        for record in records:
            if record.key is not None and record.key[:2] == _OFFSET_KIND:
                offsets.append(record)
            else:
                self.replay_one(record)
        latest = {record.key: record for record in offsets}
        malformed = [record for record in latest.values() if not self.replay_one(record)]
        if malformed:
            for record in offsets:
                self.replay_one(record)

    def replay_transactional(self, producer_id: int, records: Iterable[Record]) -> None:
        known: list[GroupRecord] = []
        for record in records:
            try:
                decoded = self.decode(record)
            except Malformed as damage:
                self._broker.say_once(
                    f"{self.name}: skipping the malformed record at offset {record.offset}: {damage}"
                )
                continue
            if decoded is not None:
                known.append(decoded)
        self.shard.replay_pending(producer_id, known)

    def replay_marker(self, producer_id: int, commit: bool) -> None:
        self.shard.replay_end_marker(producer_id, commit)

    # --- transactions ---------------------------------------------------------------------------------------

    def commit_in_transaction(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        commits: Iterable[Commit],
        answer: tuple[Reply, Response],
    ) -> None:
        """Write offsets that are pending until their transaction commits. Raises Refusal if nothing was
        written."""
        records = self.shard.offset_records(group_id, commits, -1)
        self.append_in_transaction(producer_id, producer_epoch, records, self.rows(records), answer)

    def rows(self, records: Iterable[GroupRecord]) -> list[Record]:
        """The log records of offset commits. Raises Refusal if one cannot be written."""
        wall_ms = self.wall_ms
        try:
            return [Record(0, wall_ms, *self.encode(record)) for record in records]
        except Malformed as reason:
            raise Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, str(reason)) from reason

    def append_in_transaction(
        self, producer_id: int, producer_epoch: int, records: Sequence[GroupRecord], rows: list[Record],
        answer: tuple[Reply, Response],
    ) -> None:  # fmt: skip
        """Like `commit_in_transaction`, for encoded records."""
        self.write_pending()
        self.replica.log.producers.check_epoch(producer_id, producer_epoch)
        size = sum(len(row.key or b"") + len(row.value or b"") for row in rows)
        if size > batch_bytes_max(self.replica):
            raise too_large(size, self.replica.config)
        batch = encode_batch(rows, producer_id=producer_id, producer_epoch=producer_epoch, transactional=True)
        self.append_in_order(lambda done: append_as_leader(self._broker, self.replica, batch, done), [answer])
        self.shard.replay_pending(producer_id, records)

    def end_transaction(
        self, producer_id: int, producer_epoch: int, marker: Marker, done: Callable[[ErrorCode], None]
    ) -> None:
        """Write a marker, which commits or drops the pending offsets of the transaction.

        Raises Refusal if nothing was written.
        """
        self.under_way.pop(producer_id, None)
        self.write_pending()
        self.append_in_order(
            lambda committed: append_marker_as_leader(
                self._broker, self.replica, producer_id, producer_epoch, marker, committed
            ),
            [(CommitCallback(done), {})],
        )
        self.shard.replay_end_marker(producer_id, marker.commit)

    # --- the host of the shard ------------------------------------------------------------------------------

    @property
    def budget(self) -> Budget:
        return self._groups.budget

    def finish_load(self) -> Steps[None]:
        self._changed = yield from self.shard.resume_in_steps(self._broker.now_ms)
        self._groups.budget.add_loaded((yield from self.shard.usage_in_steps()))

    def start_shard(self) -> None:
        changed, self._changed = self._changed, []
        for group in changed:
            self.shard.classic.rebalance.prepare(group, self._broker.now_ms)

    def compute(self, steps: Steps[Any], done: Callable[[Any, Exception | None], None]) -> None:
        self._broker.slices.begin(steps, done)

    def unique(self) -> str:
        return str(UUID(bytes=self._broker.entropy.id_bytes()))

    def topic_exists(self, topic: str) -> bool:
        return topic in self._broker.image.topics

    @property
    def topics_version(self) -> int:
        return self._groups.topics_version

    def topic_names(self) -> Collection[str]:
        return self._broker.image.topics.keys()

    def topic(self, name: str) -> TopicView | None:
        topic = self._broker.image.topics.get(name)
        if topic is None:
            return None
        racks = {node_id: each.rack for node_id, each in self._broker.image.brokers.items() if each.rack}
        if not racks:
            return TopicView(name, topic.topic_id, (_NO_RACKS,) * len(topic.partitions))
        return TopicView(
            name,
            topic.topic_id,
            tuple(
                frozenset(racks[node_id] for node_id in partition.replicas if node_id in racks)
                for partition in topic.partitions
            ),
        )

    def topic_name(self, topic_id: bytes) -> str | None:
        topic = self._broker.image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def group_settings(self, group_id: str) -> Mapping[str, str]:
        return self._broker.image.configs.get((GROUP_RESOURCE, group_id), NO_CONFIG)


class GroupCoordinator(Coordinator[GroupPartition]):
    def __init__(self, broker: CoordinatorHost) -> None:
        super().__init__(broker, OFFSETS_TOPIC)
        #: Grows with every change of topics, partitions and racks: groups then check their topics again.
        self.topics_version = 0
        self._is_expiring = False
        self.budget = Budget(self._usage, self._count)

    def start(self, now_ms: int) -> None:
        timers = self._broker.timers

        def interval_ms() -> int:
            return self._broker.config.offsets_retention_check_interval_ms

        def begin(now_ms: int) -> None:
            if not self._is_expiring:
                self._is_expiring = True
                self._broker.slices.begin(self._expire_offsets(), self._expired)

        timers.add(Periodic(timers, interval_ms, begin), now_ms + interval_ms())

    def new_partition(self, replica: Replica) -> GroupPartition:
        return GroupPartition(self, self._broker, replica)

    def new_topic(self) -> dict[str, Any]:
        config = self._broker.config
        return {
            "num_partitions": config.offsets_topic_num_partitions,
            # A single node never gets another replica.
            "replication_factor": config.offsets_topic_replication_factor if self._broker.clustered else 1,
            "configs": [
                {"name": "cleanup.policy", "value": "compact"},
                {"name": "compression.type", "value": "producer"},
                {"name": "segment.bytes", "value": str(config.offsets_topic_segment_bytes)},
            ],
        }

    # --- requests -------------------------------------------------------------------------------------------

    def shard(self, group_id: str) -> Shard:
        """The shard of a group. Raises Refusal with the error for the client."""
        return self.partition_for(group_id).shard

    def writable_shard(self, group_id: str) -> Shard:
        """Like `shard`, for a request that writes."""
        return self.writable_partition(group_id).shard

    @property
    def shards(self) -> Iterable[Shard]:
        return [partition.shard for partition in self.partitions.values() if partition.is_loaded]

    def _count(self, done: Callable[[Usage], None]) -> None:
        """Count the usage of all groups in slices."""

        def steps() -> Steps[Usage]:
            usage = Usage()
            for shard in self.shards:
                usage = usage.plus((yield from shard.usage_in_steps()))
            return usage

        def counted(usage: Usage | None, error: Exception | None) -> None:
            # The count in slices failed: count at once.
            done(self._usage() if usage is None else usage)
            self._contain("counting the groups", None, error)

        self._broker.slices.begin(steps(), counted)

    def _usage(self) -> Usage:
        usage = Usage()
        for shard in self.shards:
            usage = usage.plus(shard.usage)
        return usage

    # --- changes of the metadata ----------------------------------------------------------------------------

    def follow(self, before: Image, records: Iterable[Any]) -> None:
        """Apply new metadata records: note changed topics, and remove the offsets of deleted topics."""
        records = list(records)
        if any(isinstance(record, (Topic, TopicRemoved, NewPartitions, BrokerRecord)) for record in records):
            self.topics_version += 1
        gone = {
            topic.name
            for record in records
            if isinstance(record, TopicRemoved)
            and (topic := before.topics_by_id.get(record.topic_id)) is not None
        }
        if gone:
            for partition in self.writable_partitions:
                what = f"the topics deleted for {partition.name}"
                self._broker.slices.begin(
                    partition.shard.on_topics_deleted(gone), partial(self._contain, what)
                )

    def _contain(self, what: str, _result: None, error: Exception | None) -> None:
        if error is not None:
            self._broker.isolation.contain(what, error)

    def _expire_offsets(self) -> Steps[None]:
        for partition in list(self.partitions.values()):
            if not partition.is_writable:
                continue
            try:
                yield from partition.shard.remove_stray_offsets()
                yield from partition.shard.expire_offsets(self._broker.wall_ms)
            except Exception as error:
                # The other partitions continue.
                self._broker.isolation.contain(f"expiring offsets of {partition.name}", error)

    def _expired(self, _result: None, error: Exception | None) -> None:
        self._is_expiring = False
        self._contain("expiring offsets", None, error)
