"""epoll for asyncio's event loop, with a third of the work per event and per change that `selectors.EpollSelector` has.

File objects are descriptors (ints), or have a `fileno()`. One thread uses it, as the event loop does.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Mapping
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector, SelectorKey
from typing import Any, Final

from ottla.runtime.platform import HAS_EPOLL

#: The most events that one look brings; others come with the next one.
_EVENTS_MAX: Final = 256
#: The bits of epoll that are asked for or come unasked: in, priority, out, error, hang-up.
_BITS: Final = 0x1F


def new_event_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(Epoll()) if HAS_EPOLL else asyncio.new_event_loop()


class Epoll(BaseSelector):
    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._poll = self._epoll.poll
        self._keys: dict[int, SelectorKey] = {}
        #: What is asked of epoll, by what is asked of a selector.
        self._flags = (0, select.EPOLLIN, select.EPOLLOUT, select.EPOLLIN | select.EPOLLOUT)
        #: What a selector reports, by what epoll does: errors and hang-ups are for whoever waits, as in `selectors`.
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
        # OSError: it was closed before, which has removed it.
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
