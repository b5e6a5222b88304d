"""Hedged requests: ask the next broker if one has failed, and also if one takes long.

A broker can hang with open connections for as long as a request may take. `Cluster` uses this for every
request that any broker can answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from ottla.client.errors import AuthenticationFailed, KafkaError

Asked = TypeVar("Asked")
Result = TypeVar("Result")

#: How long to wait for one broker before the next one is asked too.
HEDGE_S: Final = 1.0


class AllFailed(Exception):
    """No candidate answered. `failures` has the errors in the order in which they came."""

    def __init__(self, failures: list[KafkaError]) -> None:
        super().__init__("; ".join(error.message for error in failures))
        self.failures = failures


async def first_answer(
    candidates: Iterable[Asked],
    ask: Callable[[Asked], Coroutine[Any, Any, Result]],
    *,
    hedge_s: float = HEDGE_S,
) -> Result:
    """The first result of the candidates, asked in order; else `AllFailed`. Requests to the others are
    cancelled.
    """
    left = deque(candidates)
    running: set[asyncio.Task[Result]] = set()
    failures: list[KafkaError] = []
    try:
        while left or running:
            if left:
                running.add(asyncio.get_running_loop().create_task(ask(left.popleft())))
            done, running = await asyncio.wait(
                running, timeout=hedge_s if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                try:
                    return task.result()
                except AuthenticationFailed:
                    # The other brokers would answer the same, and count the failed login again.
                    raise
                except KafkaError as error:
                    failures.append(error)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    raise AllFailed(failures)
