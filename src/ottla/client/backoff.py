"""Back-off times: before a retry of a request, and before a reconnect to a broker.

`Reconnects` keeps state by address; the caller passes time and randomness. `Pool` and every retry use it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable

from ottla.client.settings import ClientConfig


def doubled_ms(first_ms: float, most_ms: float, attempt: int) -> float:
    """Exponential back-off up to the maximum; `attempt` 1 is the first retry."""
    return min(most_ms, first_ms * (1 << min(max(attempt - 1, 0), 16)))


def backoff_ms(settings: ClientConfig, attempt: int) -> float:
    """The milliseconds before retry number `attempt` (1 is the first): exponential, with jitter."""
    return doubled_ms(settings.retry_backoff_ms, settings.retry_backoff_max_ms, attempt) * random.uniform(
        0.8, 1.2
    )


class Reconnects:
    """When each address may be dialled again: at once if it was never tried or the last attempt succeeded."""

    def __init__(
        self, settings: ClientConfig, jitter: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._settings = settings
        self._jitter = jitter
        self._failures: dict[Hashable, tuple[int, float]] = {}

    def failed(self, address: Hashable, now_s: float) -> None:
        count = self._failures.get(address, (0, 0.0))[0] + 1
        wait_ms = doubled_ms(
            self._settings.reconnect_backoff_ms, self._settings.reconnect_backoff_max_ms, count
        )
        self._failures[address] = (count, now_s + wait_ms * self._jitter(0.8, 1.2) / 1000)

    def reached(self, address: Hashable) -> None:
        self._failures.pop(address, None)

    def wait_s(self, address: Hashable, now_s: float) -> float:
        return max(self._failures.get(address, (0, now_s))[1] - now_s, 0.0)
