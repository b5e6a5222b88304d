"""The outcome of a run, and the text of a failure: the seed, the bytes, and the command that repeats it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from testkit.cpu_time import thread_time_s

_T = TypeVar("_T")


class Failed(Exception):
    """A property that must hold for any request or file was violated."""


@dataclass
class Tally:
    """Counts of requests and their outcomes."""

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
    """CPU time of single calls, without garbage collections; the longest is kept."""

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
    """A request in hex, shortened for the screen: the command that repeats the run recreates all of it."""
    text = frame[: length // 2].hex()
    return text if len(frame) <= length // 2 else f"{text}… ({len(frame):,} bytes)"


def resident_bytes(pid: int | str = "self", what: str = "VmRSS") -> int:
    """The memory of a process, or its maximum with VmHWM; 0 if the system does not report it."""
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
