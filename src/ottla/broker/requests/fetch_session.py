"""Fetches: what a consumer looks at, what it has been told, and waiting for more (A4, KIP-227).

A `FetchSession` is a set of `Interest`s, one a partition. It lives as long as one request (a fetch without a session) or as
long as its session. Each interest watches its partition: when the partition moves, the interest becomes dirty, and if its
fetch is waiting, the fetch is woken. So an idle fetch over a thousand partitions costs nothing, and one that is answered
visits only the partitions that have something to say.

A fetch that reads committed records only (`FetchSession.committed`) stops at the last stable offset instead of the high
watermark, and is told which of the records before it were aborted. It is not woken while a transaction holds it back.

An interest stays dirty while its partition has data it has not seen or an error; looking and finding nothing cleans it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ottla.log.log_reader import Slice
from ottla.log.transactions import Ended
from ottla.model.errors import ErrorCode
from ottla.model.limits import FETCH_PARTITIONS_MAX
from ottla.model.steps import STEP_COST, Steps
from ottla.ports.disk import DamagedFile, DiskError

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call, Connection
    from ottla.broker.storage.partitions import LocalPartitions, LocalTopic
    from ottla.log.partition_log import PartitionLog
    from ottla.metadata.records import BrokerRegistration as NodeRecord
    from ottla.replication.replica import Replica

#: Interests a session may hold; beyond it a client is served without a session.
_SESSION_PARTITIONS_MAX = 100_000
#: A fetch of so few partitions takes little more memory than any other waiting request.
_ALWAYS_WAITS_MAX: Final = 10
#: Fetches of more partitions than this wait only if fewer requests than that wait before them on their connection: consumers have
#: one fetch in flight.
_PIPELINED_MAX: Final = 100
_PIPELINED_LARGE_MAX: Final = 16
#: Looking at so many partitions takes about as long as answering a fetch.
_LOOKS_PER_WAKE: Final = 50
#: A woken fetch with more partitions to look at than this does so in slices.
_LOOKS_AT_ONCE_MAX: Final = 2_000


class Row(NamedTuple):
    """What the answer says of one partition."""

    interest: Interest
    error: int
    high_watermark: int
    log_start_offset: int
    data: Slice | None
    diverging: tuple[int, int] | None = None
    last_stable_offset: int = -1
    #: None for a fetch that reads whatever there is.
    aborted: list[Ended] | None = None
    #: A replica nearer to the consumer, which should fetch there; -1 if there is none.
    preferred: int = -1


#: Rows worth telling, their bytes, and whether one of them should not wait.
Collected: TypeAlias = tuple[list[Row], int, bool]


class Interest:
    """One partition as one fetch wants it, and what the session last said of it."""

    __slots__ = (
        "bytes_max", "fetching", "is_told", "key", "last_fetched_epoch", "leader_epoch", "name", "number", "offset", "replica",
        "seen_stable", "told_start", "told_watermark", "topic_id",
    )  # fmt: skip

    def __init__(
        self,
        fetching: FetchSession,
        key: Any,
        name: str,
        topic_id: bytes,
        number: int,
        replica: Replica | None,
    ) -> None:
        self.fetching = fetching
        #: What the client calls the topic: a name, or an id as a number.
        self.key = key
        self.name = name
        self.topic_id = topic_id
        self.number = number
        self.replica = replica
        self.offset = 0
        self.bytes_max = 0
        self.leader_epoch = -1
        self.last_fetched_epoch = -1
        #: Whether a follower's position has reached the leader's books.
        self.is_told = True
        self.told_watermark = -1
        self.told_start = -1
        #: Where the last look at it found the last stable offset, if that was what stopped it.
        self.seen_stable = -1

    def find_again(self, hosting: LocalPartitions) -> int:
        """Look for a partition that was not there, or is gone: a session outlives topics. The error if there is none."""
        by_id = isinstance(self.key, int)
        hosted = hosting.by_id.get(self.key) if by_id else hosting.by_name.get(self.key)
        replica = hosted.replicas.get(self.number) if hosted is not None else None
        if replica is not self.replica:
            self.unwatch()
            self.replica = replica
            if self.fetching.watching:
                self.watch()
        if replica is not None:
            return 0
        if hosted is not None and self.fetching.sessions.is_elsewhere(hosted.topic_id, self.number):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return (
            ErrorCode.UNKNOWN_TOPIC_ID if by_id and hosted is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )

    def watch(self) -> None:
        """Be told when there may be something new: for a follower that is the log's end, for others the watermark."""
        replica = self.replica
        if replica is not None:
            if self.fetching.follower < 0:
                replica.watchers[self] = None
                return
            replica.tail[self] = None
            if self.fetching.is_prompt:
                replica.watchers[self] = None

    def unwatch(self) -> None:
        replica = self.replica
        if replica is not None:
            replica.watchers.pop(self, None)
            replica.tail.pop(self, None)

    def moved(self) -> None:
        fetching = self.fetching
        fetching.dirty[self] = None
        if (
            fetching.call is not None
            and not fetching.woken
            and not (fetching.committed and self._held_back())
        ):
            fetching.woken = True
            fetching.sessions.woken.append(fetching)

    def _held_back(self) -> bool:
        """Whether all that is new since the last look belongs to open transactions or stands behind one."""
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
    __slots__ = (
        "bucket", "bytes_max", "bytes_min", "call", "committed", "connection", "counted", "dirty", "epoch", "follower",
        "follower_epoch", "id", "interests", "is_due", "is_looking", "is_prompt", "leader_only", "rack", "sessions", "used_ms",
        "watching", "woken",
    )  # fmt: skip

    def __init__(self, sessions: FetchSessionCache) -> None:
        self.sessions = sessions
        #: Whose session it is.
        self.connection: Connection | None = None
        #: 0 without a session.
        self.id = 0
        self.epoch = 0
        self.interests: dict[tuple[Any, int], Interest] = {}
        self.dirty: dict[Interest, None] = {}
        #: The call that waits, and what it waits for.
        self.call: Call | None = None
        self.bytes_min = 0
        self.bytes_max = 0
        #: Whether it wants committed records only.
        self.committed = False
        #: The broker that fetches as a follower, and its life; -1 for a consumer.
        self.follower = -1
        self.follower_epoch = -1
        #: Whether a follower hears of a high watermark at once, because consumers read from it.
        self.is_prompt = False
        #: Whether a consumer is too old to read from followers; and its rack, if that decides where it should read.
        self.leader_only = True
        self.rack = ""
        self.bucket = -1
        self.used_ms = 0
        #: Whether the interests are registered with their partitions.
        self.watching = False
        #: Whether the waiting call stands in the line of those to be looked at.
        self.woken = False
        #: Whether its longest wait is over.
        self.is_due = False
        #: Whether it looks at its partitions just now, in slices.
        self.is_looking = False
        #: How many of its partitions `FetchSessionCache.held` includes.
        self.counted = 0

    def watch(self) -> None:
        if not self.watching:
            self.watching = True
            for interest in self.interests.values():
                interest.watch()

    def unwatch(self) -> None:
        if self.watching:
            self.watching = False
            for interest in self.interests.values():
                interest.unwatch()

    def forget(self, key: tuple[Any, int]) -> None:
        interest = self.interests.pop(key, None)
        if interest is not None:
            self.dirty.pop(interest, None)
            interest.unwatch()

    def abandon(self) -> None:
        """Nobody waits for the answer any more."""
        self.sessions.abandon(self)
        self.clear()

    def clear(self) -> None:
        """It is over, unless it has a session: interests refer to it, and would be in memory until the garbage collector comes."""
        if not self.id:
            self.interests.clear()
            self.dirty.clear()

    def expire(self, now_ms: int) -> None:
        """The longest wait is over: it is answered with what there is, a few fetches in each turn."""
        self.is_due = True
        if not self.woken:
            self.woken = True
            self.sessions.woken.append(self)

    def collect_in_steps(self) -> Steps[Collected]:
        """`collect` for very many partitions, a few hundred a step."""
        rows: list[Row] = []
        total = 0
        failed = False
        dirty = list(self.dirty)
        for at in range(0, len(dirty), STEP_COST):
            some, total, some_failed = self.collect(dirty[at : at + STEP_COST], total)
            rows += some
            failed = failed or some_failed
            yield STEP_COST
        return rows, total, failed

    def collect(self, some: Iterable[Interest] | None = None, total: int = 0) -> Collected:
        """Look at the dirty interests: (rows worth telling, bytes of data, whether one of them should not wait).

        Or at some of them, when others had `total` bytes."""
        rows: list[Row] = []
        failed = False
        left = self.bytes_max - total
        incremental = self.epoch > 0
        clean: list[Interest] = []
        for interest in self.dirty if some is None else some:
            row = look(interest, left, whole_first=total == 0)
            if row.data is not None:
                total += row.data.size
                left -= row.data.size
            elif row.error or row.diverging is not None or row.preferred >= 0:
                failed = True
            elif (
                incremental
                and row.high_watermark == interest.told_watermark
                and row.log_start_offset == interest.told_start
            ):
                clean.append(interest)
                continue
            elif self.is_prompt and self.id:
                # Without a session everything is news all the time.
                failed = True
            rows.append(row)
        for interest in clean:
            # Nothing more to see until its partition moves. Data that did not fit, and news that have not left yet, keep
            # it dirty.
            replica = interest.replica
            if replica is None or interest.offset >= self._end_for(replica):
                self.dirty.pop(interest, None)
        return rows, total, failed

    def _end_for(self, replica: Replica) -> int:
        """Up to where there is, or soon will be, something to tell."""
        if self.follower >= 0:
            # A watermark that has not reached the end will move without waking a follower: it hears of it by the way.
            end = replica.log.next_offset
            return end if replica.high_watermark >= end else end + 1
        return replica.last_stable_offset if self.committed else replica.high_watermark


