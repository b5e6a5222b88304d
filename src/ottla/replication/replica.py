"""A replica of a partition on this broker: its log, its high watermark, its role, and who waits for it to move.

It leads (`leading` is set), follows another (`following` is set), or neither: while the partition has no leader, or while this
broker does not belong to the cluster.

The high watermark is where consumers stop reading (E3): up to it every replica in sync has the records. Of a leader's own
records those count that are in its log, or under the durable policy those that are synced, so that a consumer never sees a
record that a power cut could take back (B5). It never moves backwards. Consumers of committed records stop at the last
stable offset, which is not above it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ottla.config.topic import TopicConfig
from ottla.log.partition_log import PartitionLog
from ottla.ports.disk import DiskError
from ottla.replication.leader_state import LeaderState

if TYPE_CHECKING:
    from ottla.log.segment import Segment
    from ottla.replication.follower_state import FollowerState


class Watcher(Protocol):
    """A fetch's interest in this partition; told when there may be something new."""

    def moved(self) -> None: ...


class Replica:
    __slots__ = (
        "_log", "config", "durable", "following", "gone", "high_watermark", "is_being_cut", "leader_epoch", "leading", "moved",
        "number", "offline", "opener", "produces", "since_flush_ms", "tail", "topic", "waiting", "waiting_here", "watchers",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        number: int,
        leader_epoch: int,
        config: TopicConfig,
        opener: Callable[[Replica], PartitionLog],
    ) -> None:
        self.topic = topic
        self.number = number
        self.leader_epoch = leader_epoch
        self.config = config
        self.durable = config.durable
        #: Set when the topic is deleted, for those who still hold on to it.
        self.gone = False
        #: Why its log cannot be had: the directory that it lies in has failed. None if nothing of that kind happened.
        self.offline: str | None = None
        #: What it knows as a leader; None while it is none.
        self.leading: LeaderState | None = None
        #: Its state as a follower; None while it does not follow.
        self.following: FollowerState | None = None
        #: A plain slot because every fetch reads it. Only this module assigns it (tests/replication/test_high_watermark.py).
        self.high_watermark = 0
        #: Whether its log was cut and that is not durable yet: nothing is written to it meanwhile, in whatever role.
        self.is_being_cut = False
        self._log: PartitionLog | None = None
        self.opener = opener
        #: Produce requests that wait until their batches are validated (`broker/requests/produce_queue.py`), first come first; None if
        #: there are none.
        self.produces: deque[Any] | None = None
        #: Produces that wait for the high watermark: (offset it must reach, waiting, row of the answer), by offset.
        self.waiting: deque[tuple[int, Any, dict[str, Any]]] = deque()
        #: The same for those that wait for this broker's own disk alone (acks=1, durable policy).
        self.waiting_here: deque[tuple[int, Any, dict[str, Any]]] = deque()
        #: Consumers' fetches that look at this partition. A dict for its order and O(1) removal.
        self.watchers: dict[Watcher, None] = {}
        #: Followers' fetches, which look at the end of the log instead of the high watermark.
        self.tail: dict[Watcher, None] = {}
        #: Whether it is in the broker's list of partitions whose watchers must be told.
        self.moved = False
        #: When the oldest record that no flush has covered yet was written; -1 if there is none.
        self.since_flush_ms = -1

    @property
    def log(self) -> PartitionLog:
        """The log, created when it is first needed: a topic of ten thousand partitions costs nothing until then.

        Raises DiskError if it cannot be created, and while its directory is offline.
        """
        log = self._log
        if log is None:
            if self.offline is not None:
                raise DiskError(self.offline)
            log = self.opener(self)
            self.adopt(log)
        return log

    @property
    def opened(self) -> bool:
        return self._log is not None

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset(self.high_watermark)

    def settle(self) -> None:
        """Forget what was needed of ended transactions while their markers did not count. Readers do that by the way, but not every
        replica has any."""
        log = self.log
        if log.producers.transactions is not None:
            log.last_stable_offset(self.high_watermark)

    @property
    def own_end(self) -> int:
        """How far this replica's own records count."""
        log = self.log
        return log.flushed_offset if self.durable else log.next_offset

    def adopt(self, log: PartitionLog) -> None:
        """Take over an opened log. The checkpointed high watermark may lie outside of it: before its start or after its end."""
        self._log = log
        self.high_watermark = max(log.log_start_offset, min(self.high_watermark, log.next_offset))
        if self.leading is not None:
            self._begin_epoch(self.leading, log)
            self.advance()

    # --- roles ------------------------------------------------------------------------------------------------

    def lead(self, leading: LeaderState, leader_epoch: int) -> None:
        self.leading, self.following = leading, None
        self.leader_epoch = leader_epoch
        if self._log is not None:
            self._begin_epoch(leading, self._log)
            self.advance()

    def _begin_epoch(self, leading: LeaderState, log: PartitionLog) -> None:
        leading.epoch_start = log.next_offset
        # If its beginning is missing, nobody has more: from now on that is how the partition begins.
        log.should_begin_at = -1
        if leading.followers:
            # Whoever follows must learn where the epochs before it ended, even if this one never writes a record.
            log.lead(self.leader_epoch)

    def follow(self, following: FollowerState, leader_epoch: int) -> None:
        self.leading, self.following = None, following
        self.leader_epoch = leader_epoch

    def rest(self, leader_epoch: int) -> None:
        """Neither lead nor follow."""
        self.leading = self.following = None
        self.leader_epoch = leader_epoch

    # --- the log ----------------------------------------------------------------------------------------------

    def lose(self, reason: str) -> None:
        """The directory of the log is offline: there is no log any more until the next start."""
        self.offline = reason
        if self._log is not None:
            self._log.failed = True
            self._log.close()
            self._log = None

    def relocate(self, log: PartitionLog) -> None:
        """The same log at another place: nothing is seen of it."""
        self._log = log

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self.durable = config.durable
        if self._log is not None:
            self._log.config = config

    # --- the high watermark -----------------------------------------------------------------------------------

    def restore(self, high_watermark: int) -> None:
        """Set the high watermark to its checkpoint, before the log is opened. `adopt` limits it to the log."""
        assert self._log is None, "the log is open: the checkpoint is older"
        self.high_watermark = high_watermark

    def advance(self) -> bool:
        """As leader, move the high watermark to where the log and the followers allow it. True if it moved."""
        leading = self.leading
        if leading is None:
            return False
        end = leading.bound(self.own_end)
        if end <= self.high_watermark:
            return False
        assert end <= self.log.next_offset, "the high watermark is not above the end of the log"
        self.high_watermark = end
        return True

    def advance_alone(self, end: int) -> None:
        """The same for a leader that is the only member of the ISR, after an append. `end` is the end of the log."""
        assert end >= self.high_watermark, "the high watermark moves backwards only by truncation"
        self.high_watermark = end

    def learn(self, high_watermark: int) -> bool:
        """As follower, take over the leader's high watermark as far as this log reaches. True if it moved."""
        assert self.leading is None, "a leader decides about its high watermark itself"
        end = min(high_watermark, self.log.next_offset)
        if end <= self.high_watermark:
            return False
        self.high_watermark = end
        return True

    def truncate(self, offset: int, now_ms: int) -> list[Segment]:
        """As follower, remove all records from `offset` on. Returns the removed segments, whose files the caller deletes.

        The high watermark moves backwards only here and in `restart_at`. Truncation below it follows an unclean leader election.
        """
        assert self.leading is None, "a leader does not truncate its log"
        log = self.log
        self.high_watermark = min(self.high_watermark, offset)
        dropped = log.truncate(max(offset, log.log_start_offset), now_ms)
        # The log removes whole batches, so that it may end before `offset`.
        self.high_watermark = min(self.high_watermark, log.next_offset)
        return dropped

    def restart_at(self, offset: int, now_ms: int) -> list[Segment]:
        """As follower, remove all records and start the log at `offset`. Returns the removed segments, as `truncate` does."""
        assert self.leading is None, "a leader does not truncate its log"
        dropped = self.log.begin_at(offset, now_ms)
        self.high_watermark = offset
        assert self.log.next_offset == offset, "the log is empty"
        return dropped
