"""What a run came to, and how a failure is told: the seed, the bytes, and one line that repeats it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


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
