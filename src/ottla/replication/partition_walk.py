"""Periodic work on all partitions in slices, so that other requests run in between.

Used by `LogMaintenance` and `IsrUpdates`, which visit up to tens of thousands of partitions. A walk works on
the list of replicas at its start; the visitor checks whether a replica still exists.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from ottla.model.timer_wheel import TimerWheel

if TYPE_CHECKING:
    from ottla.replication.replica import Replica

#: The cost of a slice, in partitions that are only checked: well below a millisecond.
_SLICE_COST: Final = 256


class PartitionWalk:
    __slots__ = ("_left", "_timers", "_visit", "bucket")

    is_retried: Final = True

    def __init__(self, timers: TimerWheel, visit: Callable[[Replica, int], int]) -> None:
        """`visit(replica, now_ms)` returns its cost, in partitions that are only checked."""
        self._timers = timers
        self._visit = visit
        self._left: deque[Replica] = deque()
        self.bucket = -1

    @property
    def is_under_way(self) -> bool:
        return bool(self._left)

    def begin(self, replicas: Iterable[Replica], now_ms: int) -> None:
        """Start a walk with its first slice. Does nothing while another walk is under way."""
        if not self._left:
            self._left.extend(replicas)
            self.expire(now_ms)

    def expire(self, now_ms: int) -> None:
        """The next slice."""
        left = self._left
        budget = _SLICE_COST
        while left and budget > 0:
            replica = left.popleft()
            try:
                budget -= self._visit(replica, now_ms)
            except Exception as error:
                # The error concerns this partition only: the walk continues with the others.
                budget -= 1
                self._timers.failed(f"periodic work on {replica.topic}-{replica.number}", error)
        if left:
            self._timers.add(self, now_ms)
