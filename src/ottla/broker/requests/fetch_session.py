"""Fetch sessions (KIP-227) and the cache of them (A4).

A `FetchSession` is a set of `FetchPartition`s. It lives as long as its session, or for one request (a fetch without a session).
Each `FetchPartition` watches its replica. When the replica moves, the partition becomes dirty, and a waiting fetch is woken
(`delayed_fetch.py`). So an idle fetch of a thousand partitions costs nothing, and a response reads only dirty partitions.

A partition stays dirty while it has unread data or an error. A read that finds nothing new cleans it.

A read-committed fetch (`FetchSession.committed`) stops at the last stable offset. It is not woken while an open transaction
holds that offset back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.requests.delayed_fetch import DelayedFetches
from ottla.broker.requests.partition_read import Collected, PartitionData, read_partition
from ottla.model.errors import ErrorCode
from ottla.model.limits import FETCH_PARTITIONS_MAX
from ottla.model.steps import STEP_COST, Steps
from ottla.ports.disk import DiskError

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call, Connection
    from ottla.broker.requests.delayed_fetch import Reply
    from ottla.broker.storage.partitions import LocalPartitions, LocalTopic
    from ottla.metadata.records import BrokerRegistration as NodeRecord
    from ottla.replication.replica import Replica

#: Partitions that a session may hold; a client with more is served without a session.
_SESSION_PARTITIONS_MAX: Final = 100_000
#: A fetch of at most this many partitions takes little more memory than any other waiting request.
_ALWAYS_WAITS_MAX: Final = 10
#: A fetch of more than `_PIPELINED_MAX` partitions waits only if fewer than `_PIPELINED_LARGE_MAX` requests of its connection
#: wait before it: consumers have one fetch in flight.
_PIPELINED_MAX: Final = 100
_PIPELINED_LARGE_MAX: Final = 16
#: A session that was not used for this long can be evicted.
_EVICTABLE_AFTER_MS: Final = 120_000


class FetchPartition:
    """One partition of a fetch session, and what the last response said of it."""

    __slots__ = (
        "bytes_max", "is_recorded", "key", "last_fetched_epoch", "leader_epoch", "name", "number", "offset",
        "replica", "seen_stable", "sent_start", "sent_watermark", "session", "topic_id",
    )  # fmt: skip

    def __init__(
        self,
        session: FetchSession,
        key: Any,
        name: str,
        topic_id: bytes,
        number: int,
        replica: Replica | None,
    ) -> None:
        self.session = session
        #: The topic as the client names it: its name, or its id as an integer.
        self.key = key
        self.name = name
        self.topic_id = topic_id
        self.number = number
        self.replica = replica
        self.offset = 0
        self.bytes_max = 0
        self.leader_epoch = -1
        self.last_fetched_epoch = -1
        #: Whether the leader has recorded the fetch offset of a follower.
        self.is_recorded = True
        #: High watermark and log start offset of the last response.
        self.sent_watermark = -1
        self.sent_start = -1
        #: The last stable offset at the last read, for read-committed fetches.
        self.seen_stable = -1

    def find_again(self, local: LocalPartitions) -> int:
        """Look up the replica again: a session outlives topics. Returns an error code, or 0 if there is a replica."""
        by_id = isinstance(self.key, int)
        topic = local.by_id.get(self.key) if by_id else local.by_name.get(self.key)
        replica = topic.replicas.get(self.number) if topic is not None else None
        if replica is not self.replica:
            self.unwatch()
            self.replica = replica
            if self.session.watching:
                self.watch()
        if replica is not None:
            return 0
        if topic is not None and self.session.sessions.is_elsewhere(topic.topic_id, self.number):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_ID if by_id and topic is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def watch(self) -> None:
        """Watch the replica: a follower watches the log end, a consumer the high watermark."""
        replica = self.replica
        if replica is not None:
            if self.session.follower < 0:
                replica.watchers[self] = None
                return
            replica.tail[self] = None
            if self.session.is_prompt:
                replica.watchers[self] = None

    def unwatch(self) -> None:
        replica = self.replica
        if replica is not None:
            replica.watchers.pop(self, None)
            replica.tail.pop(self, None)

    def moved(self) -> None:
        """The replica may have new data: mark this partition dirty and wake its fetch."""
        session = self.session
        session.dirty[self] = None
        if session.call is not None and not session.woken and not (session.committed and self._held_back()):
            session.woken = True
            session.sessions.woken.append(session)

    def _held_back(self) -> bool:
        """Whether an open transaction holds back all records since the last read."""
        replica = self.replica
        return (
            replica is not None
            and not replica.gone
            and replica.opened
            and replica.last_stable_offset == self.seen_stable < replica.high_watermark
            and self.offset >= replica.log.log_start_offset
            and self.leader_epoch in (-1, replica.leader_epoch)
        )


class FetchSession:
    """The partitions of a fetch and its state: with a session (`id` is not 0), or for one request."""

    __slots__ = (
        "bucket", "bytes_max", "bytes_min", "call", "committed", "connection", "counted", "dirty", "epoch",
        "follower", "follower_epoch", "id", "is_due", "is_prompt", "is_reading", "leader_only", "partitions",
        "rack", "sessions", "used_ms", "watching", "woken",
    )  # fmt: skip

    def __init__(self, sessions: FetchSessionCache) -> None:
        self.sessions = sessions
        #: The connection that used the session last.
        self.connection: Connection | None = None
        #: 0 without a session.
        self.id = 0
        self.epoch = 0
        self.partitions: dict[tuple[Any, int], FetchPartition] = {}
        self.dirty: dict[FetchPartition, None] = {}
        #: The waiting call, and its limits.
        self.call: Call | None = None
        self.bytes_min = 0
        self.bytes_max = 0
        #: Whether the fetch is read-committed.
        self.committed = False
        #: The follower's broker id and broker epoch; -1 for a consumer.
        self.follower = -1
        self.follower_epoch = -1
        #: Whether a high watermark is sent to a follower at once, because consumers read from the follower.
        self.is_prompt = False
        #: Whether a consumer is too old to read from followers; and its rack, if the rack selects the replica (KIP-392).
        self.leader_only = True
        self.rack = ""
        self.bucket = -1
        self.used_ms = 0
        #: Whether the partitions watch their replicas.
        self.watching = False
        #: Whether it is in the line of woken fetches.
        self.woken = False
        #: Whether `max_wait` is over.
        self.is_due = False
        #: Whether its partitions are being read in slices.
        self.is_reading = False
        #: How many of its partitions `FetchSessionCache.held` includes.
        self.counted = 0

    def watch(self) -> None:
        if not self.watching:
            self.watching = True
            for partition in self.partitions.values():
                partition.watch()

    def unwatch(self) -> None:
        if self.watching:
            self.watching = False
            for partition in self.partitions.values():
                partition.unwatch()

    def forget(self, key: tuple[Any, int]) -> None:
        partition = self.partitions.pop(key, None)
        if partition is not None:
            self.dirty.pop(partition, None)
            partition.unwatch()

    def abandon(self) -> None:
        """The client of the waiting call is gone."""
        self.sessions.delayed.abandon(self)
        self.clear()

    def clear(self) -> None:
        """Break the reference cycle with the partitions after a fetch without a session: the garbage collector runs late."""
        if not self.id:
            self.partitions.clear()
            self.dirty.clear()

    def expire(self, now_ms: int) -> None:
        """`max_wait` is over: the fetch is answered with the data there is. Each turn answers a bounded number of them."""
        self.is_due = True
        if not self.woken:
            self.woken = True
            self.sessions.woken.append(self)

    def collect_in_steps(self) -> Steps[Collected]:
        """`collect` for very many partitions, a few hundred a step."""
        rows: list[PartitionData] = []
        total = 0
        failed = False
        dirty = list(self.dirty)
        for at in range(0, len(dirty), STEP_COST):
            some, total, some_failed = self.collect(dirty[at : at + STEP_COST], total)
            rows += some
            failed = failed or some_failed
            yield STEP_COST
        return rows, total, failed

    def collect(self, some: Iterable[FetchPartition] | None = None, total: int = 0) -> Collected:
        """Read the dirty partitions, or `some` of them after others had `total` bytes.

        Returns the rows of the response, the bytes of data, and whether one of the rows must not wait.
        """
        rows: list[PartitionData] = []
        failed = False
        left = self.bytes_max - total
        incremental = self.epoch > 0
        clean: list[FetchPartition] = []
        for partition in self.dirty if some is None else some:
            row = read_partition(partition, left, whole_first=total == 0)
            if row.data is not None:
                total += row.data.size
                left -= row.data.size
            elif row.error or row.diverging is not None or row.preferred >= 0:
                failed = True
            elif (
                incremental
                and row.high_watermark == partition.sent_watermark
                and row.log_start_offset == partition.sent_start
            ):
                clean.append(partition)
                continue
            elif self.is_prompt and self.id:
                # Only with a session: without one every row is new each time.
                failed = True
            rows.append(row)
        for partition in clean:
            # Clean until its replica moves. Data that did not fit, and rows that are not sent yet, keep it dirty.
            replica = partition.replica
            if replica is None or partition.offset >= self._end_for(replica):
                self.dirty.pop(partition, None)
        return rows, total, failed

    def _end_for(self, replica: Replica) -> int:
        """The offset from which on a partition has nothing to send."""
        if self.follower >= 0:
            # A high watermark below the log end will move without waking a follower: its next response carries it.
            end = replica.log.next_offset
            return end if replica.high_watermark >= end else end + 1
        return replica.last_stable_offset if self.committed else replica.high_watermark


class FetchSessionCache:
    """The fetch sessions of this broker, and what a fetch needs to know of the broker."""

    def __init__(self, broker: Broker, reply: Reply) -> None:
        self._broker = broker
        self.partitions = broker.partitions
        self.replication_throttle = broker.replication_throttle
        self._follower_positions = broker.replica_roles.follower_positions
        self.node_id = broker.config.node_id
        self.by_id: dict[int, FetchSession] = {}
        #: Partitions in the sessions of consumers and in waiting fetches without a session.
        self.held = 0
        self.delayed = DelayedFetches(broker, self, reply)
        # The same deque: a produce that wakes a fetch saves one attribute.
        self.woken = self.delayed.woken

    def count(self, session: FetchSession) -> None:
        """Update `held` after a change of the partitions, the session or the waiting call."""
        is_held = (session.id or session.call is not None) and session.follower < 0
        held = len(session.partitions) if is_held else 0
        self.held += held - session.counted
        session.counted = held

    def may_wait(self, session: FetchSession, call: Call) -> bool:
        """Whether a fetch without a session may wait for data, with its partitions in memory."""
        partitions = len(session.partitions)
        return partitions <= _ALWAYS_WAITS_MAX or (
            self.held + partitions <= FETCH_PARTITIONS_MAX
            and (partitions <= _PIPELINED_MAX or len(call.connection.waiting) < _PIPELINED_LARGE_MAX)
        )

    def create(self, session: FetchSession, now_ms: int) -> bool:
        """Give a full fetch a session; False if too many sessions are in use.

        A follower evicts a consumer: without a session its requests and responses name all its partitions.
        """
        slots = self._broker.config.max_incremental_fetch_session_cache_slots
        partitions = len(session.partitions)
        is_too_much = (
            session.follower < 0
            and partitions > _ALWAYS_WAITS_MAX
            and self.held + partitions > FETCH_PARTITIONS_MAX
        )
        if (
            partitions > _SESSION_PARTITIONS_MAX
            or is_too_much
            or (
                len(self.by_id) >= slots
                and not self._evict(now_ms)
                and not (session.follower >= 0 and self._evict_consumer())
            )
        ):
            return False
        # Random: a session id from before a restart must not match the session of another client.
        while not session.id or session.id in self.by_id:
            session.id = self._broker.entropy.below(0x7FFFFFFF) + 1
        self.by_id[session.id] = session
        self.count(session)
        return True

    def _evict(self, now_ms: int) -> bool:
        """Evict the least recently used session if it is old enough; `touch` keeps that one first."""
        for session in self.by_id.values():
            if now_ms - session.used_ms > _EVICTABLE_AFTER_MS:
                self.remove(session)
                return True
            return False
        return False

    def _evict_consumer(self) -> bool:
        for session in self.by_id.values():
            if session.follower < 0:
                self.remove(session)
                return True
        return False

    def touch(self, session: FetchSession, now_ms: int) -> None:
        if now_ms - session.used_ms > 1000:
            session.used_ms = now_ms
            del self.by_id[session.id]
            self.by_id[session.id] = session

    def remove(self, session: FetchSession) -> None:
        self.by_id.pop(session.id, None)
        # A waiting fetch goes on without a session: it watches until it is answered.
        session.id = 0
        self.count(session)
        if session.call is None:
            session.unwatch()
            session.clear()
        if session.connection is not None:
            session.connection.fetch_sessions.pop(session, None)
            session.connection = None

    def is_elsewhere(self, topic_id: bytes, number: int) -> bool:
        return self._broker.not_here(topic_id, None, number) is not None

    def record_follower(self, partition: FetchPartition, replica: Replica) -> bool:
        """Record the fetch offset of a follower; False if it is no replica of this partition, or its broker epoch is not current."""
        session = partition.session
        return self._follower_positions.fetched(
            replica, session.follower, session.follower_epoch, partition.offset
        )

    def nearer(self, replica: Replica, rack: str, offset: int) -> int:
        return self._follower_positions.nearer(replica, rack, offset)

    def leader_of(self, topic_id: bytes, number: int) -> tuple[NodeRecord, int] | None:
        """The leader of a partition as this broker knows it, and its leader epoch (KIP-951)."""
        image = self._broker.image
        partition = image.partition(topic_id, number)
        node = image.brokers.get(partition.leader) if partition is not None else None
        if partition is None or node is None or node.fenced:
            return None
        return node, partition.leader_epoch

    def read_failed(self, path: str, error: DiskError) -> None:
        self._broker.disk_failed(path, error)


def find_topic(broker: Broker, topic: Any, *, by_id: bool) -> LocalTopic | None:
    if by_id:
        return broker.partitions.by_id.get(topic.int) if topic is not None else None
    return broker.partitions.by_name.get(topic)
