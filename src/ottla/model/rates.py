"""Rate limits by key: one token bucket per key, in bounded memory."""

from __future__ import annotations

from collections.abc import Hashable


class RateLimiter:
    """At most `rate` per second for each key, and `burst` at once after a pause. Time is an argument.

    A bucket is one number: the time at which its tokens are used up. An unknown key has a full bucket, so
    full buckets are removed. Above `keys_max` keys the oldest are removed too.
    """

    __slots__ = ("_keys_max", "_used_until_ms")

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._used_until_ms: dict[Hashable, float] = {}

    def wait_ms(self, key: Hashable, now_ms: int) -> float:
        """How long the next token of this key takes; 0 if there is one. Takes none."""
        return max(0.0, self._used_until_ms.get(key, 0.0) - now_ms)

    def take(
        self, key: Hashable, now_ms: int, *, rate: float, burst: float, wait_ms_max: float = 0
    ) -> float | None:
        """Take a token: the time to wait for it. None, and no token is taken, if that is longer than
        `wait_ms_max`.
        """
        interval_ms = 1000 / rate
        known = self._used_until_ms
        # A bucket of `burst` tokens is full when its time is this far in the past.
        used_until_ms = max(known.get(key, 0.0), now_ms - (burst - 1) * interval_ms)
        wait_ms = used_until_ms - now_ms
        if wait_ms > wait_ms_max:
            return None
        if key not in known and len(known) >= self._keys_max:
            self._forget(now_ms)
        known[key] = used_until_ms + interval_ms
        return max(0.0, wait_ms)

    def _forget(self, now_ms: int) -> None:
        """Remove keys with full buckets, or at least a quarter of all keys."""
        known = self._used_until_ms
        # A bucket that was not used for two seconds has most of its tokens.
        for key in [key for key, until_ms in known.items() if until_ms < now_ms - 2000]:
            del known[key]
        excess = len(known) - self._keys_max * 3 // 4
        for key in list(known)[: max(0, excess)]:
            del known[key]

    def __len__(self) -> int:
        return len(self._used_until_ms)
