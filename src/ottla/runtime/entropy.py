"""Randomness from the operating system."""

from __future__ import annotations

import secrets
import uuid


class SystemEntropy:
    def id_bytes(self) -> bytes:
        return uuid.uuid4().bytes

    def below(self, limit: int) -> int:
        return secrets.randbelow(limit)

    def token(self, size: int) -> bytes:
        return secrets.token_bytes(size)
