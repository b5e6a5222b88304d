"""The wall clock of dates, as opposed to `now_ms`, the monotonic time of deadlines.

Time-outs use the time that the core is given, which nobody can set. Dates use the wall clock: the append time
of records, limits on their timestamps, the expiry of producer ids, retention.

One exception: a clock that is set forward makes all records look older. If that is a mistake, retention would
delete records for good. So retention uses the old time for one more hour.
"""

from __future__ import annotations

from typing import Final

#: A change from this size on is logged.
_LOGGED_MS: Final = 10_000
#: How long retention uses the old time after the clock was set forward.
_DISTRUST_MS: Final = 3_600_000


class WallClock:
    __slots__ = ("_distrusted_until_ms", "_trusted_ms", "ahead_ms")

    def __init__(self) -> None:
        #: How far the wall clock is ahead of the core's time.
        self.ahead_ms = 0
        #: The value that retention uses until the hour is over.
        self._trusted_ms = 0
        self._distrusted_until_ms = 0

    def set(self, ahead_ms: int, now_ms: int) -> str | None:
        """The wall clock is ahead of the core's time by `ahead_ms`. Returns a line for the log, or None."""
        step_ms = ahead_ms - self.ahead_ms
        trusted_ms = self._trusted(now_ms)
        self.ahead_ms = ahead_ms
        self._trusted_ms = min(trusted_ms, ahead_ms)
        if step_ms >= _LOGGED_MS:
            self._distrusted_until_ms = now_ms + _DISTRUST_MS
            return (
                f"the clock was set forward by {step_ms // 1000} s. New records get the new time. Retention "
                "uses the old time for one hour: if the clock is wrong, correct it before then"
            )
        if now_ms >= self._distrusted_until_ms:
            self._trusted_ms = ahead_ms
        if step_ms <= -_LOGGED_MS:
            return f"the clock was set back by {-step_ms // 1000} s. New records get the new time"
        return None

    def retention_ms(self, now_ms: int) -> int:
        """The date that retention uses."""
        return now_ms + self._trusted(now_ms)

    def _trusted(self, now_ms: int) -> int:
        return self._trusted_ms if now_ms < self._distrusted_until_ms else self.ahead_ms
