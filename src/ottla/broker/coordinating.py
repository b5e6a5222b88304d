"""Group coordinators: the shards of `__consumer_offsets` whose partitions this broker leads, and the log beneath them.

A shard (`groups/shard.py`) begins when this broker begins to lead its partition: the log is read from its start, in slices
between the turns of others, and replayed. Until then its groups are COORDINATOR_LOAD_IN_PROGRESS, those of other brokers
NOT_COORDINATOR. It ends with the role; who waits then hears NOT_COORDINATOR.

What the shards decide in a turn is written at its end, one batch a shard, and answered when the high watermark has passed it. An
answer that tells what was written before waits for that too: nobody hears of an offset or an assignment that could be lost. If
a batch cannot be written, the state is ahead of the log: the shard is dropped and loaded again, and nothing was promised.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ottla.broker.appending import Pending, append_as_leader
from ottla.broker.loading import Loading
from ottla.broker.timers import Later, Periodic, Timers
from ottla.broker.walking import Walk
from ottla.config.broker import BrokerConfig
from ottla.controller.image import GROUP_RESOURCE, NO_CONFIG
from ottla.controller.records import Broker as BrokerRecord
from ottla.controller.records import NewPartitions, Topic, TopicRemoved
from ottla.groups.decision import Decision, Reply, Response, TopicView
from ottla.groups.formats import OFFSET_COMMIT, decode, encode
from ottla.groups.formats import Record as GroupRecord
from ottla.groups.layout import Malformed
from ottla.groups.shard import Shard, partition_of
from ottla.model.errors import ErrorCode, Refusal
from ottla.records.record import Record, encode_batch

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.controller.image import Image
    from ottla.replication.replica import Replica

OFFSETS_TOPIC: Final = "__consumer_offsets"
#: A batch is closed when it has grown to this, well below what a topic takes.
_BATCH_BYTES: Final = 256 * 1024
#: How the key of a committed offset begins.
_OFFSET_KIND: Final = OFFSET_COMMIT.to_bytes(2, "big")
#: What a batch has beside its records, and a record beside its key and value, at most.
_OVERHEAD_BYTES: Final = 128
_CREATE_TOPICS: Final = 19
_CREATE_TOPICS_VERSION: Final = 7
_CREATE_MS: Final = 5_000
#: After a log that could not be read, or a batch that could not be written.
_RELOAD_MS: Final = 1_000

#: What a client may hear of a batch that was not written.
_TOLD: Final = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
}

_NO_RACKS: Final[frozenset[str]] = frozenset()

Answers = list[tuple[Reply, Response]]


class Tenure:
    """This broker's time as the coordinator of one partition's groups; the shard's host."""

    __slots__ = (
        "_batches", "_broker", "_coordinating", "at", "end", "is_loaded", "patience", "replica", "retry", "shard",
        "unanswered", "unwritten", "visitors",
    )  # fmt: skip

    def __init__(self, coordinating: Coordinating, broker: Broker, replica: Replica) -> None:
        self._coordinating = coordinating
        self._broker = broker
        self.replica = replica
        self.shard = Shard(replica.number, self)
        self.is_loaded = False
        #: While it loads: where it is in the log, and where that ended when the role began.
        self.at = -1
        self.end = -1
        self.retry: Later | None = None
        #: Those who came while it loads and are called when that is over, and how long they wait at most.
        self.visitors: list[Callable[[], None]] = []
        self.patience: Later | None = None
        #: This turn's records, encoded, and the answers that wait for them.
        self.unwritten: list[tuple[bytes, bytes | None]] = []
        self.unanswered: Answers = []
        #: The answers that wait for batches which were written and do not count yet, oldest first.
        self._batches: deque[Answers] = deque()

    # --- what the shard is handed -------------------------------------------------------------------------------

    @property
    def timers(self) -> Timers:
        return self._broker.timers

    @property
    def config(self) -> BrokerConfig:
        return self._broker.config

    @property
    def wall_ms(self) -> int:
        return self._broker.wall_ms

    def unique(self) -> str:
        return str(UUID(bytes=self._broker.entropy.id_bytes()))

    def topic_exists(self, topic: str) -> bool:
        return topic in self._broker.image.topics

    @property
    def topics_version(self) -> int:
        return self._coordinating.topics_version

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

    def fits(self, record: GroupRecord) -> bool:
        try:
            key, value = encode(record)
        except Malformed:
            return False
        return len(key) + len(value or b"") + _OVERHEAD_BYTES <= self.replica.config.max_message_bytes

    def decided(self, decision: Decision) -> None:
        records, answers, is_read, is_replayed = decision
        if not records:
            if is_read and self.unwritten:
                self.unanswered.extend(answers)
            elif is_read and self._batches:
                self._batches[-1].extend(answers)
            else:
                for reply, response in answers:
                    reply.answer(response)
            return
        try:
            encoded = [encode(record) for record in records]
        except Malformed as reason:
            # Whoever replays records itself asks first whether they fit, so that nothing has changed; unless numbers ran out.
            for reply, _response in answers:
                reply.refuse(ErrorCode.UNKNOWN_SERVER_ERROR)
            if is_replayed:
                self._coordinating.reload(self, str(reason))
            return
        if not is_replayed:
            replay = self.shard.replay
            for record in records:
                replay(record)
        if not self.unwritten:
            self._coordinating.unwritten[self] = None
        self.unwritten += encoded
        self.unanswered.extend(answers)

    # --- the log ------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Append what was decided in this turn."""
        records, self.unwritten = self.unwritten, []
        answers, self.unanswered = self.unanswered, []
        wall_ms = self._broker.wall_ms
        batches: list[list[Record]] = [[]]
        size = 0
        for key, value in records:
            size += len(key) + len(value or b"") + _OVERHEAD_BYTES
            if size > _BATCH_BYTES and batches[-1]:
                batches.append([])
                size = len(key) + len(value or b"") + _OVERHEAD_BYTES
            batches[-1].append(Record(0, wall_ms, key, value))
        try:
            for batch in batches[:-1]:
                self._append(batch, [])
            self._append(batches[-1], answers)
        except Refusal as refusal:
            code = _TOLD.get(refusal.code, ErrorCode.UNKNOWN_SERVER_ERROR)
            for reply, _response in answers:
                reply.refuse(code)
            self._coordinating.reload(self, f"could not write: {refusal}")

    def _append(self, records: list[Record], answers: Answers) -> None:
        self._batches.append(answers)
        try:
            append_as_leader(self._broker, self.replica, encode_batch(records), self._written)
        except Refusal:
            if self._batches and self._batches[-1] is answers:
                self._batches.pop()
            raise

    def _written(self, code: ErrorCode) -> None:
        """The oldest batch counts, or its outcome will be known elsewhere."""
        if not self._batches:
            return
        for reply, response in self._batches.popleft():
            if code is ErrorCode.NONE:
                reply.answer(response)
            else:
                reply.refuse(_TOLD.get(code, ErrorCode.NOT_COORDINATOR))

    @property
    def name(self) -> str:
        return f"{OFFSETS_TOPIC}-{self.replica.number}"

    @property
    def is_writable(self) -> bool:
        leading = self.replica.leading
        return self.is_loaded and leading is not None and leading.has_enough

    # --- loading ------------------------------------------------------------------------------------------------

    def replay(self, records: Iterable[Record]) -> None:
        """A piece of the log. Of the offsets in it only the last of a key is looked at, unless that makes no sense: what they come to
        depends on no other kind of record."""
        offsets: list[Record] = []
        for record in records:
            if record.key is not None and record.key[:2] == _OFFSET_KIND:
                offsets.append(record)
            else:
                self._replay(record)
        latest = {record.key: record for record in offsets}
        senseless = [record for record in latest.values() if not self._replay(record)]
        if senseless:
            for record in offsets:
                self._replay(record)

    def _replay(self, record: Record) -> bool:
        """Whether the record made sense; if not, it is left out."""
        try:
            known = decode(record.key, record.value)
        except Malformed as damage:
            self._broker.say_once(f"{self.name}: the record at {record.offset} is left out: {damage}")
            return False
        if known is None:
            return False
        self.shard.replay(known)
        return True

    def loaded(self) -> None:
        """All there was has been replayed. What of it does not count yet is waited for like an own batch."""
        self.is_loaded = True
        if self.end > self.replica.high_watermark:
            self._batches.append([])
            self.replica.waiting.append((self.end, Pending(self._written), {}))
        self.shard.loaded(self._broker.now_ms)

    # --- the end ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """The role is over."""
        self.is_loaded = False
        waiting = [reply for reply, _response in self.unanswered]
        waiting += [reply for batch in self._batches for reply, _response in batch]
        self.unwritten, self.unanswered = [], []
        self._batches.clear()
        for reply in (*waiting, *self.shard.forget()):
            reply.refuse(ErrorCode.NOT_COORDINATOR)


