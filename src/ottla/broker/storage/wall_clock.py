"""Dates, which are not deadlines: what the wall clock says, while the core's own time passes evenly.

Everything that waits goes by the time the core is handed, which no setting of a clock touches. What is dated (records that get
the append time, limits on their timestamps, producers that fell silent, retention) goes by the wall clock, wherever it is
set to. With one exception: a clock that is set forward makes all records look older, and if that was a mistake, what
retention deletes is gone. So retention believes it only after an hour.
"""

from __future__ import annotations

from typing import Final

#: From here on a change is worth a word.
_SAID_MS: Final = 10_000
#: For how long retention goes by the earlier clock after one was set forward.
_DOUBT_MS: Final = 3_600_000


class WallClock:
    __slots__ = ("_believed_ms", "_doubted_until_ms", "ahead_ms")

    def __init__(self) -> None:
        #: How far it is ahead of the core's time.
        self.ahead_ms = 0
        #: The same as retention believes it, until the doubt is over.
        self._believed_ms = 0
        self._doubted_until_ms = 0

    def set(self, ahead_ms: int, now_ms: int) -> str | None:
        """It was found to be so far ahead of the core's time; what there is to say about that."""
        step_ms = ahead_ms - self.ahead_ms
        believed_ms = self._believed(now_ms)
        self.ahead_ms = ahead_ms
        self._believed_ms = min(believed_ms, ahead_ms)
        if step_ms >= _SAID_MS:
            self._doubted_until_ms = now_ms + _DOUBT_MS
            return (
                f"the clock was set forward by {step_ms // 1000} s: new records are dated by it; retention goes by the "
                "earlier one for an hour, so that a mistake can be set right before it deletes anything"
            )
        if now_ms >= self._doubted_until_ms:
            self._believed_ms = ahead_ms
        if step_ms <= -_SAID_MS:
            return f"the clock was set back by {-step_ms // 1000} s: new records are dated by it"
        return None

    def retention_ms(self, now_ms: int) -> int:
        """The date that retention goes by."""
        return now_ms + self._believed(now_ms)

    def _believed(self, now_ms: int) -> int:
        return self._believed_ms if now_ms < self._doubted_until_ms else self.ahead_ms