class FetchSessionCache:
    """The sessions of this broker, and all fetches that wait."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.partitions = broker.partitions
        self.replication_throttle = broker.replication_throttle
        self._follower_positions = broker.replica_roles.follower_positions
        self.node_id = broker.config.node_id
        self.by_id: dict[int, FetchSession] = {}
        #: Fetches whose partitions moved, or whose wait is over, in order; one that was abandoned since stays until its turn, unmarked.
        self.woken: deque[FetchSession] = deque()
        #: Partitions in the sessions of consumers and in waiting fetches without a session.
        self.held = 0

    def count(self, fetching: FetchSession) -> None:
        """Its partitions, its session or its waiting call have changed."""
        is_held = (fetching.id or fetching.call is not None) and fetching.follower < 0
        held = len(fetching.interests) if is_held else 0
        self.held += held - fetching.counted
        fetching.counted = held

    def may_wait(self, fetching: FetchSession, call: Call) -> bool:
        """Whether a fetch without a session may wait for data: its partitions are held in memory meanwhile."""
        partitions = len(fetching.interests)
        return partitions <= _ALWAYS_WAITS_MAX or (
            self.held + partitions <= FETCH_PARTITIONS_MAX
            and (partitions <= _PIPELINED_MAX or len(call.connection.waiting) < _PIPELINED_LARGE_MAX)
        )

    def create(self, fetching: FetchSession, now_ms: int) -> bool:
        """Give a full fetch a session, unless there are too many that are in use.

        A follower takes that of a consumer: without one it would tell of all its partitions with each request.
        """
        slots = self._broker.config.max_incremental_fetch_session_cache_slots
        partitions = len(fetching.interests)
        is_too_much = (
            fetching.follower < 0
            and partitions > _ALWAYS_WAITS_MAX
            and self.held + partitions > FETCH_PARTITIONS_MAX
        )
        if (
            partitions > _SESSION_PARTITIONS_MAX
            or is_too_much
            or (
                len(self.by_id) >= slots
                and not self._evict(now_ms)
                and not (fetching.follower >= 0 and self._evict_consumer())
            )
        ):
            return False
        # Random: an id that a client kept from before a restart must not be another one's session now.
        while not fetching.id or fetching.id in self.by_id:
            fetching.id = self._broker.entropy.below(0x7FFFFFFF) + 1
        self.by_id[fetching.id] = fetching
        self.count(fetching)
        return True

    def _evict(self, now_ms: int) -> bool:
        """Drop the session unused for longest, if that is two minutes; dicts keep it first (see `touch`)."""
        for fetching in self.by_id.values():
            if now_ms - fetching.used_ms > 120_000:
                self.remove(fetching)
                return True
            return False
        return False

    def _evict_consumer(self) -> bool:
        for fetching in self.by_id.values():
            if fetching.follower < 0:
                self.remove(fetching)
                return True
        return False

    def touch(self, fetching: FetchSession, now_ms: int) -> None:
        if now_ms - fetching.used_ms > 1000:
            fetching.used_ms = now_ms
            del self.by_id[fetching.id]
            self.by_id[fetching.id] = fetching

    def remove(self, fetching: FetchSession) -> None:
        self.by_id.pop(fetching.id, None)
        # One that still waits goes on as a fetch without a session: it watches until it is answered, and not beyond.
        fetching.id = 0
        self.count(fetching)
        if fetching.call is None:
            fetching.unwatch()
            fetching.clear()
        if fetching.connection is not None:
            fetching.connection.fetch_sessions.pop(fetching, None)
            fetching.connection = None

    def wait(self, fetching: FetchSession, call: Call, deadline_ms: int) -> None:
        fetching.call = call
        fetching.watch()
        call.abandon = fetching.abandon
        if not fetching.id:
            self.count(fetching)
        self._broker.timers.add(fetching, deadline_ms)

    def abandon(self, fetching: FetchSession) -> None:
        fetching.call = None
        fetching.woken = fetching.is_due = False
        self._broker.timers.cancel(fetching)
        if not fetching.id:
            self.count(fetching)
            fetching.unwatch()

    def wake(self, most: int, now_ms: int) -> bool:
        """Answer up to `most` woken fetches that have enough, fewer if they look at many partitions; True if some are left."""
        woken = self.woken
        while most > 0:
            if not woken:
                return False
            fetching = woken.popleft()
            most -= 1
            if fetching.woken and len(fetching.dirty) > _LOOKS_AT_ONCE_MAX:
                self._look_in_slices(fetching)
            elif fetching.woken:
                fetching.woken = False
                most -= len(fetching.dirty) // _LOOKS_PER_WAKE
                try:
                    rows, total, failed = fetching.collect()
                    if total >= fetching.bytes_min or failed or fetching.is_due:
                        self._finish(fetching, rows)
                except Exception as error:
                    self._broker.isolation.contain("the answer to a fetch", error, call=fetching.call)
        return bool(woken)

    def _look_in_slices(self, fetching: FetchSession) -> None:
        if fetching.is_looking:
            # It stays woken, and looks again afterwards.
            return
        fetching.woken = False
        fetching.is_looking = True

        def done(_result: None, error: Exception | None) -> None:
            fetching.is_looking = False
            if error is not None:
                self._broker.isolation.contain("the answer to a fetch", error, call=fetching.call)
            if fetching.woken:
                self.woken.append(fetching)

        self._broker.slices.begin(self._look(fetching, fetching.call), done)

    def _look(self, fetching: FetchSession, call: Call | None) -> Steps[None]:
        rows, total, failed = yield from fetching.collect_in_steps()
        if (
            call is not None
            and fetching.call is call
            and (total >= fetching.bytes_min or failed or fetching.is_due)
        ):
            self._finish(fetching, rows)

    def look_again(self, fetching: FetchSession, rows: list[Row]) -> None:
        """It waits now, after it looked in slices: what moved meanwhile has woken nobody."""
        for row in rows:
            replica = row.interest.replica
            # A follower is interested in the end of the log: it looks again in any case.
            if replica is not None and (
                fetching.follower >= 0 or replica.high_watermark != row.high_watermark
            ):
                row.interest.moved()
                return

    def is_elsewhere(self, topic_id: bytes, number: int) -> bool:
        return self._broker.not_here(topic_id, None, number) is not None

    def follower_at(self, interest: Interest, replica: Replica) -> bool:
        """A follower has come so far; False if this partition has no such follower, or not in this life."""
        fetching = interest.fetching
        return self._follower_positions.fetched(
            replica, fetching.follower, fetching.follower_epoch, interest.offset
        )

    def nearer(self, replica: Replica, rack: str, offset: int) -> int:
        return self._follower_positions.nearer(replica, rack, offset)

    def leader_of(self, topic_id: bytes, number: int) -> tuple[NodeRecord, int] | None:
        """Who leads a partition as far as this broker knows, and in which epoch (KIP-951)."""
        image = self._broker.image
        partition = image.partition(topic_id, number)
        node = image.brokers.get(partition.leader) if partition is not None else None
        if partition is None or node is None or node.fenced:
            return None
        return node, partition.leader_epoch

    def read_failed(self, path: str, error: DiskError) -> None:
        self._broker.disk_failed(path, error)

    def answer(self, fetching: FetchSession, now_ms: int) -> None:
        rows, _total, _failed = fetching.collect()
        self._finish(fetching, rows)

    def _finish(self, fetching: FetchSession, rows: list[Row]) -> None:
        call = fetching.call
        assert call is not None
        self.abandon(fetching)
        from ottla.broker.api.fetch import reply

        reply(self._broker, call, fetching, rows)
        fetching.clear()


def find(broker: Broker, topic: Any, *, by_id: bool) -> LocalTopic | None:
    if by_id:
        return broker.partitions.by_id.get(topic.int) if topic is not None else None
    return broker.partitions.by_name.get(topic)


def look(interest: Interest, bytes_left: int, *, whole_first: bool) -> Row:
    """What there is for one interest now."""
    replica = interest.replica
    if replica is None or replica.gone:
        error = interest.find_again(interest.fetching.sessions.partitions)
        replica = interest.replica
        if replica is None:
            return Row(interest, error, -1, -1, None)
    if interest.leader_epoch >= 0 and interest.leader_epoch != replica.leader_epoch:
        # R2: the caller and this broker disagree about who leads.
        older = interest.leader_epoch < replica.leader_epoch
        return Row(
            interest, ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1, None
        )
    fetching = interest.fetching
    follower = fetching.follower >= 0
    if replica.leading is None and (follower or fetching.leader_only or replica.following is None):
        return Row(interest, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, None)
    try:
        log = replica.log
    except DiskError:
        # Its directory is offline; or, R13, it was to be created now, and there is no room.
        return Row(interest, ErrorCode.KAFKA_STORAGE_ERROR, -1, -1, None)
    offset = interest.offset
    watermark = stable = replica.high_watermark
    if log.producers.transactions is not None:
        stable = log.last_stable_offset(watermark)
    committed = fetching.committed
    if committed:
        interest.seen_stable = stable
    if offset < log.log_start_offset:
        return Row(interest, ErrorCode.OFFSET_OUT_OF_RANGE, watermark, log.log_start_offset, None)
    if interest.last_fetched_epoch >= 0:
        # R1: before the range, because a follower that is ahead of this log must hear where the histories part.
        epoch, end = log.epochs.end_of(interest.last_fetched_epoch, log.next_offset)
        if end < 0:
            # Nothing is known of that epoch or any before it: the caller's history is not ours.
            return Row(interest, ErrorCode.OFFSET_OUT_OF_RANGE, watermark, log.log_start_offset, None)
        if epoch < interest.last_fetched_epoch or end < offset:
            return Row(interest, 0, watermark, log.log_start_offset, None, (epoch, end), stable)
    if offset > log.next_offset:
        # The leader may have it: then it comes, and nobody who reads here should go back to the start.
        code = (
            ErrorCode.OFFSET_OUT_OF_RANGE if replica.leading is not None else ErrorCode.OFFSET_NOT_AVAILABLE
        )
        return Row(interest, code, watermark, log.log_start_offset, None)
    if fetching.rack and (nearer := fetching.sessions.nearer(replica, fetching.rack, offset)) >= 0:
        return Row(
            interest,
            0,
            watermark,
            log.log_start_offset,
            None,
            None,
            stable,
            [] if committed else None,
            nearer,
        )
    limit = stable if committed else watermark
    if follower:
        if not interest.is_told:
            # Only now: of a history that has parted from this one nothing counts.
            if not fetching.sessions.follower_at(interest, replica):
                return Row(interest, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, None)
            interest.is_told = True
            watermark = replica.high_watermark
        limit = log.next_offset
        if replica.config.leader_replication_throttled_replicas:
            return _throttled(interest, replica, bytes_left, whole_first, stable)
    data = None
    aborted: list[Ended] | None = None
    if bytes_left > 0 or whole_first:
        try:
            data = log.slice(
                offset,
                limit,
                min(interest.bytes_max, bytes_left),
                whole_first=whole_first,
            )
            if committed:
                aborted = log.aborted(offset, stable, data) if data is not None else []
        except DiskError as error:
            return _unreadable(interest, log, error)
    return Row(interest, 0, watermark, log.log_start_offset, data, None, stable, aborted)


def _throttled(interest: Interest, replica: Replica, bytes_left: int, whole_first: bool, stable: int) -> Row:
    """A follower's look at a partition whose topic has a limit for copies."""
    throttling = interest.fetching.sessions.replication_throttle
    log, data = replica.log, None
    slow = throttling.is_slow_leader(replica, interest.fetching.follower)
    if (bytes_left > 0 or whole_first) and not (slow and throttling.leader_wait_ms()):
        try:
            data = log.slice(
                interest.offset, log.next_offset, min(interest.bytes_max, bytes_left), whole_first=whole_first
            )
        except DiskError as error:
            return _unreadable(interest, log, error)
    if slow and data is not None:
        throttling.handed_out.take(data.size)
    return Row(interest, 0, replica.high_watermark, log.log_start_offset, data, None, stable)


def _unreadable(interest: Interest, log: PartitionLog, error: DiskError) -> Row:
    """Of this partition alone: others in the same answer, and others' answers, are not to suffer."""
    interest.fetching.sessions.read_failed(log.directory, error)
    damaged = isinstance(error, DamagedFile)
    return Row(
        interest, ErrorCode.CORRUPT_MESSAGE if damaged else ErrorCode.KAFKA_STORAGE_ERROR, -1, -1, None
    )
