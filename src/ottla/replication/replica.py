"""A replica of a partition on this broker: its log, its high watermark, its role, and the requests that wait
for it.

It is leader (`leading` is set), follower (`following` is set), or neither: while the partition has no leader,
or while this broker is not part of the cluster.

Consumers read up to the high watermark (E3): every replica in sync has the records below it. The leader's own
records may be committed once they are in its log, or under the durable policy once they are synced. So a
consumer never sees a record that a power cut could remove (B5). Consumers of committed transactions read up
to the last stable offset, which is not above the high watermark.

`Replica` owns the high watermark. These methods assign it, and it moves backwards only by truncation:

- `restore` and `adopt`: from the checkpoint, when the log is opened
- `advance` and `advance_alone`: as leader
- `learn`: as follower, from the leader
- `truncate` and `restart_at`: as follower, with its log
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
    """A fetch of this partition, which is notified when there may be new records."""

    def moved(self) -> None: ...


class Replica:
    __slots__ = (
        "_log", "config", "durable", "following", "gone", "high_watermark", "is_being_cut", "leader_epoch",
        "leading", "moved", "number", "offline", "opener", "produces", "since_flush_ms", "tail", "topic",
        "waiting", "waiting_here", "watchers",
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
        #: Set when the topic is deleted: requests may still hold this object.
        self.gone = False
        #: Why the log is offline, for instance the failure of its log directory; None if it is online.
        self.offline: str | None = None
        #: Its state as leader; None while it does not lead.
        self.leading: LeaderState | None = None
        #: Its state as a follower; None while it does not follow.
        self.following: FollowerState | None = None
        #: A plain slot because every fetch reads it.
        #: Only this module assigns it (`tests/replication/test_high_watermark.py`).
        self.high_watermark = 0
        #: Whether the log was truncated and that is not durable yet. Nothing is appended meanwhile, in any
        #: role.
        self.is_being_cut = False
        self._log: PartitionLog | None = None
        self.opener = opener
        #: Produce requests that wait for the validation of their batches, in order of arrival
        #: (`broker/requests/produce_queue.py`); None if there are none.
        self.produces: deque[Any] | None = None
        #: Delayed produces: (high watermark to reach, waiting produce, row of the answer), by offset.
        self.waiting: deque[tuple[int, Any, dict[str, Any]]] = deque()
        #: The same for produces that wait only for this broker's own sync (acks=1, durable policy).
        self.waiting_here: deque[tuple[int, Any, dict[str, Any]]] = deque()
        #: Consumers' fetches of this partition. A dict keeps their order and removes one in O(1).
        self.watchers: dict[Watcher, None] = {}
        #: Followers' fetches, which wait for the log end offset instead of the high watermark.
        self.tail: dict[Watcher, None] = {}
        #: Whether it is in the broker's list of partitions whose watchers are to be notified.
        self.moved = False
        #: When the oldest record that is not flushed was written; -1 if there is none.
        self.since_flush_ms = -1

    @property
    def log(self) -> PartitionLog:
        """The log, created on first use: a topic of ten thousand partitions costs nothing until then.

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
        """Drop ended transactions whose markers are committed. Reads do the same, but not every replica is
        read."""
        log = self.log
        if log.producers.transactions is not None:
            log.last_stable_offset(self.high_watermark)

    @property
    def own_end(self) -> int:
        """The log end offset, or under the durable policy the flushed offset."""
        log = self.log
        return log.flushed_offset if self.durable else log.next_offset

    def adopt(self, log: PartitionLog) -> None:
        """Use an opened log, and limit the checkpointed high watermark to its offsets."""
        self._log = log
        self.high_watermark = max(log.log_start_offset, min(self.high_watermark, log.next_offset))
        if self.leading is not None:
            self._begin_epoch(self.leading, log)
            self.advance()

    # --- roles ----------------------------------------------------------------------------------------------

    def lead(self, leading: LeaderState, leader_epoch: int) -> None:
        self.leading, self.following = leading, None
        self.leader_epoch = leader_epoch
        if self._log is not None:
            self._begin_epoch(leading, self._log)
            self.advance()

    def _begin_epoch(self, leading: LeaderState, log: PartitionLog) -> None:
        leading.epoch_start = log.next_offset
        # If the beginning of the log is missing, no other replica has it: the partition starts here.
        log.should_begin_at = -1
        if leading.followers:
            # Followers must find the end of earlier epochs, also if this epoch never gets a record.
            log.lead(self.leader_epoch)

    def follow(self, following: FollowerState, leader_epoch: int) -> None:
        self.leading, self.following = None, following
        self.leader_epoch = leader_epoch

    def rest(self, leader_epoch: int) -> None:
        """End the role: neither lead nor follow."""
        self.leading = self.following = None
        self.leader_epoch = leader_epoch

    # --- the log --------------------------------------------------------------------------------------------

    def lose(self, reason: str) -> None:
        """The log is offline until the next start of the broker."""
        self.offline = reason
        if self._log is not None:
            self._log.failed = True
            self._log.close()
            self._log = None

    def relocate(self, log: PartitionLog) -> None:
        """Use a copy of the same log in another log directory."""
        self._log = log

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self.durable = config.durable
        if self._log is not None:
            self._log.config = config

    # --- the high watermark ---------------------------------------------------------------------------------

    def restore(self, high_watermark: int) -> None:
        """Set the high watermark to its checkpoint, before the log is opened. `adopt` limits it to the
        log."""
        assert self._log is None, "the log is open: the checkpoint is older"
        self.high_watermark = high_watermark

    def advance(self) -> bool:
        """As leader, move the high watermark as far as log and followers allow. True if it moved."""
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
        """As leader and only member of the ISR, after an append. `end` is the log end offset."""
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
        """As follower, remove all records from `offset` on. The caller deletes the files of the returned
        segments.

        Truncation below the high watermark follows an unclean leader election.
        """
        assert self.leading is None, "a leader does not truncate its log"
        log = self.log
        self.high_watermark = min(self.high_watermark, offset)
        dropped = log.truncate(max(offset, log.log_start_offset), now_ms)
        # The log removes whole batches, so that it may end before `offset`.
        self.high_watermark = min(self.high_watermark, log.next_offset)
        return dropped

    def restart_at(self, offset: int, now_ms: int) -> list[Segment]:
        """As follower, remove all records and start the log at `offset`. Returns the removed segments."""
        assert self.leading is None, "a leader does not truncate its log"
        dropped = self.log.begin_at(offset, now_ms)
        self.high_watermark = offset
        assert self.log.next_offset == offset, "the log is empty"
        return dropped
