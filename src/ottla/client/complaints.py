"""Warnings about repeated failures: the first is logged at once, then one now and then with a count.

A client that retries in the background cannot raise: it logs on `ottla.client`. The caller passes the time.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Final

#: How long the same warning is not repeated.
SILENCE_S: Final = 30.0
#: The most different warnings to remember; the oldest are forgotten.
_KINDS_MAX: Final = 1_000


class Complaints:
    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._logged: dict[Hashable, tuple[float, int]] = {}

    def warn(self, kind: Hashable, text: str, now_s: float) -> None:
        logged_s, skipped = self._logged.get(kind, (None, 0))
        if logged_s is not None and now_s - logged_s < SILENCE_S:
            self._logged[kind] = (logged_s, skipped + 1)
            return
        if len(self._logged) >= _KINDS_MAX:
            self._logged.pop(next(iter(self._logged)))
        self._logged[kind] = (now_s, 0)
        self._logger.warning(
            "%s%s", text, f" (and {skipped} more times since it was last logged)" if skipped else ""
        )

    def settled(self, kind: Hashable) -> None:
        """It works again: the next failure is logged at once."""
        self._logged.pop(kind, None)
