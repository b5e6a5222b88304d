"""This broker's life in its cluster. On a single node it is the only member and its own controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.ports.store import Registration

if TYPE_CHECKING:
    from ottla.broker.core import Broker


class Membership:
    def __init__(self, broker: Broker) -> None:
        self.node_id = broker.config.node_id
        self.broker_epoch = 1
        self.is_serving = True
        self.live: Mapping[int, Registration] = {}
        self.controller_id = self.node_id
        self.controller_epoch = 0
        self.suspended = False
