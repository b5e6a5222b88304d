"""The core's clock: milliseconds that never go back while the process runs.

It is the wall clock at the start plus the monotonic clock since then, so a clock change does not move
deadlines. `wall_ahead_ms` is how far the wall clock is ahead of it, for record timestamps and retention.
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

    def read_wall_clock(self) -> bool:
        """Called periodically; True if `wall_ahead_ms` has changed: the clock was set, or has drifted."""
        ahead_ms = int(time.time() * 1000) - self.now_ms()
        if abs(ahead_ms - self.wall_ahead_ms) <= _STEP_MS:
            return False
        self.wall_ahead_ms = ahead_ms
        return True
