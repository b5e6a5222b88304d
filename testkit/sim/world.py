"""Virtual time: one heap of events, one seeded source of randomness, one trace.

An event is a function to be called at a time; events of the same millisecond happen in the order of
scheduling. Nothing here or above reads a clock, hashes an object or iterates over a set, so a seed always
gives the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Final

#: The start time of every simulation.
START_MS: Final = 1_700_000_000_000


class World:
    def __init__(self, seed: int, *, traced: bool = False) -> None:
        self.random = Random(seed)
        #: For secrets, nonces and broker epochs, which influence nothing: the run of a seed does not depend
        #: on them.
        self.tokens = Random(~seed)
        self.now_ms = START_MS
        self.events = 0
        self.trace: list[str] = []
        self.traced = traced
        #: Whether the trace has every operation of a disk.
        self.disk_traced = False
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heappush(self._heap, (self.now_ms + delay_ms, self._sequence, action))

    def step(self) -> bool:
        """Run the next event; False if there is none."""
        if not self._heap:
            return False
        at_ms, _sequence, action = heappop(self._heap)
        self.now_ms = max(self.now_ms, at_ms)
        self.events += 1
        action()
        return True

    def log(self, text: str) -> None:
        if self.traced:
            self.trace.append(f"{self.now_ms - START_MS:>8} {text}")

    def below(self, limit: int) -> int:
        return self.random.randrange(limit)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability


class SeededEntropy:
    """The Entropy port on the random sources of the world."""

    def __init__(self, random: Random, tokens: Random | None = None) -> None:
        self._random = random
        self._tokens = tokens or random

    def id_bytes(self) -> bytes:
        return self._random.randbytes(16)

    def below(self, limit: int) -> int:
        return self._random.randrange(limit)

    def token(self, size: int) -> bytes:
        return self._tokens.randbytes(size)
