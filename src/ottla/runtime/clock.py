"""The time as the core is given it: milliseconds since 1970 that never go back while the process runs.

It is the wall clock at the start plus the monotonic clock since. A wall clock that is set forward is followed at once; one
that is set back is not, because timers, record timestamps and retention all trust that time moves on.
"""

from __future__ import annotations

import time

_FOLLOW_MS = 500


class Clock:
    def __init__(self) -> None:
        self._offset_ms = int(time.time() * 1000) - time.monotonic_ns() // 1_000_000

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self._offset_ms

    def follow_wall_clock(self) -> None:
        """Called now and then: take over a wall clock that has been set forward."""
        ahead_ms = int(time.time() * 1000) - self.now_ms()
        if ahead_ms > _FOLLOW_MS:
            self._offset_ms += ahead_ms
