"""One budget for the bytes of requests that are not whole yet, and one for answers that clients do not read.

Requests (`queued.max.request.bytes`). A request in one piece never comes here. One in pieces is charged as its memory
grows. A request beyond `_SMALL_BYTES` grows only up to a part of the budget; then reading from it pauses, and goes on when
others are done, the smallest first. One of them at a time may go beyond: so there is always progress, and no two wait for
each other. The rest of the budget is for small requests. If even that is used up, the largest unfinished requests are
dropped with their connections. Connections that have proven to be other brokers' neither wait nor are dropped. The total is at most the budget and one request (`socket.request.max.bytes`).

Answers. A client that does not read is not read from, so it holds the answers of one round of requests. When all of them
together hold more than half as much as requests may, the connection that holds most for longest is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import nlargest
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ottla.runtime.transport import Transport

#: Up to this size a request in pieces does not wait for memory.
_SMALL_BYTES: Final = 1 << 20
#: What is kept for small requests: this part of the budget.
_SMALL_PART: Final = 8
#: How many connections are looked for at once when some must be dropped.
_DROPPED_MAX: Final = 64


class Budget:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        limit: int,
        request_bytes_max: int,
        held: Callable[[], int],
        held_answers: Callable[[], int],
        drop: Callable[[Transport, str], None],
    ) -> None:
        """`limit` is -1 for none. `held()` and `held_answers()` are what the core keeps of requests and of answers;
        `drop(transport, why)` closes a connection.
        """
        self._loop = loop
        self._held = held
        self._held_answers = held_answers
        self._drop = drop
        # The largest request must fit.
        self.limit = max(limit, request_bytes_max) if limit >= 0 else 1 << 62
        self._large_limit = max(self.limit // 2, self.limit - request_bytes_max - self.limit // _SMALL_PART)
        self._answers_limit = self.limit // 2
        #: Bytes of unfinished requests, and of each.
        self.used = 0
        self._frames: dict[Transport, int] = {}
        #: Bytes of answers that wait for their clients to read.
        self.answers = 0
        #: Connections that are not read because there is no memory for their request; and the one that may go beyond.
        self.waiting: dict[Transport, int] = {}
        self._favoured: Transport | None = None
        self._is_scheduled = False

    # --- requests -----------------------------------------------------------------------------------------------

    def charge(self, transport: Transport, size: int) -> None:
        """A small request, or bytes that are here already: never refused, but others may have to go for it."""
        self._frames[transport] = self._frames.get(transport, 0) + size
        self.used += size
        if self.used + self._held() > self.limit and transport is not self._favoured:
            self._make_room(transport)

    def may_grow(self, transport: Transport, size: int) -> bool:
        """Whether an unfinished request gets this much more memory now. If not, `Transport.go_on_growing` follows."""
        if (
            self._frames.get(transport, 0) + size <= _SMALL_BYTES
            or transport.is_broker
            or self._has_room(transport, size)
        ):
            self.charge(transport, size)
            return True
        self.waiting[transport] = size
        return False

    def _has_room(self, transport: Transport, size: int) -> bool:
        if self.used + self._held() + size <= self._large_limit or transport is self._favoured:
            return True
        if self._favoured is None:
            self._favoured = transport
            return True
        return False

    def release(self, transport: Transport) -> None:
        """Its request is whole, or its connection gone."""
        self.used -= self._frames.pop(transport, 0)
        self.waiting.pop(transport, None)
        if self._favoured is transport:
            self._favoured = None
        if self.waiting and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._grant)

    def _grant(self) -> None:
        self._is_scheduled = False
        while self.waiting:
            # Those who hold most wait longest.
            transport = min(self.waiting, key=lambda each: self._frames.get(each, 0))
            size = self.waiting[transport]
            if not self._has_room(transport, size):
                return
            del self.waiting[transport]
            self.charge(transport, size)
            transport.go_on_growing(size)

    def _make_room(self, newcomer: Transport) -> None:
        """Not even small requests have memory left: the largest unfinished ones are dropped."""
        target = self.limit - self.limit // 16
        for transport in nlargest(_DROPPED_MAX, self._frames, key=lambda each: self._frames[each]):
            if self.used + self._held() <= target:
                return
            if transport is not newcomer and not transport.is_broker:
                size = self._frames[transport]
                self._drop(transport, f"memory for requests is used up, and this one held {size} bytes")

    # --- answers ------------------------------------------------------------------------------------------------

    @property
    def is_too_much_unread(self) -> bool:
        return self.answers + self._held_answers() > self._answers_limit
