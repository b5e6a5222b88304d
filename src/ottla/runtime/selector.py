"""An epoll selector for asyncio with a third of the work per event and per change of
`selectors.EpollSelector`.

File objects are descriptors (ints), or have a `fileno()`. It is used by one thread only, that of the event
loop.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Mapping
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector, SelectorKey
from typing import Any, Final

from ottla.runtime.platform import HAS_EPOLL

#: Upper bound on the events of one poll; the rest comes with the next one.
_EVENTS_MAX: Final = 256
#: The bits of epoll events: in, priority, out, error, hang-up.
_BITS: Final = 0x1F


def new_event_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(Epoll()) if HAS_EPOLL else asyncio.new_event_loop()


class Epoll(BaseSelector):
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._poll = self._epoll.poll
        self._keys: dict[int, SelectorKey] = {}
        #: epoll flags by selector events.
        self._flags = (0, select.EPOLLIN, select.EPOLLOUT, select.EPOLLIN | select.EPOLLOUT)
        #: Selector events by epoll events: errors and hang-ups wake readers and writers, as in `selectors`.
        self._masks = tuple(
            (EVENT_WRITE if event & ~select.EPOLLIN else 0) | (EVENT_READ if event & ~select.EPOLLOUT else 0)
            for event in range(_BITS + 1)
        )

    def register(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        fd = fileobj if fileobj.__class__ is int else fileobj.fileno()
        if fd in self._keys:
            raise KeyError(f"{fileobj!r} is already registered")
        self._epoll.register(fd, self._flags[events])
        key = self._keys[fd] = SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: Any) -> SelectorKey:
        fd = fileobj if fileobj.__class__ is int else fileobj.fileno()
        key = self._keys.pop(fd)
        # OSError: closing the descriptor has removed it already.
        with suppress(OSError):
            self._epoll.unregister(fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        fd = fileobj if fileobj.__class__ is int else fileobj.fileno()
        if events != self._keys[fd].events:
            self._epoll.modify(fd, self._flags[events])
        key = self._keys[fd] = SelectorKey(fileobj, fd, events, data)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """The event loop never passes a negative timeout. epoll itself rounds up to milliseconds."""
        ready = []
        for fd, event in self._poll(timeout, _EVENTS_MAX):
            key = self._keys.get(fd)
            if key is not None:
                ready.append((key, self._masks[event & _BITS] & key.events))
        return ready

    def get_key(self, fileobj: Any) -> SelectorKey:
        return self._keys[fileobj if fileobj.__class__ is int else fileobj.fileno()]

    def get_map(self) -> Mapping[Any, SelectorKey]:
        return self._keys

    def fileno(self) -> int:
        return self._epoll.fileno()

    def close(self) -> None:
        self._epoll.close()
        self._keys.clear()
