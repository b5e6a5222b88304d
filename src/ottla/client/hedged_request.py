"""Asking one of many that could all answer: the next is asked when one has failed, and also when one takes long.

A broker may stand still while its connections stay open, for as long as a request may take; nobody shall wait for it while others live.
`Cluster` asks so for whatever any broker knows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from ottla.client.errors import AuthenticationFailed, KafkaError

Asked = TypeVar("Asked")
Result = TypeVar("Result")

#: How long one is waited for before another is asked as well.
HEDGE_S: Final = 1.0


class AllFailed(Exception):
    """Nobody answered; what each one said instead, in the order in which they said it."""

    def __init__(self, failures: list[KafkaError]) -> None:
        super().__init__("; ".join(error.message for error in failures))
        self.failures = failures


async def first_answer(
    candidates: Iterable[Asked],
    ask: Callable[[Asked], Coroutine[Any, Any, Result]],
    *,
    hedge_s: float = HEDGE_S,
) -> Result:
    """The first result that any candidate gives, asked in their order; else `AllFailed`. Whoever is still asked then is let go."""
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
                    # The others would say the same, and count it against the user.
                    raise
                except KafkaError as error:
                    failures.append(error)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    raise AllFailed(failures)
