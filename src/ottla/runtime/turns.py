"""Measure the turns of the event loop: while the requests of one client are served, all other clients wait.

A turn ends with one reading of the clock (compared with `look_at_s`), which costs a request some 50 ns. The
thread's CPU clock is read only every 20 ms, and after each turn of more than 20 ms. The CPU time of a turn is
at most the CPU time since the last reading, and at most the time that passed. So on a busy machine a turn is
overestimated by 20 ms at most, and no turn of more than 20 ms is missed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from time import monotonic, thread_time
from typing import Any, Final, NamedTuple

from ottla.wire.schema import api_name, version_range

_LOOK_EVERY_S: Final = 0.02
_API: Final = struct.Struct(">hh")


class LongestTurn(NamedTuple):
    """CPU time and wall-clock time of the turn that used most CPU time, and what it was about."""

    cpu_ms: float = 0.0
    wall_ms: int = 0
    what: str = "nothing so far"

    def __str__(self) -> str:
        return f"{self.cpu_ms:.0f} ms of CPU time, {self.wall_ms} ms in all: {self.what}"


class Turns:
    """Used on the thread of the loop."""

    __slots__ = ("_cpu_s", "_now_ms", "_report", "longest", "look_at_s")

    def __init__(self, now_ms: Callable[[], int], report: Callable[[LongestTurn], None]) -> None:
        """`report(turn)` is called with every measured turn."""
        self._now_ms = now_ms
        self._report = report
        self._cpu_s = thread_time()
        self.longest = LongestTurn()
        #: By `time.monotonic()`: turns that end later are measured.
        self.look_at_s = 0.0

    def look(self, began_ms: int, what: Callable[[], str]) -> None:
        """Measure a turn that began at `began_ms`."""
        cpu_s, before_s = thread_time(), self._cpu_s
        self._cpu_s = cpu_s
        self.look_at_s = monotonic() + _LOOK_EVERY_S
        wall_ms = self._now_ms() - began_ms
        # The clock has whole milliseconds: one more may have passed.
        cpu_ms = min((cpu_s - before_s) * 1000, wall_ms + 1.0)
        if cpu_ms > self.longest.cpu_ms or wall_ms > 1000 * _LOOK_EVERY_S:
            turn = LongestTurn(cpu_ms, wall_ms, what())
            if cpu_ms > self.longest.cpu_ms:
                self.longest = turn
            self._report(turn)


def request_in(data: Any, at: int) -> str:
    """The API and version of the request at a position; "a request" if it is unknown."""
    try:
        key, version = _API.unpack_from(data, at)
    except struct.error:
        return "a request"
    return f"{api_name(key)} v{version}" if version_range(key) is not None else "a request"
