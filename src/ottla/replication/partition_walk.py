"""Going over all partitions without holding up anybody: a slice now, the next one after others had their turn.

Owned by the upkeep, which walks over ten thousand partitions to find those that have something to be flushed or deleted.
A walk works on the list as it was when it began; whoever visits looks whether the partition is still there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from ottla.model.timer_wheel import TimerWheel

if TYPE_CHECKING:
    from ottla.replication.replica import Replica

#: What a slice may cost: so many partitions that are looked at and left alone, well below a millisecond.
_SLICE_COST: Final = 256


class PartitionWalk:
    __slots__ = ("_left", "_timers", "_visit", "bucket")

    is_retried: Final = True

    def __init__(self, timers: TimerWheel, visit: Callable[[Replica, int], int]) -> None:
        """`visit(replica, now_ms)` says what it cost, in partitions that are only looked at."""
        self._timers = timers
        self._visit = visit
        self._left: deque[Replica] = deque()
        self.bucket = -1

    @property
    def is_under_way(self) -> bool:
        return bool(self._left)

    def begin(self, replicas: Iterable[Replica], now_ms: int) -> None:
        """Go over these, the first slice at once; nothing new is begun while a walk is under way."""
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
                # Of this partition alone: the others are visited, and the next walk can begin.
                budget -= 1
                self._timers.failed(f"periodic work on {replica.topic}-{replica.number}", error)
        if left:
            self._timers.add(self, now_ms)
