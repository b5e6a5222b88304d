"""What the mechanisms have in common: a first message, an answer to each challenge, and a reason to stop.

An exchange serves one authentication; the next one on the same connection needs a new one. It makes no I/O, and randomness is
handed to it.
"""

from __future__ import annotations

from typing import Protocol


class ExchangeFailed(Exception):
    """The server said something that the mechanism must not accept. The text has no secret in it."""


class Exchange(Protocol):
    def first(self) -> bytes:
        """The message that opens the exchange."""
        ...

    def answer(self, challenge: bytes) -> bytes | None:
        """The answer to what the server said; None when the server has proved all it must and the exchange is over."""
        ...
