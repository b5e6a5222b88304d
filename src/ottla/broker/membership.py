"""This broker's life in the cluster, as far as the controller looks at it. A broker on its own always serves and controls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.ports.store import Registration

if TYPE_CHECKING:
    from ottla.broker.core import Broker


class Membership:
    def __init__(self, broker: Broker) -> None:
        self.node_id = broker.config.node_id
        #: The registrations that there are.
        self.live: Mapping[int, Registration] = {}
        #: Who controls, or -1; and its epoch.
        self.controller_id = -1 if broker.clustered else self.node_id
        self.controller_epoch = 0
        #: Whether the store is out of reach for now: nothing is decided meanwhile (R6).
        self.suspended = False
