"""What a leader knows of its followers, and what follows from it: how far records count, and who is in sync (R3, R4).

A record counts (is below the high watermark) once every member of the ISR has it. The ISR is what the controller has
committed; while a change of it is under way, members of the old and the new one are waited for alike, so whichever of them
becomes true, nothing was acknowledged that one of its members lacks. With fewer members than `min.insync.replicas`
nothing more counts at all.

A follower's end is the offset that it fetches from: it has everything before. One is in sync while it reaches the leader's end
within `replica.lag.time.max.ms`, again and again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

#: Of a follower that has not been heard of yet.
UNKNOWN: Final = -1


class Partition(Protocol):
    """What the metadata says of a partition, as far as its leader needs it."""

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
        #: It has everything before this offset.
        self.end = UNKNOWN
        #: The life of the broker that said so.
        self.epoch = UNKNOWN
        #: Its last fetch, and where the leader's log ended then.
        self.asked_ms = now_ms
        self.asked_end = UNKNOWN
        #: When it last had all that the leader had. A new leader gives everybody the benefit of the doubt.
        self.caught_up_ms = now_ms

    def fetched(self, offset: int, leader_end: int, epoch: int, now_ms: int) -> None:
        if offset >= leader_end:
            self.caught_up_ms = now_ms
        elif offset >= self.asked_end >= 0:
            # What it asks for now is all that there was when it asked before.
            self.caught_up_ms = max(self.caught_up_ms, self.asked_ms)
        self.end = offset
        self.epoch = epoch
        self.asked_ms = now_ms
        self.asked_end = leader_end


class LeaderState:
    __slots__ = (
        "behind_ms", "counted", "epoch_start", "followers", "isr", "isr_min", "node_id", "partition_epoch", "pending",
        "replicas",
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
        #: The ISR that the controller was asked for, until its answer is in the image.
        self.pending: tuple[int, ...] | None = None
        self.isr_min = min(isr_min, len(partition.replicas))
        #: Where the log ended when this leader's epoch began; UNKNOWN until the log is open.
        self.epoch_start = UNKNOWN
        #: Since when some member of the ISR lacks something; -1 while all have everything.
        self.behind_ms = -1
        self._count()

    #: The followers that are waited for.
    counted: tuple[Follower, ...]

    def _count(self) -> None:
        if not self.followers:
            self.counted = ()
            return
        members: Iterable[int] = self.isr if self.pending is None else {*self.isr, *self.pending}
        self.counted = tuple(self.followers[each] for each in sorted(members) if each in self.followers)

    @property
    def has_enough(self) -> bool:
        """R8: whether the ISR is large enough for a record to count."""
        return len(self.isr) >= self.isr_min

    def bound(self, end: int) -> int:
        """How far the high watermark may go, when this replica's own records count up to `end`."""
        if len(self.isr) < self.isr_min:
            return UNKNOWN
        for follower in self.counted:
            if follower.end < end:
                end = follower.end
        return end

    def all_have(self, end: int) -> bool:
        return all(follower.end >= end for follower in self.counted)

    def change(self, partition: Partition, isr_min: int, now_ms: int) -> None:
        """The partition is now so; this replica still leads it, in the same epoch."""
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
            # Whatever was asked for was asked of the partition as it was before: it was granted, or never will be.
            self.pending = None
        self.partition_epoch = partition.partition_epoch
        self._count()

    # --- the ISR ----------------------------------------------------------------------------------------------

    def ask_for(self, isr: tuple[int, ...]) -> None:
        self.pending = isr
        self._count()

    def refused(self) -> None:
        """The controller did not grant what was asked for, and never will."""
        self.pending = None
        self._count()

    def may_join(self, follower: Follower, high_watermark: int) -> bool:
        """R3: one who has everything that counts, and has come as far as this leader's own epoch."""
        return (
            self.pending is None
            and follower.node_id not in self.isr
            and follower.end >= high_watermark
            and follower.end >= self.epoch_start >= 0
        )

    def laggards(self, end: int, lag_max_ms: int, now_ms: int) -> list[int]:
        """Members of the ISR that have not had everything for too long."""
        return [
            each
            for each in self.isr
            if (follower := self.followers.get(each)) is not None
            and follower.end < end
            and now_ms - max(follower.caught_up_ms, self.behind_ms) > lag_max_ms
        ]
