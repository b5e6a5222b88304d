"""The leader's view of its followers: the bound of the high watermark, and who is in sync (R3, R4).

A record is committed (below the high watermark) once every member of the ISR has it. The ISR is the one that
the controller has committed. While a change of it is pending, the leader waits for the members of the old and
the new ISR. So no record is acknowledged that a member of either lacks. With fewer members than
`min.insync.replicas` the high watermark does not move.

A follower's log end offset is the offset that it fetches from: it has everything before. A follower is in
sync as long as it reaches the leader's log end offset at least every `replica.lag.time.max.ms`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

#: The position of a follower that has not fetched yet.
UNKNOWN: Final = -1


class Partition(Protocol):
    """What the leader needs of a partition's metadata."""

    @property
    def replicas(self) -> tuple[int, ...]: ...
    @property
    def isr(self) -> tuple[int, ...]: ...
    @property
    def partition_epoch(self) -> int: ...


class Follower:
    __slots__ = ("asked_end", "asked_ms", "caught_up_ms", "end", "epoch", "node_id")

    def __init__(self, node_id: int, now_ms: int) -> None:
        self.node_id = node_id
        #: Its log end offset: it has everything before.
        self.end = UNKNOWN
        #: The broker epoch of its last fetch.
        self.epoch = UNKNOWN
        #: The time of its last fetch, and the leader's log end offset at that time.
        self.asked_ms = now_ms
        self.asked_end = UNKNOWN
        #: When it last had all records of the leader. A new leader starts with the current time for all
        #: followers.
        self.caught_up_ms = now_ms

    def fetched(self, offset: int, leader_end: int, epoch: int, now_ms: int) -> None:
        if offset >= leader_end:
            self.caught_up_ms = now_ms
        elif offset >= self.asked_end >= 0:
            # It has everything that the leader had at its previous fetch.
            self.caught_up_ms = max(self.caught_up_ms, self.asked_ms)
        self.end = offset
        self.epoch = epoch
        self.asked_ms = now_ms
        self.asked_end = leader_end


class LeaderState:
    __slots__ = (
        "behind_ms", "counted", "epoch_start", "followers", "isr", "isr_min", "node_id", "partition_epoch",
        "pending", "replicas",
    )  # fmt: skip

    def __init__(self, node_id: int, partition: Partition, isr_min: int, now_ms: int) -> None:
        self.node_id = node_id
        self.replicas = partition.replicas
        #: All replicas but this one.
        self.followers: dict[int, Follower] = {
            each: Follower(each, now_ms) for each in partition.replicas if each != node_id
        }
        self.isr = partition.isr
        self.partition_epoch = partition.partition_epoch
        #: The ISR requested from the controller, until the image has the outcome.
        self.pending: tuple[int, ...] | None = None
        self.isr_min = min(isr_min, len(partition.replicas))
        #: The log end offset at the start of this leader epoch; UNKNOWN until the log is open.
        self.epoch_start = UNKNOWN
        #: Since when a member of the ISR lacks records; -1 while all members have everything.
        self.behind_ms = -1
        self._count()

    #: The followers that the high watermark waits for.
    counted: tuple[Follower, ...]

    def _count(self) -> None:
        if not self.followers:
            self.counted = ()
            return
        members: Iterable[int] = self.isr if self.pending is None else {*self.isr, *self.pending}
        self.counted = tuple(self.followers[each] for each in sorted(members) if each in self.followers)

    @property
    def has_enough(self) -> bool:
        """R8: whether the ISR is large enough to commit records."""
        return len(self.isr) >= self.isr_min

    def bound(self, end: int) -> int:
        """The highest possible high watermark, if the leader's own records allow `end`."""
        if len(self.isr) < self.isr_min:
            return UNKNOWN
        for follower in self.counted:
            if follower.end < end:
                end = follower.end
        return end

    def all_have(self, end: int) -> bool:
        return all(follower.end >= end for follower in self.counted)

    def change(self, partition: Partition, isr_min: int, now_ms: int) -> None:
        """The partition changed; this replica still leads it, in the same leader epoch."""
        self.replicas = partition.replicas
        before = self.followers
        self.followers = {
            each: before.get(each) or Follower(each, now_ms)
            for each in partition.replicas
            if each != self.node_id
        }
        self.isr = partition.isr
        self.isr_min = min(isr_min, len(partition.replicas))
        if partition.partition_epoch > self.partition_epoch:
            # The pending request named the partition epoch before: it was granted, or never will be.
            self.pending = None
        self.partition_epoch = partition.partition_epoch
        self._count()

    # --- the ISR --------------------------------------------------------------------------------------------

    def ask_for(self, isr: tuple[int, ...]) -> None:
        self.pending = isr
        self._count()

    def refused(self) -> None:
        """The controller refused the pending ISR for good."""
        self.pending = None
        self._count()

    def may_join(self, follower: Follower, high_watermark: int) -> bool:
        """R3: whether a follower has all committed records, and has reached the start of this leader
        epoch."""
        return (
            self.pending is None
            and follower.node_id not in self.isr
            and follower.end >= high_watermark
            and follower.end >= self.epoch_start >= 0
        )

    def laggards(self, end: int, lag_max_ms: int, now_ms: int) -> list[int]:
        """Members of the ISR that have not caught up within `lag_max_ms`."""
        return [
            each
            for each in self.isr
            if (follower := self.followers.get(each)) is not None
            and follower.end < end
            and now_ms - max(follower.caught_up_ms, self.behind_ms) > lag_max_ms
        ]
