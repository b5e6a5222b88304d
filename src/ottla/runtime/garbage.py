"""Python's garbage collector in a broker's process: no collection may hold up the event loop.

A full collection walks over every object there is. With 100,000 partitions that takes a second or more, in which nobody is served.
So objects that have survived one full collection are frozen (`gc.freeze`): no later collection looks at them. A full
collection then walks only over what is new since the one before, some ten milliseconds at most.

Most frozen objects are freed all the same when they are not used any more, because nothing refers to them. Only reference cycles stay.
So objects with long lives (connections, logs, transactions) have no reference cycles when they end. For the rest there is
a thorough collection of everything. It is due when far more objects were frozen than the broker's partitions account for.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

#: Twice as many full collections as Python's own, each over half as many objects: some 40,000, which takes 5 to 15 ms.
_THRESHOLDS: Final = (700, 10, 5)
_LOOK_SECONDS: Final = 60.0
#: So many frozen objects, beside those of partitions, make a thorough collection due. They take some 500 MB at most.
_FROZEN_MAX: Final = 3_000_000
#: Objects of one partition whose log is open, and some more.
_OBJECTS_PER_PARTITION: Final = 60


@contextmanager
def no_collections() -> Iterator[None]:
    """For work that makes very many objects which stay: looking at them again and again on the way takes a third of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Collector:
    def __init__(self, partitions: Callable[[], int], say: Callable[[str], None]) -> None:
        """`partitions()` is how many the broker has."""
        self._partitions = partitions
        self._say = say
        #: Objects that were frozen since the last thorough collection, and the partitions that there were then.
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
        """A thorough collection; what is left is frozen."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        # The collector waits until a quarter is new of what the last full collection left: now that is nothing.
        gc.collect()
        self.frozen = 0
        self._partitions_then = self._partitions()

    @property
    def is_due(self) -> bool:
        grown = max(0, self._partitions() - self._partitions_then)
        return self.frozen > _FROZEN_MAX + grown * _OBJECTS_PER_PARTITION

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        """The interpreter calls this before and after every collection, in whichever thread it was due."""
        if phase == "stop" and info["generation"] == 2:
            self.frozen += len(gc.get_objects(2))
            gc.freeze()

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(_LOOK_SECONDS, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._look_later(loop)
        if self.is_due:
            began = time.monotonic()
            self.collect_all()
            self._say(f"a thorough garbage collection took {time.monotonic() - began:.1f} s")
