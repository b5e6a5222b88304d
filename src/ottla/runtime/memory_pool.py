"""Memory for requests that arrive in pieces, and for responses that clients do not read.

Requests (`queued.max.request.bytes`, KIP-72). A request that arrives in one piece never uses the pool. A
request in pieces is charged as its memory grows:

- A request beyond `_SMALL_BYTES` grows only while a part of the pool is free. Then reading from it pauses,
  and resumes when other requests are done, the smallest first.
- One large request at a time may exceed the limit. So there is always progress, and no two requests wait for
  each other.
- The rest of the pool is for small requests. If even that is used up, the largest unfinished requests are
  dropped with their connections.
- Authenticated connections of other brokers neither wait nor are dropped.

The total is at most the pool plus one request (`socket.request.max.bytes`).

Responses. Nothing is read from a client that does not read, so it holds the responses of one round of
requests. When all such clients together hold more than half of the pool's size, the connection that holds
most for longest is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import nlargest
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ottla.runtime.request_reader import RequestReader

#: Up to this size a request in pieces does not wait for memory.
_SMALL_BYTES: Final = 1 << 20
#: The part of the pool that is kept for small requests.
_SMALL_PART: Final = 8
#: Upper bound on the connections that are dropped at once.
_DROPPED_MAX: Final = 64
#: Buffers of finished requests that are kept for the next ones.
_SPARE_BUFFERS: Final = 8
_SPARE_BYTES_MAX: Final = 2 << 20


class MemoryPool:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        limit: int,
        request_bytes_max: int,
        held: Callable[[], int],
        held_answers: Callable[[], int],
        drop: Callable[[RequestReader, str], None],
    ) -> None:
        """`limit` is -1 for none. `held()` and `held_answers()`: bytes of requests and responses in the core.

        `drop(transport, reason)` closes a connection.
        """
        self._loop = loop
        self._held = held
        self._held_answers = held_answers
        self._drop = drop
        # The largest request must fit.
        self.limit = max(limit, request_bytes_max) if limit >= 0 else 1 << 62
        # One large request may exceed the limit while it arrives, or while the core holds it.
        self._total_limit = self.limit + request_bytes_max
        self._large_limit = max(self.limit // 2, self.limit - request_bytes_max - self.limit // _SMALL_PART)
        self._answers_limit = self.limit // 2
        #: Bytes of unfinished requests, all and each.
        self.used = 0
        self._frames: dict[RequestReader, int] = {}
        #: Bytes of responses that wait for their clients to read.
        self.answers = 0
        #: Connections whose request waits for memory, with the bytes it needs; and the one that may exceed
        #: the limit.
        self.waiting: dict[RequestReader, int] = {}
        self._exempt: RequestReader | None = None
        self._is_scheduled = False
        self._spare: list[bytearray] = []

    # --- requests -------------------------------------------------------------------------------------------

    def charge(self, transport: RequestReader, size: int) -> None:
        """Charge a small request, or received bytes. Never refused, but may drop other requests."""
        self._frames[transport] = self._frames.get(transport, 0) + size
        self.used += size
        if self.used + self._held() > self._total_limit and transport is not self._exempt:
            self._drop_largest(transport)

    def may_grow(self, transport: RequestReader, size: int) -> bool:
        """Whether an unfinished request gets `size` more bytes now. If not, `memory_granted` follows."""
        if (
            self._frames.get(transport, 0) + size <= _SMALL_BYTES
            or transport.is_broker
            or self._is_free(transport, size)
        ):
            self.charge(transport, size)
            return True
        self.waiting[transport] = size
        return False

    def _is_free(self, transport: RequestReader, size: int) -> bool:
        if self.used + self._held() + size <= self._large_limit or transport is self._exempt:
            return True
        if self._exempt is None:
            self._exempt = transport
            return True
        return False

    def release(self, transport: RequestReader) -> None:
        """The request is complete, or its connection closed."""
        self.used -= self._frames.pop(transport, 0)
        self.waiting.pop(transport, None)
        if self._exempt is transport:
            self._exempt = None
        if self.waiting and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._grant)

    def _grant(self) -> None:
        self._is_scheduled = False
        while self.waiting:
            # The requests that hold most wait longest.
            transport = min(self.waiting, key=lambda each: self._frames.get(each, 0))
            size = self.waiting[transport]
            if not self._is_free(transport, size):
                return
            del self.waiting[transport]
            self.charge(transport, size)
            transport.memory_granted(size)

    def _drop_largest(self, newcomer: RequestReader) -> None:
        """No memory is left even for small requests: drop the largest unfinished ones."""
        target = self._total_limit - self.limit // 16
        for transport in nlargest(_DROPPED_MAX, self._frames, key=lambda each: self._frames[each]):
            if self.used + self._held() <= target:
                return
            if transport is not newcomer and not transport.is_broker:
                size = self._frames[transport]
                self._drop(
                    transport,
                    f"memory for requests is used up (queued.max.request.bytes), and this one held {size} "
                    "bytes",
                )

    # --- buffers --------------------------------------------------------------------------------------------

    def buffer(self, length: int, first: int) -> bytearray:
        """A spare buffer of `length` bytes, or a new one of `first` bytes."""
        spare = self._spare
        for at, buffer in enumerate(spare):
            if len(buffer) == length:
                return spare.pop(at)
        return bytearray(first)

    def recycle(self, buffer: bytearray) -> None:
        if len(buffer) <= _SPARE_BYTES_MAX:
            if len(self._spare) >= _SPARE_BUFFERS:
                del self._spare[0]
            self._spare.append(buffer)

    # --- responses ------------------------------------------------------------------------------------------

    @property
    def is_too_much_unread(self) -> bool:
        return self.answers + self._held_answers() > self._answers_limit
