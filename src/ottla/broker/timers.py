"""Deadlines of waiting requests, in buckets of 8 ms, so that adding and cancelling cost the same however many wait.

Almost every deadline is cancelled long before it comes (a produce is acknowledged in a millisecond and waits at most
30 s); a heap that keeps cancelled entries would keep 30 s of dead requests alive.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import islice
from typing import Final, Protocol

_BUCKET_BITS = 3
#: So many buckets are kept before it is looked whether they have something: two minutes of them.
_BUCKETS_MIN = 16_384
#: When periodic work comes again whose interval could not be read, not even once.
_INTERVAL_MS: Final = 1000
#: Deadlines that expire in one turn: 10 to 100 µs each.
_EXPIRED_AT_ONCE: Final = 200
#: The pause after something has raised that is done again.
_AGAIN_MS: Final = 1000


class Timed(Protocol):
    """Something with a deadline. `bucket` belongs to the timers; -1 while not waiting.

    If `expire` raises, and the class says `is_retried`, it is called again after a pause. That is for what keeps a chain of work
    going, which would otherwise stop for good; it must bear being called twice.
    """

    bucket: int

    def expire(self, now_ms: int) -> None: ...


class Later:
    """Something that is done once, after a delay."""

    __slots__ = ("action", "bucket")

    is_retried: Final = True

    def __init__(self, action: Callable[[], None]) -> None:
        self.action = action
        self.bucket = -1

    def expire(self, now_ms: int) -> None:
        self.action()


def _raise(_what: str, error: Exception) -> None:
    raise error


class Timers:
    """`failed(what, error)` is called with what a handler raised; the others expire nevertheless."""

    __slots__ = ("_buckets", "_heap", "_sweep_at", "failed", "sooner")

    def __init__(self, failed: Callable[[str, Exception], None] = _raise) -> None:
        self.failed = failed
        self._buckets: dict[int, dict[Timed, None]] = {}
        self._heap: list[int] = []
        #: With how many buckets those are looked for that have nothing any more.
        self._sweep_at = _BUCKETS_MIN
        #: A deadline was added before all others: whoever keeps the alarm must look at `next_ms` again and clear this.
        self.sooner = False

    def add(self, timed: Timed, deadline_ms: int) -> None:
        # Rounded up: a deadline may come a bucket late, never early.
        number = (deadline_ms >> _BUCKET_BITS) + 1
        bucket = self._buckets.get(number)
        if bucket is None:
            if len(self._heap) >= self._sweep_at:
                self._sweep()
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

    def _sweep(self) -> None:
        """Clients may ask for weeks, and cancel: the bucket of such a deadline would be there for weeks."""
        for number in [number for number, bucket in self._buckets.items() if not bucket]:
            del self._buckets[number]
        # In place: whoever rings holds on to it. What is sorted is a heap.
        self._heap[:] = sorted(self._buckets)
        self._sweep_at = max(_BUCKETS_MIN, 2 * len(self._heap))

    @property
    def next_ms(self) -> int | None:
        """When `expire` has something to do, or None."""
        heap, buckets = self._heap, self._buckets
        while heap:
            number = heap[0]
            if buckets[number]:
                return number << _BUCKET_BITS
            del buckets[number]
            heappop(heap)
        return None

    def expire(self, now_ms: int) -> None:
        """Let expire what has reached its deadline, as many as fit into one turn. `next_ms` has passed if there are more."""
        heap, buckets = self._heap, self._buckets
        left = _EXPIRED_AT_ONCE
        while left > 0 and heap and (number := heap[0]) << _BUCKET_BITS <= now_ms:
            bucket = buckets[number]
            if not bucket:
                del buckets[heappop(heap)]
                continue
            for timed in list(islice(bucket, left)):
                # One that expired before may have cancelled it.
                if timed.bucket == number:
                    left -= 1
                    del bucket[timed]
                    timed.bucket = -1
                    try:
                        timed.expire(now_ms)
                    except Exception as error:
                        if timed.bucket < 0 and getattr(timed, "is_retried", False):
                            self.add(timed, now_ms + _AGAIN_MS)
                        self.failed(f"a timer ({_name(timed)})", error)


def _name(timed: Timed) -> str:
    """What it is about, for the log."""
    action = getattr(timed, "action", None) or getattr(timed, "_action", None)
    return f"{type(timed).__name__} {getattr(action, '__qualname__', '')}".rstrip()


class Periodic:
    """Something that is done again and again. The next time is set before the work begins: work that fails is done again."""

    __slots__ = ("_last_ms", "action", "bucket", "interval_ms", "timers")

    def __init__(self, timers: Timers, interval_ms: Callable[[], int], action: Callable[[int], None]) -> None:
        self.timers = timers
        self.interval_ms = interval_ms
        self.action = action
        self.bucket = -1
        #: The interval as it was last time.
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
