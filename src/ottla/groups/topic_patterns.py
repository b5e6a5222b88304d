"""Patterns against the names of all topics, without stopping the loop for it.

RE2 needs no more than a fixed number of nanoseconds for each step of a pattern's program and each character of a name (9 here, in its
slow way, which a stranger can force on it; usually a hundredth of that). So what a look at all topics may cost is known beforehand.
Almost always it is little, and done at once. Otherwise it is done in slices between the turns of others; whoever asks hears what was
found before, if anything, and asks again (`targeting.py`, at each heartbeat).

Nothing is decided here: a walk that outlives its shard finds something out for nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.groups.regex import BadPattern, compiled
from ottla.ports.coordination import Alarm

if TYPE_CHECKING:
    from ottla.groups.host import GroupHost

#: In steps of a program times characters: at most 45 ms, and 9 ms.
_AT_ONCE: Final = 5_000_000
_SLICE: Final = 1_000_000
#: Of so many patterns it is kept what was found.
_FOUND_MAX: Final = 64


class Found(NamedTuple):
    """The topics that match; None if that is not known yet."""

    topics: frozenset[str] | None
    #: Whether that is of the topics as they are now.
    is_current: bool


class _Scan:
    """One pattern on its way through the names."""

    __slots__ = ("found", "names", "pattern", "version")

    def __init__(self, pattern: str, names: Iterator[str], version: int) -> None:
        self.pattern = pattern
        self.names = names
        self.version = version
        self.found: set[str] = set()

    def advance(self, steps: int) -> bool:
        """Look at the next names; whether all have been looked at."""
        program = compiled(self.pattern)
        fullmatch, size = program.fullmatch, program.programsize
        for name in self.names:
            if fullmatch(name) is not None:
                self.found.add(name)
            steps -= size * len(name)
            if steps <= 0:
                return False
        return True


class PatternMatcher:
    def __init__(self, host: GroupHost) -> None:
        self._host = host
        #: Of patterns that took longer: the version of the topics, and what was found.
        self._found: dict[str, tuple[int, frozenset[str]]] = {}
        self._scans: dict[str, _Scan] = {}
        self._alarm: Alarm | None = None
        self._counted: tuple[int, int] = (-1, 0)

    def find(self, pattern: str, now_ms: int) -> Found:
        try:
            program = compiled(pattern)
        except BadPattern:
            # Written by a broker that understood more.
            return Found(frozenset(), True)
        version = self._host.topics_version
        if program.programsize * self._characters(version) <= _AT_ONCE:
            fullmatch = program.fullmatch
            return Found(
                frozenset(name for name in self._host.topic_names() if fullmatch(name) is not None), True
            )
        kept_version, topics = self._found.get(pattern, (-1, None))
        if topics is not None and kept_version == version:
            return Found(topics, True)
        if pattern not in self._scans:
            self._scans[pattern] = _Scan(pattern, iter(tuple(self._host.topic_names())), version)
            self._schedule_slice(now_ms)
        return Found(topics, False)

    def _characters(self, version: int) -> int:
        if self._counted[0] != version:
            self._counted = version, sum(map(len, self._host.topic_names()))
        return self._counted[1]

    def _schedule_slice(self, now_ms: int) -> None:
        if self._alarm is None:
            self._alarm = Alarm(self._host.timers, self._slice)
        if not self._alarm.is_set:
            self._alarm.set(now_ms)

    def _slice(self, now_ms: int) -> None:
        """A piece of the walk that has waited longest."""
        pattern, scan = next(iter(self._scans.items()))
        del self._scans[pattern]
        if scan.advance(_SLICE):
            self._found.pop(pattern, None)
            self._found[pattern] = scan.version, frozenset(scan.found)
            if len(self._found) > _FOUND_MAX:
                del self._found[next(iter(self._found))]
        else:
            self._scans[pattern] = scan
        if self._scans:
            self._schedule_slice(now_ms)
