"""Warnings about what goes wrong again and again: the first at once, then one in a while with a count of the others.

A client that works in the background has nobody to raise to while it retries: it says so on the logger `ottla.client`. Time is handed in.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from typing import Final

#: How long the same complaint is not repeated.
SILENCE_S: Final = 30.0
#: Of so many different ones the oldest are forgotten.
_KINDS_MAX: Final = 1_000


class Complaints:
    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._said: dict[Hashable, tuple[float, int]] = {}

    def warn(self, kind: Hashable, text: str, now_s: float) -> None:
        said_s, unsaid = self._said.get(kind, (None, 0))
        if said_s is not None and now_s - said_s < SILENCE_S:
            self._said[kind] = (said_s, unsaid + 1)
            return
        if len(self._said) >= _KINDS_MAX:
            self._said.pop(next(iter(self._said)))
        self._said[kind] = (now_s, 0)
        self._logger.warning(
            "%s%s", text, f" (and {unsaid} more times since it was last told)" if unsaid else ""
        )

    def settled(self, kind: Hashable) -> None:
        """It works again: the next failure is news."""
        self._said.pop(kind, None)
