"""Producer ids: this broker hands out those of a block that the metadata log gave it, and asks for the next when it is used up.

No id is given twice, in no broker and in no life of one: what is left of a block when a broker ends is never used. A request
that waits for a block gives up after a while (the cluster store may be away); the block is used by later ones when it comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from ottla.metadata import records as r
from ottla.model.limits import COMMIT_WAIT_MS, PRODUCER_ID_BLOCK
from ottla.model.timer_wheel import Later

if TYPE_CHECKING:
    from ottla.broker.coordinators.host import ProducerIdHost

#: `done(producer id)`, or None if there is none to be had now.
Done: TypeAlias = Callable[[int | None], None]


class ProducerIds:
    def __init__(self, broker: ProducerIdHost) -> None:
        self._broker = broker
        self._next = 0
        self._end = 0
        #: Those who wait for a block, each with its time-out, oldest first.
        self._waiting: dict[Later, Done] = {}
        self._asking = False

    def give(self, done: Done) -> None:
        """`done` gets a fresh id, at once or when there is a new block; None if there is none to be had now."""
        if self._next < self._end:
            self._next += 1
            return done(self._next - 1)

        def give_up() -> None:
            del self._waiting[timeout]
            done(None)

        timeout = Later(give_up)
        self._waiting[timeout] = done
        self._broker.timers.add(timeout, self._broker.now_ms + COMMIT_WAIT_MS)
        return self._ask()

    def _ask(self) -> None:
        """Get another block, for all who wait."""
        if self._asking:
            return
        self._asking = True
        broker = self._broker
        if broker.controller_driver.may_decide:
            start = broker.proposed.next_producer_id
            broker.propose(
                [r.ProducerIds(start + PRODUCER_ID_BLOCK)],
                lambda error: self._had(start, PRODUCER_ID_BLOCK, error),
            )
        else:
            broker.controller_channel.ask_producer_ids(self._had)

    def _had(self, start: int, count: int, error: str | None) -> None:
        self._asking = False
        if error is None:
            self._next, self._end = start, start + count
        waiting, self._waiting = self._waiting, {}
        for timeout, done in waiting.items():
            self._broker.timers.cancel(timeout)
            if error is None:
                # Those before it may have used the block up: it waits for the next one.
                self._broker.isolation.run("a request for a producer id", self.give, done)
            else:
                self._broker.isolation.run("a request for a producer id", done, None)
