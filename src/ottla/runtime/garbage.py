"""Python's garbage collector in a broker process: no collection may block the event loop for long.

A full collection visits every object. With 100,000 partitions it takes a second or more, and no request is
served meanwhile. So objects that survive one full collection are frozen (`gc.freeze`): later collections skip
them. A full collection then visits only the objects since the previous one, which takes some ten milliseconds
at most.

Frozen objects are still freed by reference counting. Only reference cycles stay. So long-lived objects
(connections, logs, transactions) have no reference cycles when they end. For the rest there is a thorough
collection of everything, when far more objects were frozen than the broker's partitions account for.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

#: Twice as many full collections as by default, each over half as many objects: some 40,000, which takes 5 to
#: 15 ms.
_THRESHOLDS: Final = (700, 10, 5)
_CHECK_SECONDS: Final = 60.0
#: This many frozen objects, apart from those of partitions, trigger a thorough collection: some 500 MB at
#: most.
_FROZEN_MAX: Final = 3_000_000
#: Objects of one partition with an open log, with a margin.
_OBJECTS_PER_PARTITION: Final = 60


@contextmanager
def no_collections() -> Iterator[None]:
    """Disable collections during work that creates very many lasting objects: visiting them again and again
    would take a third of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Collector:
    def __init__(self, partitions: Callable[[], int], say: Callable[[str], None]) -> None:
        """`partitions()` returns the number of partitions on this broker."""
        self._partitions = partitions
        self._say = say
        #: Objects frozen since the last thorough collection, and the number of partitions at that time.
        self.frozen = 0
        self._partitions_then = 0
        self._timer: asyncio.TimerHandle | None = None
        self._thresholds_before = gc.get_threshold()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.collect_all()
        gc.callbacks.append(self._collected)
        gc.set_threshold(*_THRESHOLDS)
        self._look_later(loop)

    def stop(self) -> None:
        gc.callbacks.remove(self._collected)
        gc.set_threshold(*self._thresholds_before)
        if self._timer is not None:
            self._timer.cancel()

    def collect_all(self) -> None:
        """A thorough collection; surviving objects are frozen."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        # A full collection is due when the new objects exceed a quarter of the survivors of the last one: now
        # zero.
        gc.collect()
        self.frozen = 0
        self._partitions_then = self._partitions()

    @property
    def is_due(self) -> bool:
        grown = max(0, self._partitions() - self._partitions_then)
        return self.frozen > _FROZEN_MAX + grown * _OBJECTS_PER_PARTITION

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        """The interpreter calls this before and after every collection, in any thread."""
        if phase == "stop" and info["generation"] == 2:
            self.frozen += len(gc.get_objects(2))
            gc.freeze()

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(_CHECK_SECONDS, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._look_later(loop)
        if self.is_due:
            began = time.monotonic()
            self.collect_all()
            self._say(f"a thorough garbage collection took {time.monotonic() - began:.1f} s")