class Coordinating:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: By partition number.
        self.tenures: dict[int, Tenure] = {}
        #: Those that have decided something in this turn.
        self.unwritten: dict[Tenure, None] = {}
        self._loading = Loading(broker, self.reload)
        self._creating: list[Callable[[ErrorCode], None]] = []
        #: Grows with every change of topics, partitions and racks: groups look at them anew.
        self.topics_version = 0
        self._expiry_walk = Walk(broker.timers, self._expire_offsets)
        broker.replicating.owners[OFFSETS_TOPIC] = self

    def start(self, now_ms: int) -> None:
        timers = self._broker.timers

        def interval_ms() -> int:
            return self._broker.config.offsets_retention_check_interval_ms

        def begin(now_ms: int) -> None:
            self._expiry_walk.begin([tenure.replica for tenure in self.tenures.values()], now_ms)

        timers.add(Periodic(timers, interval_ms, begin), now_ms + interval_ms())

    # --- requests -----------------------------------------------------------------------------------------------

    def shard(self, group_id: str) -> Shard:
        """The shard of a group. Raises Refusal with what the client should hear."""
        topic = self._broker.image.topics.get(OFFSETS_TOPIC)
        if topic is None or not topic.partitions:
            raise Refusal(ErrorCode.NOT_COORDINATOR)
        tenure = self.tenures.get(partition_of(group_id, len(topic.partitions)))
        if tenure is None:
            raise Refusal(ErrorCode.NOT_COORDINATOR)
        if not tenure.is_loaded:
            self._loading.prefer(tenure)
            if not tenure.is_loaded:
                raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return tenure.shard

    def wait_for_load(self, group_id: str, again: Callable[[], None]) -> bool:
        """Have `again` called when the shard of a group has been loaded, or is not loaded here any more, or that takes long.

        A load takes a moment after most restarts, and some clients that are told of it ask only twice more before they fail.
        """
        topic = self._broker.image.topics[OFFSETS_TOPIC]
        tenure = self.tenures.get(partition_of(group_id, len(topic.partitions)))
        return tenure is not None and self._loading.wait(tenure, again)

    def writable_shard(self, group_id: str) -> Shard:
        """The same for a request that must write: nothing is decided that could not be written."""
        shard = self.shard(group_id)
        leading = self.tenures[shard.number].replica.leading
        if leading is None or not leading.has_enough:
            raise Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return shard

    @property
    def shards(self) -> Iterable[Shard]:
        return [tenure.shard for tenure in self.tenures.values() if tenure.is_loaded]

    @property
    def is_loading(self) -> bool:
        return any(not tenure.is_loaded for tenure in self.tenures.values())

    def load_now(self) -> None:
        """Somebody asks for all groups: short logs are read before their turn comes."""
        self._loading.load_now()

    def write(self) -> None:
        """The turn is over."""
        while self.unwritten:
            self.unwritten.popitem()[0].write()

    # --- roles --------------------------------------------------------------------------------------------------

    def lead(self, replica: Replica, now_ms: int) -> None:
        tenure = self.tenures[replica.number] = Tenure(self, self._broker, replica)
        self._loading.begin(tenure)

    def rest(self, replica: Replica, now_ms: int) -> None:
        tenure = self.tenures.pop(replica.number, None)
        if tenure is not None:
            self._end(tenure)
            self._loading.call_visitors(tenure)

    def _end(self, tenure: Tenure) -> None:
        self._loading.end(tenure)
        self.unwritten.pop(tenure, None)
        if tenure.retry is not None:
            self._broker.timers.cancel(tenure.retry)
        tenure.close()

    def reload(self, tenure: Tenure, reason: str) -> None:
        """The state of a shard is not that of its log: begin again from the log, after a while."""
        if self.tenures.get(tenure.replica.number) is not tenure:
            return
        self._broker.say(f"{tenure.name} is loaded again: {reason}")
        self._end(tenure)
        fresh = self.tenures[tenure.replica.number] = Tenure(self, self._broker, tenure.replica)

        def again() -> None:
            fresh.retry = None
            self._loading.begin(fresh)

        fresh.retry = Later(again)
        self._broker.timers.add(fresh.retry, self._broker.now_ms + _RELOAD_MS)
        self._loading.call_visitors(tenure)

    # --- the topic ----------------------------------------------------------------------------------------------

    def create_topic(self, done: Callable[[ErrorCode], None]) -> None:
        """Create the topic if it is not there: `done(NONE)` when this broker knows of it, or why it is not made."""
        if OFFSETS_TOPIC in self._broker.image.topics:
            return done(ErrorCode.NONE)
        self._creating.append(done)
        if len(self._creating) > 1:
            return None
        broker, config = self._broker, self._broker.config
        topic = {
            "name": OFFSETS_TOPIC,
            "num_partitions": config.offsets_topic_num_partitions,
            # Nobody else will ever come to a single node.
            "replication_factor": config.offsets_topic_replication_factor if broker.clustered else 1,
            "configs": [
                {"name": "cleanup.policy", "value": "compact"},
                {"name": "compression.type", "value": "producer"},
                {"name": "segment.bytes", "value": str(config.offsets_topic_segment_bytes)},
            ],
        }

        def is_moved(answer: Any) -> bool:
            return any(int(row.error_code) == ErrorCode.NOT_CONTROLLER for row in answer.topics)

        def answered(answer: Any, error: str | None) -> None:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            if answer is not None:
                row = answer.topics[0]
                if int(row.error_code) in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
                    code = ErrorCode.NONE
                else:
                    broker.say_once(
                        f"{OFFSETS_TOPIC} cannot be created: {row.error_message or row.error_code}"
                    )
            if code is ErrorCode.NONE:
                broker.forwarding.when(lambda: OFFSETS_TOPIC in broker.image.topics, lambda: tell(code))
            else:
                tell(code)

        def tell(code: ErrorCode) -> None:
            waiting, self._creating = self._creating, []
            for each in waiting:
                each(code)

        request = {"topics": [topic], "timeout": _CREATE_MS}
        broker.forwarding.insist(
            _CREATE_TOPICS, _CREATE_TOPICS_VERSION, request, is_moved, answered, _CREATE_MS
        )
        return None

    # --- what happens elsewhere ---------------------------------------------------------------------------------

    def follow(self, before: Image, records: Iterable[Any]) -> None:
        """Groups may have others to read; and offsets in a topic that was deleted go with it."""
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
            for tenure in self._writable():
                tenure.shard.topics_deleted(gone)

    def _expire_offsets(self, replica: Replica, now_ms: int) -> int:
        tenure = self.tenures.get(replica.number)
        if tenure is None or not tenure.is_writable:
            return 1
        tenure.shard.forget_strays()
        tenure.shard.expire_offsets(self._broker.wall_ms)
        return 1 + len(tenure.shard.groups)

    def _writable(self) -> list[Tenure]:
        return [tenure for tenure in self.tenures.values() if tenure.is_writable]
