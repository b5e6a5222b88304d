"""stand-in"""

from __future__ import annotations

from typing import Any


class Controlling:
    def __init__(self, broker: Any) -> None:
        self.is_active = not broker.membership.clustered
        self.epoch = 0

    def take_over(self, epoch: int, now_ms: int) -> None: ...
    def resign(self) -> None: ...
    def live_changed(self, now_ms: int) -> None: ...
    def suspect(self, node_id: int, now_ms: int) -> None: ...
    def follow(self, records: Any, now_ms: int) -> None: ...
