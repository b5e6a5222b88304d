"""What a run came to, and how a failure is told: the seed, the bytes, and one line that repeats it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from testkit.cpu_time import thread_time_s

_T = TypeVar("_T")


class Failed(Exception):
    """Something that must hold whatever a client sends, or a disk holds, did not."""


@dataclass
class Tally:
    """How many there were, and what became of them."""

    kinds: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, count: int = 1) -> None:
        self.kinds[kind] += count

    def merge(self, other: Tally) -> None:
        self.kinds.update(other.kinds)

    def __getitem__(self, kind: str) -> int:
        return self.kinds[kind]

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {kind}" for kind, count in self.kinds.most_common())


class Stopwatch:
    """CPU time of single calls, without the garbage collections that happened to fall into them; the longest
    is kept.
    """

    __slots__ = ("longest_s",)

    def __init__(self) -> None:
        self.longest_s = 0.0

    def time(self, call: Callable[..., _T], *arguments: Any) -> _T:
        started = thread_time_s()
        try:
            return call(*arguments)
        finally:
            self.longest_s = max(self.longest_s, thread_time_s() - started)


def shortened(frame: bytes, length: int = 600) -> str:
    """A request in hex, cut where it would fill the screen: the line that repeats the run has all of it."""
    text = frame[: length // 2].hex()
    return text if len(frame) <= length // 2 else f"{text}… ({len(frame):,} bytes)"


def resident_bytes(pid: int | str = "self", what: str = "VmRSS") -> int:
    """The memory of a process now, or with VmHWM at its highest; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            for line in status:
                if line.startswith(what):
                    return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
