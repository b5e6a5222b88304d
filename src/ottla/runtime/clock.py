"""The time as the core is given it: milliseconds that pass evenly and never go back while the process runs.

It is the wall clock at the start plus the monotonic clock since, so deadlines are not touched by a clock that is set. How far
the wall clock is ahead of it by now is told apart (`wall_ahead_ms`), for what is dated: records, retention.
"""

from __future__ import annotations

import time

#: Less than this is drift and not worth a step in the timestamps of records.
_STEP_MS = 500


class Clock:
    def __init__(self) -> None:
        self._offset_ms = int(time.time() * 1000) - time.monotonic_ns() // 1_000_000
        self.wall_ahead_ms = 0

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000 + self._offset_ms

    def look_at_the_wall(self) -> bool:
        """Called now and then; True if `wall_ahead_ms` has changed: the wall clock was set, or has drifted."""
        ahead_ms = int(time.time() * 1000) - self.now_ms()
        if abs(ahead_ms - self.wall_ahead_ms) <= _STEP_MS:
            return False
        self.wall_ahead_ms = ahead_ms
        return True
