"""Producer ids: this broker hands out those of a block that the metadata log gave it, and asks for the next when it is used up.

No id is given twice, in no broker and in no life of one: what is left of a block when a broker ends is never used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.controller import records as r
from ottla.model.limits import PRODUCER_ID_BLOCK

if TYPE_CHECKING:
    from ottla.broker.core import Broker


class ProducerIds:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._next = 0
        self._end = 0
        self._waiting: list[Callable[[str | None], None]] = []

    def give(self, done: Callable[[int | None], None]) -> None:
        """`done` hears of a fresh id, at once or when there is a new block; None if there is none to be had now."""
        if self._next < self._end:
            self._next += 1
            return done(self._next - 1)

        def had(error: str | None) -> None:
            # Those who waited before us may have used the new block up.
            done(None) if error is not None else self.give(done)

        return self._more(had)

    def _more(self, done: Callable[[str | None], None]) -> None:
        """Get another block; `done(error)` for everybody who asked meanwhile."""
        self._waiting.append(done)
        if len(self._waiting) > 1:
            return

        def had(start: int, count: int, error: str | None) -> None:
            if error is None:
                self._next, self._end = start, start + count
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                self._broker.isolation.run("a request for a producer id", each, error)

        broker = self._broker
        if broker.controlling.is_active:
            start = broker.proposed.next_producer_id
            broker.propose(
                [r.ProducerIds(start + PRODUCER_ID_BLOCK)], lambda error: had(start, PRODUCER_ID_BLOCK, error)
            )
        else:
            broker.forwarding.ask_producer_ids(had)
