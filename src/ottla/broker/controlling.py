"""The acting controller. On a single node that is this broker, always."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.core import Broker


class Controlling:
    def __init__(self, broker: Broker) -> None:
        self.is_active = True
        self.epoch = 0
