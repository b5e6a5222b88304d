"""Rates of something by key: a token bucket for each, in bounded memory."""

from __future__ import annotations

from collections.abc import Hashable


class RateLimiter:
    """At most `rate` a second for each key, and `burst` at once after a rest. Time is an argument.

    A bucket is one number: the time at which its tokens are all used up. A key that is not remembered has a
    full bucket, so full ones are forgotten. With more than `keys_max` keys in use the oldest are forgotten
    too.
    """

    __slots__ = ("_keys_max", "_used_until_ms")

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._used_until_ms: dict[Hashable, float] = {}

    def wait_ms(self, key: Hashable, now_ms: int) -> float:
        """How long the next one of this key would have to wait; 0 if it need not. Takes nothing."""
        return max(0.0, self._used_until_ms.get(key, 0.0) - now_ms)

    def take(
        self, key: Hashable, now_ms: int, *, rate: float, burst: float, wait_ms_max: float = 0
    ) -> float | None:
        """Take a token: how long to wait for it, or None, and none is taken, if that is longer than
        `wait_ms_max`.
        """
        interval_ms = 1000 / rate
        known = self._used_until_ms
        # The bucket of `burst` tokens is full when its time is this far in the past.
        used_until_ms = max(known.get(key, 0.0), now_ms - (burst - 1) * interval_ms)
        wait_ms = used_until_ms - now_ms
        if wait_ms > wait_ms_max:
            return None
        if key not in known and len(known) >= self._keys_max:
            self._forget(now_ms)
        known[key] = used_until_ms + interval_ms
        return max(0.0, wait_ms)

    def _forget(self, now_ms: int) -> None:
        """Keys whose buckets have filled up again, or at least a quarter of all."""
        known = self._used_until_ms
        # One that has not been used for two seconds has most of its tokens.
        for key in [key for key, until_ms in known.items() if until_ms < now_ms - 2000]:
            del known[key]
        excess = len(known) - self._keys_max * 3 // 4
        for key in list(known)[: max(0, excess)]:
            del known[key]

    def __len__(self) -> int:
        return len(self._used_until_ms)
