"""stand-in"""

from __future__ import annotations

from typing import Any


class Forwarding:
    def __init__(self, broker: Any) -> None: ...
    def ask(self, key: int, version: int, request: Any, done: Any) -> None: ...
