"""The partitions on this broker, found by topic name and by topic id, and kept equal to the image.

`load` opens what is there at the start, `follow` makes of committed records what they mean here: logs that come, go, or have
other settings. The produce and fetch paths look up here once a partition and touch nothing else of the metadata.

A topic of ten thousand partitions must not hold up other clients. Its partitions get their replicas in slices
(`take_on`), and a replica's log is created when it is first needed, or by `create_logs`, a few per turn. The request that
created the topic is answered when all replicas are there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.storage.log_dir_moves import settle_futures
from ottla.config.not_honoured import DYNAMIC_WITHOUT_EFFECT, no_effect
from ottla.config.topic import TopicConfig
from ottla.log.names import partition_dir
from ottla.log.partition_log import PartitionLog
from ottla.log.recovery import Recovered
from ottla.metadata import records as r
from ottla.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, Image, TopicImage
from ottla.model.errors import ErrorCode
from ottla.model.limits import FILE_NAME_BYTES_MAX
from ottla.model.names import INTERNAL_TOPICS
from ottla.model.timer_wheel import Later
from ottla.ports.disk import DiskError
from ottla.replication.replica import Replica
from ottla.wire.acknowledgement import Acknowledge, acknowledgement

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.storage.log_directory import LogDirectory

#: New partitions that get their replicas in one go: about 4 ms.
_NEW_MAX: Final = 500
#: Logs that one turn creates in the background.
_CREATE_MAX: Final = 4
#: What opening or creating a log costs (see `model/steps.py`).
_OPEN_COST: Final = 100
#: After this long a sync is tried again whose directory could not be opened.
_AGAIN_MS: Final = 2000


class LocalTopic:
    __slots__ = ("_acknowledgements", "is_internal", "name", "replicas", "topic_id")

    def __init__(self, name: str, topic_id: bytes) -> None:
        self.name = name
        self.topic_id = topic_id
        #: Whether only the broker itself writes to it.
        self.is_internal = name in INTERNAL_TOPICS
        #: By partition number; only those that this broker has.
        self.replicas: dict[int, Replica] = {}
        self._acknowledgements: dict[int, Acknowledge] = {}

    def acknowledgement(self, version: int) -> Acknowledge:
        """How a produce of one batch to this topic is answered in this version of the API."""
        known = self._acknowledgements.get(version)
        if known is None:
            topic = {"name": self.name, "topic_id": self.topic_id}
            known = self._acknowledgements[version] = acknowledgement(version, topic)
        return known


class LocalPartitions:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.by_name: dict[str, LocalTopic] = {}
        #: By the id as a number, which is what a decoded UUID offers cheapest.
        self.by_id: dict[int, LocalTopic] = {}
        #: New partitions that have no replica here yet, by topic.
        self.new: deque[tuple[LocalTopic, list[int]]] = deque()
        #: Called when `new` is empty again.
        self._when_taken_on: list[Callable[[], None]] = []
        #: Partitions whose logs are still to be created, or to be opened.
        self.to_create: deque[Replica] = deque()
        #: Logs that a clean stop left whole and nobody has needed yet, and where they are.
        self.asleep: dict[Replica, LogDirectory] = {}
        #: Whether a log was found to lack something that had been durable (R12).
        self.is_damaged = False
        #: Whether any partition is offline.
        self.has_lost_some = False

    def of_topic(self, topic: Any, version: int) -> LocalTopic | None:
        """The topic that a row of a Produce request names, by its id or its name."""
        if version >= 13:
            return self.by_id.get(topic.topic_id.int) if topic.topic_id else None
        return self.by_name.get(topic.name)

    def replicas(self) -> Iterator[Replica]:
        for hosted in self.by_name.values():
            yield from hosted.replicas.values()

    def offline_partitions(self, name: str) -> set[int]:
        """Those of a topic whose logs cannot be had."""
        hosted = self.by_name.get(name)
        if hosted is None or not self.has_lost_some:
            return set()
        return {number for number, replica in hosted.replicas.items() if replica.offline is not None}

    # --- the start --------------------------------------------------------------------------------------------

    def load(self, image: Image, removed: Collection[bytes | None], now_ms: int) -> None:
        """Host what the image says, open the logs that are there, and remove those of topics that were removed."""
        broker = self._broker

        def known(topic: str, number: int, topic_id: bytes | None) -> bool:
            there = image.topics.get(topic)
            return (
                there is not None
                and number < len(there.partitions)
                and (topic_id is None or topic_id == there.topic_id)
            )

        homes, surveys = broker.directories.survey(known, {*removed, *image.removed})
        moves = settle_futures(broker, image, homes, list(surveys.values()))
        broker.directories.remove_strays(surveys.values())
        broker.directories.set_aside(surveys, broker.entropy.id_bytes)
        lowered: set[LogDirectory] = set()
        read: dict[LogDirectory, int] = {}
        cut: dict[LogDirectory, int] = {}
        unsure: dict[LogDirectory, list[Replica]] = {}
        for topic in image.topics.values():
            for replica in self._host(topic.name, topic.topic_id, topic.partitions):
                home = homes.get((topic.name, replica.number))
                if home is not None:
                    replica.restore(home.high_watermarks.get((topic.name, replica.number), 0))
                if home is not None and home.clean and home.offline is None:
                    # Opened when first needed, or after the first clients have been served.
                    self.asleep[replica] = home
                    home.expect(topic.name, replica.number)
                elif home is not None and home.offline is None:
                    try:
                        recovered = home.load(topic.name, replica.number, replica.config, now_ms)
                        if recovered is None:
                            # Of a log that was being made when the last run ended: it stays where it is.
                            broker.directories.chosen[topic.name, replica.number] = home
                            self._begins_anew(replica)
                            continue
                        self._adopt(replica, home, recovered, unsure)
                    except DiskError as error:
                        self._load_failed(replica, home, error)
                    else:
                        read[home] = read.get(home, 0) + recovered.scanned_bytes
                        cut[home] = cut.get(home, 0) + recovered.cut_bytes
                        known_point = home.recovery_points.get((topic.name, replica.number), 0)
                        if recovered.log.recovery_point < known_point:
                            lowered.add(home)
                elif home is None and not broker.directories.offline:
                    self._begins_anew(replica)
        for home, logs in unsure.items():
            self._make_sure(home, logs)
        self._remove_reassigned(homes)
        if broker.directories.offline:
            self._lose_unfound()
        broker.directories.check_any_left()
        for home in lowered:
            self._write_lowered(home)
        again = sum(size for home, size in read.items() if not home.clean)
        if again:
            cut_bytes = sum(size for home, size in cut.items() if not home.clean)
            broker.say(f"recovered after an unclean stop: {again:,} bytes read again, {cut_bytes:,} cut off")
        for (name, number), directory in moves.items():
            replica = self.by_name[name].replicas[number]
            if (replica.opened or replica in self.asleep) and directory.offline is None:
                with suppress(DiskError):
                    replica.log  # noqa: B018  (opens it)
                    broker.log_dir_moves.begin(replica, directory)

    def _load_failed(self, replica: Replica, home: LogDirectory, error: DiskError) -> None:
        """A log could not be opened at the start. Short of descriptors or memory, the broker does not start: see `CALL_SITES`."""
        if error.short:
            raise error
        if error.broken or error.full:
            self._broker.go_offline(home, str(error))
        else:
            home.expect(replica.topic, replica.number)
            self._broker.lose_one(replica, home, str(error))

    def _remove_reassigned(self, homes: Mapping[tuple[str, int], LogDirectory]) -> None:
        """Logs of partitions that were given to other brokers while this one was away."""
        for (name, number), home in homes.items():
            if number not in self.by_name[name].replicas and home.offline is None:
                self._broker.log_maintenance.delete_log(home, name, number, self._topic_config(name))

    def _begins_anew(self, replica: Replica) -> None:
        """There is no log. If there was one, nobody shall think that it was empty."""
        point = self._broker.directories.recovery_point(replica.topic, replica.number)
        if point and self._is_relied_on(replica):
            self.is_damaged = True
            self._broker.say(
                f"the log of {replica.topic}-{replica.number} is gone: it reached at least offset {point}, and begins anew "
                "at 0. Stop the broker and restore it from a copy if you have one"
            )

    def _is_relied_on(self, replica: Replica) -> bool:
        """Whether the metadata takes this replica for whole. Any other gets from its leader what it lacks."""
        broker = self._broker
        if not broker.clustered:
            return True
        partition = broker.image.topics[replica.topic].partitions[replica.number]
        node_id = broker.config.node_id
        return node_id in partition.isr or node_id in partition.eligible or node_id == partition.last_leader

    def _lose_unfound(self) -> None:
        """What was not found may be in a directory that cannot be looked at: it must not begin anew elsewhere."""
        reasons = "; ".join(
            f"{each.path} is offline: {each.offline}" for each in self._broker.directories.offline
        )
        for replica in self.replicas():
            if (
                not replica.opened
                and replica not in self.asleep
                and (replica.topic, replica.number) not in self._broker.directories.chosen
            ):
                self.has_lost_some = True
                replica.lose(reasons)

    def _adopt(
        self,
        replica: Replica,
        home: LogDirectory,
        recovered: Recovered,
        unsure: dict[LogDirectory, list[Replica]],
    ) -> None:
        broker, log = self._broker, recovered.log
        self.take(replica, home, log)
        replica.adopt(log)
        self._tell(recovered)
        self.is_damaged = self.is_damaged or (recovered.damaged and self._is_relied_on(replica))
        if not log.unsynced:
            return
        broker.log_maintenance.written(replica, broker.now_ms)
        if replica.durable:
            unsure.setdefault(home, []).append(replica)
        else:
            broker.sync(replica, log)

    def _make_sure(self, home: LogDirectory, replicas: list[Replica]) -> None:
        """What recovery read again must be durable once more before it counts; and it must count before the first client
        asks, or a consumer that comes back would find the log ending before what it has read.
        """
        try:
            home.sync_logs(
                [
                    (
                        [*replica.log.loose, *(segment.file for segment in replica.log.unsynced)],
                        replica.log.directory,
                    )
                    for replica in replicas
                    if replica.opened
                ]
            )
        except DiskError as error:
            own = [each for each in replicas if each.opened and error.path.startswith(each.log.directory)]
            if error.passing or error.broken or not own:
                if error.short:
                    raise
                self._broker.go_offline(home, str(error))
                return
            for replica in own:
                self._broker.lose_one(replica, home, str(error))
            self._make_sure(home, [each for each in replicas if each not in own])
            return
        for replica in replicas:
            if replica.opened:
                replica.log.settle_loose(tuple(replica.log.loose))
                for segment in list(replica.log.unsynced):
                    replica.log.synced(segment, segment.next_offset)
                replica.advance()

    def _write_lowered(self, home: LogDirectory) -> None:
        """A log that ends before its recovery point grows past it again: what the next start then trusts must be known."""
        for path, data in home.checkpoint_files(self._broker.open_logs(home)).items():
            self._broker.disk.replace_file(path, data)

    def _tell(self, recovered: Recovered) -> None:
        broker, log = self._broker, recovered.log
        if recovered.damaged:
            # R12: without another replica what is left is all there is; but nobody shall think it is whole. In a cluster
            # it leaves the ISR, and gets the rest from whoever has it.
            broker.say(
                f"{log.directory}: DAMAGED before its recovery point; records that were acknowledged "
                f"are missing, the log ends at offset {log.next_offset}. Restore it from a copy if you have one"
            )
        elif recovered.cut_bytes:
            broker.say(
                f"{log.directory}: {recovered.cut_bytes} bytes of a torn tail were cut off, "
                f"the log ends at offset {log.next_offset}"
            )

    def _wake(self, replica: Replica, home: LogDirectory) -> PartitionLog | None:
        """Open a log that a clean stop left; None if there is none after all."""
        broker = self._broker
        try:
            recovered = home.load(replica.topic, replica.number, replica.config, broker.now_ms)
            if recovered is not None and recovered.log.recovery_point < home.recovery_points.get(
                (replica.topic, replica.number), 0
            ):
                self._write_lowered(home)
        except DiskError as error:
            if error.broken:
                broker.go_offline(home, str(error))
            else:
                # Short of descriptors, say: it is tried again by the next request that needs it.
                self.asleep[replica] = home
                broker.write_failed(home, error)
            raise
        home.partitions -= 1
        if recovered is None:
            # Of a log that was being made when the last run ended: it stays where it is.
            broker.directories.chosen[replica.topic, replica.number] = home
            self._begins_anew(replica)
            return None
        self._tell(recovered)
        self.is_damaged = recovered.damaged and self._is_relied_on(replica)
        self.take(replica, home, recovered.log)
        return recovered.log

    # --- following the image ----------------------------------------------------------------------------------

    def follow(self, image: Image, records: Iterable[r.Record]) -> None:
        """These records made the image what it now is: do here what they mean."""
        #: Where each ends up is what counts: some may be spoken of twice.
        changed: dict[tuple[bytes, int], None] = {}
        #: The topics whose settings changed.
        configured: dict[str, None] = {}
        contain = self._broker.isolation.contain
        for record in records:
            try:
                self._follow(record, changed, configured)
            except Exception as error:
                contain(f"the metadata record {type(record).__name__}", error)
        # Once each, however many settings changed.
        for name in configured:
            self._broker.isolation.run("the settings of a topic", self._configure, name)
        self._find_new(changed)
        for topic_id, number in changed:
            topic, partition = image.topics_by_id.get(topic_id), image.partition(topic_id, number)
            if topic is not None and partition is not None:
                try:
                    self._change(topic, partition)
                except Exception as error:
                    contain(f"a change of {topic.name}-{number}", error)

    def _find_new(self, changed: dict[tuple[bytes, int], None]) -> None:
        """Move new partitions from `changed` to `new`, and take on the first of them."""
        found: dict[LocalTopic, list[int]] = {}
        for topic_id, number in changed:
            hosted = self.by_id.get(int.from_bytes(topic_id, "big"))
            if hosted is not None and number not in hosted.replicas:
                found.setdefault(hosted, []).append(number)
        if not found:
            return
        for hosted, numbers in found.items():
            for number in numbers:
                del changed[hosted.topic_id, number]
        is_under_way = bool(self.new)
        self.new.extend(found.items())
        if not is_under_way:
            self.take_on()

    def take_on(self) -> None:
        """Make the replicas of some new partitions; the rest waits for the next turn."""
        broker, left = self._broker, _NEW_MAX
        while self.new and left > 0:
            hosted, numbers = self.new[0]
            topic = broker.image.topics_by_id.get(hosted.topic_id)
            if topic is None or self.by_name.get(hosted.name) is not hosted:
                # It was deleted meanwhile.
                self.new.popleft()
                continue
            some = numbers[:left]
            left -= len(some)
            del numbers[: len(some)]
            if not numbers:
                self.new.popleft()
            partitions = [topic.partitions[number] for number in some if number < len(topic.partitions)]
            try:
                self._host(topic.name, topic.topic_id, partitions)
            except Exception as error:
                broker.isolation.contain(f"new partitions of {topic.name}", error)
                for partition in partitions:
                    broker.isolation.run(
                        f"the new partition {topic.name}-{partition.partition}",
                        self._change,
                        topic,
                        partition,
                    )
        if not self.new:
            waiting, self._when_taken_on = self._when_taken_on, []
            for each in waiting:
                broker.isolation.run("what waits for new partitions", each)

    def when_taken_on(self, action: Callable[[], None]) -> None:
        """Do this when every partition of the image has its replica: now, unless a large topic was just created."""
        if self.new:
            self._when_taken_on.append(action)
        else:
            action()

    def sync_names(self, directory: LogDirectory) -> None:
        """A directory that a crash brings back under its old name could be taken for that of a new topic."""
        if directory.offline is not None:
            return
        broker = self._broker
        try:
            broker.disk.sync_dir(directory.path)
        except DiskError as error:
            broker.write_failed(directory, error)
            # If it was not the device, which has taken the directory offline.
            broker.timers.add(Later(lambda: self.sync_names(directory)), broker.now_ms + _AGAIN_MS)

    def _follow(
        self, record: r.Record, changed: dict[tuple[bytes, int], None], configured: dict[str, None]
    ) -> None:
        """What one record means; `changed` gets the partitions it names, `configured` the topics whose settings it changes."""
        match record:
            case r.Topic():
                if self.by_id.get(int.from_bytes(record.topic_id, "big")) is None:
                    self._add(record.name, record.topic_id)
            case r.Partition():
                changed[record.topic_id, record.partition] = None
            case r.NewPartitions():
                for at in range(len(record.replicas)):
                    changed[record.topic_id, record.first + at] = None
            case r.TopicRemoved():
                self._drop(record.topic_id)
            case r.Config(resource_type=resource_type, resource_name=name, name=setting, value=value):
                if resource_type == TOPIC_RESOURCE:
                    configured[name] = None
                elif resource_type == BROKER_RESOURCE:
                    self._broker.config = self._broker.resolve_config()
                    is_mine = name in ("", str(self._broker.config.node_id))
                    if is_mine and value is not None and setting in DYNAMIC_WITHOUT_EFFECT:
                        self._broker.say_once(no_effect(setting))
                    configured.update(dict.fromkeys(self.by_name))
            case _:
                pass

    def assign_roles(self, image: Image) -> None:
        """This broker began to serve, or ceased to."""
        for hosted in self.by_name.values():
            topic = image.topics_by_id.get(hosted.topic_id)
            if topic is not None:
                for number, replica in list(hosted.replicas.items()):
                    self._broker.isolation.run(
                        f"the role of {hosted.name}-{number}",
                        self._broker.replica_roles.assign,
                        replica,
                        hosted.topic_id,
                        topic.partitions[number],
                    )

    def _change(self, topic: TopicImage, partition: r.Partition) -> None:
        """A partition is now so."""
        hosted = self.by_name.get(topic.name)
        replica = hosted.replicas.get(partition.partition) if hosted is not None else None
        if hosted is None or replica is None:
            self._host(topic.name, topic.topic_id, (partition,))
        elif self._is_here(partition):
            self._broker.replica_roles.assign(replica, topic.topic_id, partition)
        else:
            # It was given to others.
            del hosted.replicas[partition.partition]
            self._let_go(replica, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _is_here(self, partition: r.Partition) -> bool:
        node_id = self._broker.config.node_id
        if self._broker.clustered:
            return node_id in partition.replicas
        return partition.leader == node_id

    def create_logs(self) -> bool:
        """Create the logs of some partitions that have none yet; True if others are left."""
        broker = self._broker
        if broker.log_maintenance.to_delete:
            # Their names may be the same.
            return True
        for _ in range(min(_CREATE_MAX, len(self.to_create))):
            replica = self.to_create.popleft()
            if replica.gone or replica.opened or replica.offline is not None:
                continue
            try:
                replica.log  # noqa: B018  (opens it)
            except DiskError as error:
                # A shortage was logged once; the first request that needs the log tries again.
                if not error.passing:
                    broker.say(f"cannot create the log of {replica.topic}-{replica.number}: {error}")
        return bool(self.to_create)

    def _add(self, name: str, topic_id: bytes) -> LocalTopic:
        hosted = LocalTopic(name, topic_id)
        self.by_name[name] = self.by_id[int.from_bytes(topic_id, "big")] = hosted
        return hosted

    def _host(self, name: str, topic_id: bytes, partitions: Iterable[r.Partition]) -> list[Replica]:
        """Take on the partitions that belong here and are new."""
        hosted = self.by_name.get(name) or self._add(name, topic_id)
        config = self._topic_config(name)
        replicas, opener, assign = hosted.replicas, self._open, self._broker.replica_roles.assign
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

    def _open(self, replica: Replica) -> PartitionLog:
        """The log of a partition that nobody has needed yet."""
        self._broker.slices.charge(_OPEN_COST)
        home = self.asleep.pop(replica, None)
        before, self.is_damaged = self.is_damaged, False
        try:
            log = self._wake(replica, home) if home is not None else None
            if log is None:
                log = self._create(replica)
        finally:
            is_damaged = self.is_damaged
            self.is_damaged = before or is_damaged
        if is_damaged and self._broker.clustered:
            # R12: whoever asked for it thinks that it leads, or follows: not before others know.
            replica.adopt(log)
            self._broker.replica_roles.damaged(replica)
            raise DiskError(f"{log.directory} is damaged: this replica leaves the ISR first")
        return log

    def _create(self, replica: Replica) -> PartitionLog:
        broker = self._broker
        topic_id = self.by_name[replica.topic].topic_id
        name = partition_dir(replica.topic, replica.number)
        if len(name) > FILE_NAME_BYTES_MAX:
            # Only in a metadata log that was written before there was a limit. It is nobody else's problem.
            raise DiskError(f"{name}: a directory's name has at most {FILE_NAME_BYTES_MAX} bytes")
        home = broker.directories.place(replica.topic, replica.number)
        try:
            broker.log_maintenance.check_name_is_free(home, replica.topic, replica.number)
            log = home.create(replica.topic, replica.number, topic_id, replica.config, broker.wall_ms)
        except DiskError as error:
            # What was made of it stays its own: it is not to be found in two directories.
            broker.directories.chosen[replica.topic, replica.number] = home
            broker.write_failed(home, error)
            raise
        self.take(replica, home, log)
        return log

    def take(self, replica: Replica, home: LogDirectory, log: PartitionLog) -> None:
        """A log in a directory is this partition's."""
        home.partitions += 1
        log.on_failure = lambda error: self._broker.write_failed(home, error, replica)

    def _topic_config(self, name: str) -> TopicConfig:
        return TopicConfig.resolve(self._broker.image.topic_config(name), self._broker.config)

    def _configure(self, name: str) -> None:
        hosted = self.by_name.get(name)
        if hosted is not None:
            config = self._topic_config(name)
            for replica in hosted.replicas.values():
                replica.configure(config)
                leading = replica.leading
                if leading is not None:
                    leading.isr_min = min(config.min_insync_replicas, len(leading.replicas))
                if replica.opened:
                    self._broker.advance(replica)

    def _drop(self, topic_id: bytes) -> None:
        """Let go of a topic."""
        hosted = self.by_id.pop(int.from_bytes(topic_id, "big"), None)
        if hosted is None:
            return
        if self.by_name.get(hosted.name) is hosted:
            del self.by_name[hosted.name]
        for replica in hosted.replicas.values():
            self._let_go(replica, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _let_go(self, replica: Replica, code: ErrorCode) -> None:
        """A replica is not this broker's any more: its log goes."""
        broker = self._broker
        replica.gone = True
        broker.fail_waiting(replica, code)
        broker.replica_roles.rest(replica, replica.leader_epoch)
        broker.role_changed(replica)
        broker.log_dir_moves.cancel(replica)
        broker.directories.chosen.pop((replica.topic, replica.number), None)
        home = self.asleep.pop(replica, None)
        if replica.opened:
            home = broker.directories.of(replica.log)
        if home is not None:
            broker.log_maintenance.delete_partition(replica, home)
