"""Scripts of simulated clients: coroutines that wait for callbacks of the simulation.

    async def work(self): response = await self.call(node_id, key, body)
    play(actor.work())

Only `Call` can be awaited. A client that dies is never called again, so its script ends.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeAlias

from testkit.checkers.partition import Anomaly
from testkit.sim.actors import Actor

Begin: TypeAlias = Callable[[Callable[[Any], None]], None]
Script: TypeAlias = Coroutine[Begin, Any, Any]


class Call:
    """Awaitable: calls `begin(done)`; its value is the argument of `done`, which is called later and once."""

    __slots__ = ("_begin",)

    def __init__(self, begin: Begin) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Begin, Any, Any]:
        return (yield self._begin)


def play(script: Script) -> None:
    """Run a coroutine until it waits, and again for each result."""

    def go_on(value: Any) -> None:
        try:
            begin = script.send(value)
        except StopIteration:
            return
        begin(go_on)

    go_on(None)


async def together(*scripts: Script) -> None:
    """Run several at once until all have ended; then raise the first exception."""
    left, failures = len(scripts), []

    def begin(done: Callable[[Any], None]) -> None:
        async def one(script: Script) -> None:
            nonlocal left
            try:
                await script
            except Anomaly:
                raise
            except Exception as failure:
                failures.append(failure)
            left -= 1
            if not left:
                done(None)

        for script in scripts:
            play(one(script))

    await Call(begin)
    if failures:
        raise failures[0]


class Scripted(Actor):
    """An actor whose scripts wait for time, metadata and responses."""

    async def sleep(self, delay_ms: int) -> None:
        await Call(lambda done: self.later(delay_ms, lambda: done(None)))

    async def refreshed(self) -> None:
        """Wait for a refresh of the metadata."""
        await Call(lambda done: self.refresh(lambda: done(None)))

    async def call(
        self,
        node_id: int,
        key: int,
        body: dict[str, Any],
        version: int | None = None,
        purpose: str = "",
        as_broker: int | None = None,
    ) -> Any | None:
        """The response; None if there is none."""

        def begin(done: Callable[[Any], None]) -> None:
            self.ask(node_id, key, body, done, purpose=purpose, version=version, as_broker=as_broker)

        return await Call(begin)
