"""Matches patterns against the names of all topics, without blocking the event loop.

RE2 needs at most a fixed time for each instruction of a program and each character of a name: 9 ns in its
slow mode, which a client can force, and usually a hundredth of that. So the cost of a scan of all topics is
known in advance. Nearly always it is small, and the scan runs at once. Otherwise it runs in slices. The
caller gets the previous result, if any, and asks again at each heartbeat (`target_assignment.py`).

A scan changes no state: the result of a scan that outlives its shard is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.groups.regex import BadPattern, compiled
from ottla.ports.coordination import Alarm

if TYPE_CHECKING:
    from ottla.groups.host import GroupHost

#: In program instructions times characters: at most 45 ms, and 9 ms.
_AT_ONCE: Final = 5_000_000
_SLICE: Final = 1_000_000
#: The number of cached results.
_FOUND_MAX: Final = 64


class Found(NamedTuple):
    """The matching topics; None if not known yet."""

    topics: frozenset[str] | None
    #: Whether the result is for the current topics.
    is_current: bool


class _Scan:
    """A scan of all topic names with one pattern."""

    __slots__ = ("found", "names", "pattern", "version")

    def __init__(self, pattern: str, names: Iterator[str], version: int) -> None:
        self.pattern = pattern
        self.names = names
        self.version = version
        self.found: set[str] = set()

    def advance(self, steps: int) -> bool:
        """Scan the next names; True at the end."""
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
        #: Results of scans in slices, by pattern: `topics_version` and matching topics.
        self._found: dict[str, tuple[int, frozenset[str]]] = {}
        self._scans: dict[str, _Scan] = {}
        self._alarm: Alarm | None = None
        self._counted: tuple[int, int] = (-1, 0)

    def find(self, pattern: str, now_ms: int) -> Found:
        try:
            program = compiled(pattern)
        except BadPattern:
            # Written by a broker with a newer syntax.
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
        """Run a slice of the oldest scan."""
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
