"""The partitions on this broker, found by topic name and by topic id, and kept equal to the image.

`load` opens what is there at the start, `follow` makes of committed records what they mean here: logs that come, go, or have
other settings. The produce and fetch paths look up here once a partition and touch nothing else of the metadata.

A new partition's log is created when it is first needed, or by `create_logs`, a few a turn: a topic of ten thousand
partitions must not hold up anybody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from ottla.config.topic import TopicConfig
from ottla.controller import records as r
from ottla.controller.image import BROKER_RESOURCE, TOPIC_RESOURCE, Image
from ottla.log.partition_log import PartitionLog
from ottla.model.errors import ErrorCode
from ottla.ports.disk import DiskError
from ottla.replication.leader import Leader
from ottla.wire.acknowledgement import Acknowledge, acknowledgement

if TYPE_CHECKING:
    from ottla.broker.core import Broker

#: Logs that one turn creates in the background.
_CREATE_MAX: Final = 16


class HostedTopic:
    __slots__ = ("_acknowledgements", "leaders", "name", "topic_id")

    def __init__(self, name: str, topic_id: bytes) -> None:
        self.name = name
        self.topic_id = topic_id
        #: By partition number; only those led here.
        self.leaders: dict[int, Leader] = {}
        self._acknowledgements: dict[int, Acknowledge] = {}

    def acknowledgement(self, version: int) -> Acknowledge:
        """How a produce of one batch to this topic is answered in this version of the API."""
        known = self._acknowledgements.get(version)
        if known is None:
            topic = {"name": self.name, "topic_id": self.topic_id}
            known = self._acknowledgements[version] = acknowledgement(version, topic)
        return known


class Hosting:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.by_name: dict[str, HostedTopic] = {}
        #: By the id as a number, which is what a decoded UUID offers cheapest.
        self.by_id: dict[int, HostedTopic] = {}
        #: Partitions whose logs are still to be created.
        self.to_create: deque[Leader] = deque()

    def leaders(self) -> Iterator[Leader]:
        for hosted in self.by_name.values():
            yield from hosted.leaders.values()

    # --- the start --------------------------------------------------------------------------------------------

    def load(self, image: Image, now_ms: int) -> None:
        """Host what the image says, open the logs that are there, and remove what no topic knows any more."""
        broker = self._broker

        def known(topic: str, number: int, topic_id: bytes | None) -> bool:
            there = image.topics.get(topic)
            return (
                there is not None
                and number < len(there.partitions)
                and (topic_id is None or topic_id == there.topic_id)
            )

        for path in broker.directory.stray(known):
            broker.disk.remove_dir(path)
        read = cut = 0
        lowered = False
        for topic in image.topics.values():
            for leader in self._host(topic.name, topic.topic_id, topic.partitions):
                recovered = broker.directory.load(topic.name, leader.number, leader.config, now_ms)
                if recovered is None:
                    continue
                self._adopt(leader, recovered.log)
                read += recovered.scanned_bytes
                known_point = broker.directory.recovery_points.get((topic.name, leader.number), 0)
                lowered = lowered or recovered.log.recovery_point < known_point
                cut += recovered.cut_bytes
                if recovered.damaged:
                    # R12: without another replica what is left is all there is; but nobody shall think it is whole.
                    broker.say(
                        f"{recovered.log.directory}: DAMAGED before its recovery point; records that were acknowledged "
                        f"are missing, the log ends at offset {recovered.log.next_offset}. Restore it from a copy if you have one"
                    )
                elif recovered.cut_bytes:
                    broker.say(
                        f"{recovered.log.directory}: {recovered.cut_bytes} bytes of a torn tail were cut off, "
                        f"the log ends at offset {recovered.log.next_offset}"
                    )
        if lowered:
            # A log that ends before its recovery point grows past it again: what the next start then trusts must be known.
            for path, data in broker.directory.checkpoint_files(broker.open_logs()).items():
                broker.disk.replace_file(path, data)
        if not broker.directory.clean and read:
            broker.say(f"recovered after an unclean stop: {read:,} bytes read again, {cut:,} cut off")

    def _adopt(self, leader: Leader, log: PartitionLog) -> None:
        broker = self._broker
        log.on_failure = broker.go_offline
        leader.adopt(log)
        if not log.unsynced:
            return
        broker.upkeep.written(leader, broker.now_ms)
        if not leader.durable:
            broker.sync(leader, log)
            return
        # What recovery read again must be durable once more before it counts; and it must count before the first client
        # asks, or a consumer that comes back would find the log ending before what it has read.
        for segment in log.unsynced:
            broker.disk.sync(segment.file)
        broker.disk.sync_dir(log.directory)
        broker.disk.sync_dir(broker.directory.path)
        for segment in list(log.unsynced):
            log.synced(segment, segment.next_offset)
        leader.advance()

    # --- following the image ----------------------------------------------------------------------------------

    def follow(self, image: Image, records: Iterable[r.Record]) -> None:
        """These records made the image what it now is: do here what they mean."""
        dropped = False
        for record in records:
            match record:
                case r.Topic():
                    self._add(record.name, record.topic_id)
                case r.Partition():
                    topic = image.topics_by_id.get(record.topic_id)
                    if topic is not None:
                        self._host(topic.name, topic.topic_id, (record,))
                case r.TopicRemoved():
                    self._drop(record.topic_id)
                    dropped = True
                case r.Config(resource_type=resource_type, resource_name=name):
                    if resource_type == TOPIC_RESOURCE:
                        self._configure(name)
                    elif resource_type == BROKER_RESOURCE:
                        self._broker.config = self._broker.resolve_config()
                        for each in self.by_name:
                            self._configure(each)
                case _:
                    pass
        if dropped:
            # A directory that a crash brings back under its old name could be taken for that of a new topic.
            try:
                self._broker.disk.sync_dir(self._broker.directory.path)
            except DiskError as error:
                self._broker.go_offline(str(error))

    def create_logs(self) -> bool:
        """Create the logs of some partitions that have none yet; True if others are left."""
        broker = self._broker
        for _ in range(min(_CREATE_MAX, len(self.to_create))):
            leader = self.to_create.popleft()
            if leader.gone or leader.opened or broker.offline:
                continue
            try:
                leader.log  # noqa: B018  (opens it)
            except DiskError as error:
                broker.say(f"cannot create the log of {leader.topic}-{leader.number}: {error}")
                if not error.full:
                    broker.go_offline(str(error))
        return bool(self.to_create)

    def _add(self, name: str, topic_id: bytes) -> HostedTopic:
        hosted = HostedTopic(name, topic_id)
        self.by_name[name] = self.by_id[int.from_bytes(topic_id, "big")] = hosted
        return hosted

    def _host(self, name: str, topic_id: bytes, partitions: Iterable[r.Partition]) -> list[Leader]:
        """Take on the partitions that are led here and new."""
        hosted = self.by_name.get(name) or self._add(name, topic_id)
        config = self._topic_config(name)
        new = [
            Leader(name, partition.partition, partition.leader_epoch, config, self._create)
            for partition in partitions
            if partition.leader == self._broker.config.node_id and partition.partition not in hosted.leaders
        ]
        hosted.leaders.update((leader.number, leader) for leader in new)
        self.to_create.extend(new)
        return new

    def _create(self, leader: Leader) -> PartitionLog:
        broker = self._broker
        topic_id = self.by_name[leader.topic].topic_id
        log = broker.directory.create(leader.topic, leader.number, topic_id, leader.config, broker.now_ms)
        log.on_failure = broker.go_offline
        log.failed = broker.offline is not None
        return log

    def _topic_config(self, name: str) -> TopicConfig:
        return TopicConfig.resolve(self._broker.image.topic_config(name), self._broker.config)

    def _configure(self, name: str) -> None:
        hosted = self.by_name.get(name)
        if hosted is not None:
            config = self._topic_config(name)
            for leader in hosted.leaders.values():
                leader.configure(config)
                if leader.opened:
                    self._broker.advance(leader)

    def _drop(self, topic_id: bytes) -> None:
        hosted = self.by_id.pop(int.from_bytes(topic_id, "big"), None)
        if hosted is None:
            return
        if self.by_name.get(hosted.name) is hosted:
            del self.by_name[hosted.name]
        for leader in hosted.leaders.values():
            leader.gone = True
            while leader.waiting:
                _offset, produce, row = leader.waiting.popleft()
                produce.failed(row, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            self._broker.moved(leader)
            if leader.opened:
                self._broker.upkeep.delete_partition(leader)
