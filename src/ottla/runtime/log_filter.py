"""Log lines without repetition: a flood of bad connections must not become a flood of log lines.

Two lines are of the same kind if they differ only in numbers and in the peer. Each kind is logged once
between two sweeps. At the sweep, one line per subject says how many more there were.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Final

#: Upper bound on the kinds that are logged between two sweeps.
_KINDS_MAX: Final = 20
#: The parts of a line that do not make it another kind.
_NUMBERS: Final = re.compile(r"0x[0-9a-f]+|-?[0-9]+")


class LogFilter:
    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self._logged: set[str] = set()
        self._suppressed: Counter[str] = Counter()

    def log_once(self, text: str, subject: str = "connections were closed") -> None:
        """Log a line unless one of its kind was logged. Suppressed lines are counted under `subject`."""
        kind = _NUMBERS.sub("#", text.partition(" closed: ")[2] or text)
        if kind not in self._logged and len(self._logged) < _KINDS_MAX:
            self._logged.add(kind)
            self.say(text)
        else:
            self._suppressed[subject] += 1

    def report_suppressed(self) -> None:
        """Log the number of suppressed lines; afterwards every kind is logged again."""
        self._logged.clear()
        for subject, count in self._suppressed.items():
            self.say(f"{count} more {subject}, for reasons like those above")
        self._suppressed.clear()
