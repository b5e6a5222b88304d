"""Return freed memory to the operating system.

The C library keeps freed memory that lies between used blocks, for example after many large requests.
"""

from __future__ import annotations

from typing import Final

from ottla.runtime.background import Jobs
from ottla.runtime.platform import resident_bytes, trim_memory

#: Memory is trimmed when the process has grown by this much since its start, at most once per interval.
_GROWTH_BYTES: Final = 16 << 20
_INTERVAL_MS: Final = 15_000


class MemoryTrim:
    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._bytes_at_start = resident_bytes()
        self._next_ms = 0

    def trim_if_grown(self, now_ms: int) -> None:
        if now_ms >= self._next_ms and resident_bytes() > self._bytes_at_start + _GROWTH_BYTES:
            self._next_ms = now_ms + _INTERVAL_MS
            # In a thread: it takes some milliseconds, more if there are many gaps.
            self._jobs.run(trim_memory, lambda _result, _error: None)
