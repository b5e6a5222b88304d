"""Randomness as the core sees it, so that a simulation can replay it from a seed."""

from __future__ import annotations

from typing import Protocol


class Entropy(Protocol):
    def id_bytes(self) -> bytes:
        """Sixteen bytes for a new topic or directory id: a version 4 UUID."""

    def below(self, limit: int) -> int:
        """A number from 0 to limit - 1."""

    def token(self, size: int) -> bytes:
        """This many unpredictable bytes, for a secret or a nonce."""
