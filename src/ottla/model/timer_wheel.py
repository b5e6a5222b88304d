"""Deadlines of waiting requests, in buckets of 8 ms: adding and cancelling take constant time.

Almost every deadline is cancelled long before it is due: a produce is acknowledged in a millisecond and waits
for at most 30 s. A heap that keeps cancelled entries would keep 30 s of completed requests in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Final, Protocol

_BUCKET_BITS = 3
#: Buckets before empty ones are removed: two minutes of them.
_BUCKETS_MIN = 16_384
#: Deadlines per call of `expire`: clients can make very many due at the same time.
EXPIRED_PER_TURN_MAX: Final = 200
#: Interval of periodic work whose own interval could never be read.
_INTERVAL_MS: Final = 1000
#: The pause before retried work that raised is called again.
_AGAIN_MS: Final = 1000


class Timed(Protocol):
    """An object with a deadline. `bucket` belongs to the timer wheel; -1 while it is not waiting.

    If `expire` raises and the class has `is_retried`, `expire` is called again after a pause. That is for
    objects that keep a chain of work going. They must tolerate a second call.
    """

    bucket: int

    def expire(self, now_ms: int) -> None: ...


class Later:
    """A function that is called once, after a delay."""

    __slots__ = ("action", "bucket")

    is_retried: Final = True

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action
        self.bucket = -1

    def expire(self, now_ms: int) -> None:
        self.action()


def _raise(_what: str, error: Exception) -> None:
    raise error


class TimerWheel:
    """`failed(what, error)` is called with the exception of a handler; the others expire nevertheless."""

    __slots__ = ("_buckets", "_expiring", "_heap", "_number", "_sweep_at", "failed", "sooner")

    def __init__(self, failed: Callable[[str, Exception], None] = _raise) -> None:
        self.failed = failed
        self._buckets: dict[int, dict[Timed, None]] = {}
        self._heap: list[int] = []
        #: The rest of a due bucket, and its number.
        self._expiring: Iterator[Timed] | None = None
        self._number = 0
        #: Number of buckets at which empty ones are removed.
        self._sweep_at = _BUCKETS_MIN
        #: A deadline before all others was added: the owner of the alarm must read `next_ms` again and clear
        #: this.
        self.sooner = False

    def add(self, timed: Timed, deadline_ms: int) -> None:
        # Rounded up: a deadline can be a bucket late, never early.
        number = (deadline_ms >> _BUCKET_BITS) + 1
        bucket = self._buckets.get(number)
        if bucket is None:
            if len(self._heap) >= self._sweep_at:
                self.sweep()
            bucket = self._buckets[number] = {}
            heappush(self._heap, number)
            if self._heap[0] == number:
                self.sooner = True
        bucket[timed] = None
        timed.bucket = number

    def cancel(self, timed: Timed) -> None:
        bucket = self._buckets.get(timed.bucket)
        if bucket is not None:
            bucket.pop(timed, None)
        timed.bucket = -1

    def sweep(self) -> None:
        """Remove empty buckets. Clients can ask for deadlines in weeks and cancel them.

        Buckets are small and lie between larger objects in memory. After a flood of requests each of them
        would keep the memory around it from being released. So this is also called every few seconds.
        """
        for number in [number for number, bucket in self._buckets.items() if not bucket]:
            del self._buckets[number]
        # In place, because `expire` holds a reference. A sorted list is a heap.
        self._heap[:] = sorted(self._buckets)
        self._sweep_at = max(_BUCKETS_MIN, 2 * len(self._heap))

    @property
    def next_ms(self) -> int | None:
        """The time of the next call of `expire`, or None."""
        if self._expiring is not None:
            return self._number << _BUCKET_BITS
        heap, buckets = self._heap, self._buckets
        while heap:
            number = heap[0]
            if buckets[number]:
                return number << _BUCKET_BITS
            del buckets[number]
            heappop(heap)
        return None

    def expire(self, now_ms: int) -> None:
        """Expire what is due, in the order of the buckets, up to a maximum; `next_ms` is then in the past."""
        left = EXPIRED_PER_TURN_MAX
        while left:
            if self._expiring is None:
                if not self._heap or self._heap[0] << _BUCKET_BITS > now_ms:
                    return
                self._number = heappop(self._heap)
                self._expiring = iter(self._buckets.pop(self._number))
            for timed in self._expiring:
                # An earlier handler may have cancelled it.
                if timed.bucket == self._number:
                    self._expire(timed, now_ms)
                    left -= 1
                    if not left:
                        return
            self._expiring = None

    def _expire(self, timed: Timed, now_ms: int) -> None:
        timed.bucket = -1
        try:
            timed.expire(now_ms)
        except Exception as error:
            if timed.bucket < 0 and getattr(timed, "is_retried", False):
                self.add(timed, now_ms + _AGAIN_MS)
            self.failed(f"a timer ({_name(timed)})", error)


def _name(timed: Timed) -> str:
    """The name of the work, for the log."""
    action = getattr(timed, "action", None) or getattr(timed, "_action", None)
    return f"{type(timed).__name__} {getattr(action, '__qualname__', '')}".rstrip()


class Periodic:
    """Work that is done periodically. The next time is set before the work begins, so failed work is done
    again.
    """

    __slots__ = ("_last_ms", "action", "bucket", "interval_ms", "timers")

    def __init__(
        self, timers: TimerWheel, interval_ms: Callable[[], int], action: Callable[[int], None]
    ) -> None:
        self.timers = timers
        self.interval_ms = interval_ms
        self.action = action
        self.bucket = -1
        #: The last interval.
        self._last_ms = _INTERVAL_MS

    def expire(self, now_ms: int) -> None:
        try:
            self._last_ms = self.interval_ms()
        except Exception as error:
            self.timers.add(self, now_ms + self._last_ms)
            self.timers.failed(f"the interval of {_name(self)}", error)
        else:
            self.timers.add(self, now_ms + self._last_ms)
        self.action(now_ms)
