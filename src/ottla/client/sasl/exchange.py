"""The interface of SASL mechanisms: a first message, and an answer to each challenge.

An exchange serves one authentication. It does no I/O, and the caller passes randomness.
"""

from __future__ import annotations

from typing import Protocol


class ExchangeFailed(Exception):
    """The server sent something that the mechanism must refuse. The text contains no secret."""


class Exchange(Protocol):
    def first(self) -> bytes:
        """The first message of the client."""
        ...

    def answer(self, challenge: bytes) -> bytes | None:
        """The answer to a challenge; None when the exchange is complete."""
        ...
