"""Allocates producer ids from a block that the metadata log gave to this broker, and requests the next block
when needed.

No producer id is ever used twice. The rest of a block is lost when the broker stops. A request that waits for
a block times out after a while, since the cluster store may be unavailable. Later requests use the block when
it arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from ottla.metadata import records as r
from ottla.model.limits import COMMIT_WAIT_MS, PRODUCER_ID_BLOCK
from ottla.model.timer_wheel import Later

if TYPE_CHECKING:
    from ottla.broker.coordinators.host import ProducerIdHost

#: `done(producer id)`, or `done(None)` if none is available.
Done: TypeAlias = Callable[[int | None], None]


class ProducerIds:
    def __init__(self, broker: ProducerIdHost) -> None:
        self._broker = broker
        self._next = 0
        self._end = 0
        #: Requests that wait for a block, each with its timeout, oldest first.
        self._waiting: dict[Later, Done] = {}
        self._is_requesting = False

    def give(self, done: Done) -> None:
        """Call `done` with an unused id, now or when the next block arrives; with None after a timeout."""
        if self._next < self._end:
            self._next += 1
            return done(self._next - 1)

        def give_up() -> None:
            del self._waiting[timeout]
            done(None)

        timeout = Later(give_up)
        self._waiting[timeout] = done
        self._broker.timers.add(timeout, self._broker.now_ms + COMMIT_WAIT_MS)
        return self._request_block()

    def _request_block(self) -> None:
        """Request the next block, once for all waiting requests."""
        if self._is_requesting:
            return
        self._is_requesting = True
        broker = self._broker
        if broker.controller_driver.may_decide:
            start = broker.proposed.next_producer_id
            broker.propose(
                [r.ProducerIds(start + PRODUCER_ID_BLOCK)],
                lambda error: self._on_block(start, PRODUCER_ID_BLOCK, error),
            )
        else:
            broker.controller_channel.ask_producer_ids(self._on_block)

    def _on_block(self, start: int, count: int, error: str | None) -> None:
        self._is_requesting = False
        if error is None:
            self._next, self._end = start, start + count
        waiting, self._waiting = self._waiting, {}
        for timeout, done in waiting.items():
            self._broker.timers.cancel(timeout)
            if error is None:
                # Requests before it may have used up the block: then it waits for the next one.
                self._broker.isolation.run("a request for a producer id", self.give, done)
            else:
                self._broker.isolation.run("a request for a producer id", done, None)
