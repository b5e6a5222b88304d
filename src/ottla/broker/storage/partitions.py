"""The partitions on this broker, found by topic name and by topic id, and kept equal to the metadata image.

`load` opens the logs at the start (`log_loader.py`). `apply_records` follows the image: it adds replicas,
removes them and changes their settings. The produce and fetch paths look up a partition here once and read no
other metadata.

A topic of ten thousand partitions must not delay other clients. So its replicas are created in slices
(`create_replicas`), and its logs when they are first needed, or a few per turn (`log_opener.py`).
CreateTopics is answered when all replicas exist.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.storage.log_loader import LogLoader
from ottla.broker.storage.log_opener import LogOpener
from ottla.config.not_honoured import DYNAMIC_WITHOUT_EFFECT, no_effect
from ottla.config.topic import TopicConfig
from ottla.log.partition_log import PartitionLog
from ottla.metadata import records as r
from ottla.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, Image, TopicImage
from ottla.model.errors import ErrorCode
from ottla.model.names import INTERNAL_TOPICS
from ottla.replication.replica import Replica
from ottla.wire.acknowledgement import Acknowledge, acknowledgement

if TYPE_CHECKING:
    from ottla.broker.storage.host import PartitionsHost
    from ottla.broker.storage.log_directory import LogDirectory

#: Replicas created in one slice: about 4 ms.
_NEW_MAX: Final = 500


class LocalTopic:
    """A topic, with those of its replicas that are on this broker."""

    __slots__ = ("_acknowledgements", "is_internal", "name", "replicas", "topic_id")

    def __init__(self, name: str, topic_id: bytes) -> None:
        self.name = name
        self.topic_id = topic_id
        #: Only the broker itself writes to an internal topic.
        self.is_internal = name in INTERNAL_TOPICS
        #: By partition number.
        self.replicas: dict[int, Replica] = {}
        self._acknowledgements: dict[int, Acknowledge] = {}

    def acknowledgement(self, version: int) -> Acknowledge:
        """The encoder of the Produce response to a request with one batch for this topic."""
        known = self._acknowledgements.get(version)
        if known is None:
            topic = {"name": self.name, "topic_id": self.topic_id}
            known = self._acknowledgements[version] = acknowledgement(version, topic)
        return known


class LocalPartitions:
    def __init__(self, host: PartitionsHost) -> None:
        self._host = host
        self.by_name: dict[str, LocalTopic] = {}
        #: By the topic id as an integer: the cheapest form that a decoded UUID offers.
        self.by_id: dict[int, LocalTopic] = {}
        #: New partitions that have no replica here yet, by topic.
        self.new: deque[tuple[LocalTopic, list[int]]] = deque()
        #: Called when `new` is empty again.
        self._when_replicas_created: list[Callable[[], None]] = []
        #: Replicas whose logs `create_logs` will create or open.
        self.to_create: deque[Replica] = deque()
        #: Logs that were closed cleanly and are not opened yet, and their directories.
        self.unopened: dict[Replica, LogDirectory] = {}
        #: R12: a log lacks records that were durable, and the metadata counts on this replica.
        self.is_damaged = False
        #: At least one partition is offline.
        self.has_offline = False
        self._opener = LogOpener(host, self)

    def of_topic(self, topic: Any, version: int) -> LocalTopic | None:
        """The topic that a row of a Produce request names, by id or by name."""
        if version >= 13:
            return self.by_id.get(topic.topic_id.int) if topic.topic_id else None
        return self.by_name.get(topic.name)

    def replicas(self) -> Iterator[Replica]:
        for local_topic in self.by_name.values():
            yield from local_topic.replicas.values()

    def offline_partitions(self, name: str) -> set[int]:
        """The partitions of a topic that are offline on this broker."""
        local_topic = self.by_name.get(name)
        if local_topic is None or not self.has_offline:
            return set()
        return {number for number, replica in local_topic.replicas.items() if replica.offline is not None}

    def topic_config(self, name: str) -> TopicConfig:
        return TopicConfig.resolve(self._host.image.topic_config(name), self._host.config)

    # --- logs -----------------------------------------------------------------------------------------------

    def load(self, image: Image, removed: Collection[bytes | None], now_ms: int) -> None:
        """At the start: add the replicas of the image, and open or recover their logs.

        `removed`: the ids of deleted topics, whose logs are deleted.
        """
        LogLoader(self._host, self, self._opener).load(image, removed, now_ms)

    def create_logs(self) -> bool:
        """Create or open the logs of a few partitions; True if others are left."""
        return self._opener.create_logs()

    def attach(self, replica: Replica, directory: LogDirectory, log: PartitionLog) -> None:
        """Count a log in its directory, and report its write errors."""
        self._opener.attach(replica, directory, log)

    # --- following the image --------------------------------------------------------------------------------

    def apply_records(self, image: Image, records: Iterable[r.Record]) -> None:
        """These records were committed and are in the image: apply them to the replicas on this broker."""
        #: Each partition once, with its state in the image: several records may name it.
        changed: dict[tuple[bytes, int], None] = {}
        #: The topics whose settings changed.
        configured: dict[str, None] = {}
        contain = self._host.isolation.contain
        for record in records:
            try:
                self._apply(record, changed, configured)
            except Exception as error:
                contain(f"the metadata record {type(record).__name__}", error)
        # Once per topic, however many of its settings changed.
        for name in configured:
            self._host.isolation.run("the settings of a topic", self._configure, name)
        self._find_new(changed)
        for topic_id, number in changed:
            topic, partition = image.topics_by_id.get(topic_id), image.partition(topic_id, number)
            if topic is not None and partition is not None:
                try:
                    self._update(topic, partition)
                except Exception as error:
                    contain(f"a change of {topic.name}-{number}", error)

    def _apply(
        self, record: r.Record, changed: dict[tuple[bytes, int], None], configured: dict[str, None]
    ) -> None:
        """Apply one record.

        Adds its partitions to `changed`, and topics with new settings to `configured`.
        """
        match record:
            case r.Topic():
                if self.by_id.get(int.from_bytes(record.topic_id, "big")) is None:
                    self._add_topic(record.name, record.topic_id)
            case r.Partition():
                changed[record.topic_id, record.partition] = None
            case r.NewPartitions():
                for at in range(len(record.replicas)):
                    changed[record.topic_id, record.first + at] = None
            case r.TopicRemoved():
                self._remove_topic(record.topic_id)
            case r.Config(resource_type=resource_type, resource_name=name, name=setting, value=value):
                if resource_type == TOPIC_RESOURCE:
                    configured[name] = None
                elif resource_type == BROKER_RESOURCE:
                    self._host.config = self._host.resolve_config()
                    is_mine = name in ("", str(self._host.config.node_id))
                    if is_mine and value is not None and setting in DYNAMIC_WITHOUT_EFFECT:
                        self._host.say_once(no_effect(setting))
                    configured.update(dict.fromkeys(self.by_name))
            case _:
                pass

    def _find_new(self, changed: dict[tuple[bytes, int], None]) -> None:
        """Move new partitions from `changed` to `new`, and create the first of their replicas."""
        found: dict[LocalTopic, list[int]] = {}
        for topic_id, number in changed:
            local_topic = self.by_id.get(int.from_bytes(topic_id, "big"))
            if local_topic is not None and number not in local_topic.replicas:
                found.setdefault(local_topic, []).append(number)
        if not found:
            return
        for local_topic, numbers in found.items():
            for number in numbers:
                del changed[local_topic.topic_id, number]
        is_under_way = bool(self.new)
        self.new.extend(found.items())
        if not is_under_way:
            self.create_replicas()

    def create_replicas(self) -> None:
        """Create the replicas of one slice of new partitions; the rest wait for the next turn."""
        host, left = self._host, _NEW_MAX
        while self.new and left > 0:
            local_topic, numbers = self.new[0]
            topic = host.image.topics_by_id.get(local_topic.topic_id)
            if topic is None or self.by_name.get(local_topic.name) is not local_topic:
                # The topic was deleted meanwhile.
                self.new.popleft()
                continue
            some = numbers[:left]
            left -= len(some)
            del numbers[: len(some)]
            if not numbers:
                self.new.popleft()
            partitions = [topic.partitions[number] for number in some if number < len(topic.partitions)]
            try:
                self.add_replicas(topic.name, topic.topic_id, partitions)
            except Exception as error:
                host.isolation.contain(f"new partitions of {topic.name}", error)
                for partition in partitions:
                    host.isolation.run(
                        f"the new partition {topic.name}-{partition.partition}",
                        self._update,
                        topic,
                        partition,
                    )
        if not self.new:
            waiting, self._when_replicas_created = self._when_replicas_created, []
            for action in waiting:
                host.isolation.run("what waits for new partitions", action)

    def when_replicas_created(self, action: Callable[[], None]) -> None:
        """Call this when all partitions of the image have replicas: at once, unless a large topic is new."""
        if self.new:
            self._when_replicas_created.append(action)
        else:
            action()

    def assign_roles(self, image: Image) -> None:
        """This broker was unfenced, or its registration ended: every replica gets its role again."""
        for local_topic in self.by_name.values():
            topic = image.topics_by_id.get(local_topic.topic_id)
            if topic is not None:
                for number, replica in list(local_topic.replicas.items()):
                    self._host.isolation.run(
                        f"the role of {local_topic.name}-{number}",
                        self._host.replica_roles.assign,
                        replica,
                        local_topic.topic_id,
                        topic.partitions[number],
                    )

    def _update(self, topic: TopicImage, partition: r.Partition) -> None:
        """Make one replica equal to its partition in the image."""
        local_topic = self.by_name.get(topic.name)
        replica = local_topic.replicas.get(partition.partition) if local_topic is not None else None
        if local_topic is None or replica is None:
            self.add_replicas(topic.name, topic.topic_id, (partition,))
        elif self._is_here(partition):
            self._host.replica_roles.assign(replica, topic.topic_id, partition)
        else:
            # Reassigned to other brokers.
            del local_topic.replicas[partition.partition]
            self._remove_replica(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _is_here(self, partition: r.Partition) -> bool:
        node_id = self._host.config.node_id
        if self._host.clustered:
            return node_id in partition.replicas
        return partition.leader == node_id

    def _add_topic(self, name: str, topic_id: bytes) -> LocalTopic:
        local_topic = LocalTopic(name, topic_id)
        self.by_name[name] = self.by_id[int.from_bytes(topic_id, "big")] = local_topic
        return local_topic

    def add_replicas(self, name: str, topic_id: bytes, partitions: Iterable[r.Partition]) -> list[Replica]:
        """Create the missing replicas of the partitions that are assigned to this broker; returns them."""
        local_topic = self.by_name.get(name) or self._add_topic(name, topic_id)
        config = self.topic_config(name)
        replicas, opener, assign = local_topic.replicas, self._opener.open, self._host.replica_roles.assign
        new = []
        for partition in partitions:
            number = partition.partition
            if number not in replicas and self._is_here(partition):
                replica = Replica(name, number, partition.leader_epoch, config, opener)
                replicas[number] = replica
                new.append((replica, partition))
        for replica, partition in new:
            assign(replica, topic_id, partition)
        added = [replica for replica, _partition in new]
        self.to_create.extend(added)
        return added

    def _configure(self, name: str) -> None:
        local_topic = self.by_name.get(name)
        if local_topic is not None:
            config = self.topic_config(name)
            for replica in local_topic.replicas.values():
                replica.configure(config)
                leading = replica.leading
                if leading is not None:
                    leading.isr_min = min(config.min_insync_replicas, len(leading.replicas))
                if replica.opened:
                    self._host.advance(replica)

    def _remove_topic(self, topic_id: bytes) -> None:
        local_topic = self.by_id.pop(int.from_bytes(topic_id, "big"), None)
        if local_topic is None:
            return
        if self.by_name.get(local_topic.name) is local_topic:
            del self.by_name[local_topic.name]
        for replica in local_topic.replicas.values():
            self._remove_replica(replica, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _remove_replica(self, replica: Replica, code: ErrorCode) -> None:
        """A replica does not belong to this broker any more: delete its log.

        Waiting requests get this error.
        """
        host = self._host
        replica.gone = True
        host.fail_waiting(replica, code)
        host.replica_roles.rest(replica, replica.leader_epoch)
        host.role_changed(replica)
        host.log_dir_moves.cancel(replica)
        host.directories.chosen.pop((replica.topic, replica.number), None)
        directory = self.unopened.pop(replica, None)
        if replica.opened:
            directory = host.directories.of(replica.log)
        if directory is not None:
            host.log_maintenance.delete_partition(replica, directory)
