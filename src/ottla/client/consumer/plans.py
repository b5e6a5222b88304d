"""Plans: work whose parts belong to different threads, written once for the blocking and the asyncio
consumer.

A plan is a generator. It yields coroutines, which run on the consumer's event loop, and calls, which belong
to the caller: a `Callback` of the user runs in the thread (or task) that polls, a `StoreCall` may block.
Results and exceptions are sent back into the plan. `perform` runs a plan for blocking callers,
`perform_async` for asyncio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, TypeAlias, TypeVar

from ottla.client.loop_thread import LoopThread

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Callback:
    """A callback of the user. An awaitable result is awaited on asyncio."""

    call: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class StoreCall:
    """A call into an offset store. `inline`: in the caller's thread, which has the open transaction."""

    call: Callable[[], Any]
    inline: bool = False


Part: TypeAlias = Coroutine[Any, Any, Any] | Callback | StoreCall
Plan: TypeAlias = Generator[Part, Any, Result]


def perform(plan: Plan[Result], thread: LoopThread) -> Result:
    def run(part: Part) -> Any:
        return part.call() if isinstance(part, Callback | StoreCall) else thread.run(part)

    value, error = None, None
    while True:
        try:
            part = plan.send(value) if error is None else plan.throw(error)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        value, error = None, None
        try:
            value = run(part)
        except BaseException as raised:
            error = raised


async def perform_async(plan: Plan[Result]) -> Result:
    async def run(part: Part) -> Any:
        if isinstance(part, Callback):
            answer = part.call()
            return await answer if isawaitable(answer) else answer
        if isinstance(part, StoreCall):
            return part.call() if part.inline else await asyncio.to_thread(part.call)
        return await part

    value, error = None, None
    while True:
        try:
            part = plan.send(value) if error is None else plan.throw(error)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        value, error = None, None
        try:
            value = await run(part)
        except BaseException as raised:
            error = raised
