"""A broker that cannot reach the store (ZooKeeper) asks the other brokers whether it is still registered.

A broker without the store serves on, with the roles it has (R6). If only this broker cannot reach the store,
its session expires, the others elect new leaders, and this broker does not find out. That is safe: it
acknowledges nothing that the ISR lacks, and no follower fetches from it. But it would tell its clients that
it leads.

So after the session time-out it asks its peers (DescribeCluster). When one of them does not list it as
registered, it stops serving and closes the connections of clients that ask for leaders (`api/metadata.py`),
until the store is back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.model.api_key import ApiKey
from ottla.model.timer_wheel import Later
from ottla.ports.effects import ASK
from ottla.wire.decode import MalformedMessage, decode_response
from ottla.wire.encode import request_encoder

if TYPE_CHECKING:
    from ottla.broker.cluster.host import RegistrationCheckHost

_VERSION: Final = 1
#: The ASK lane of this broker's own requests (`requests/controller_channel.py`).
_LANE: Final = 0
_RETRY_MS: Final = 1000


class RegistrationCheck:
    def __init__(self, host: RegistrationCheckHost) -> None:
        self._host = host
        self._next = Later(self._ask)
        #: Another broker has said that this broker is not registered any more.
        self.has_expired = False

    def suspended(self, now_ms: int) -> None:
        """The store cannot be reached: ask after the session time-out, if that lasts."""
        timers = self._host.timers
        timers.cancel(self._next)
        timers.add(self._next, now_ms + self._host.config.zookeeper_session_timeout_ms)

    def back(self) -> None:
        """The store can be reached again, and says whether this broker is registered."""
        self._host.timers.cancel(self._next)
        self.has_expired = False

    def _ask(self) -> None:
        host = self._host
        lifecycle = host.lifecycle
        if not lifecycle.suspended or not lifecycle.is_serving:
            return
        host.timers.add(self._next, host.now_ms + _RETRY_MS)
        body = request_encoder(ApiKey.DESCRIBE_CLUSTER, _VERSION)({"endpoint_type": 1})
        for peer in lifecycle.live.values():
            if peer.node_id != lifecycle.node_id:
                address = (peer.node_id, peer.host, peer.port)
                host.outbox.append(
                    (ASK, address, _LANE, ApiKey.DESCRIBE_CLUSTER, _VERSION, body, self._answered)
                )

    def _answered(self, answer: memoryview | None, error: str | None) -> None:
        lifecycle = self._host.lifecycle
        if answer is None or not lifecycle.suspended or not lifecycle.is_serving:
            return
        try:
            registered = decode_response(ApiKey.DESCRIBE_CLUSTER, _VERSION, answer, 0).brokers
        except MalformedMessage:
            return
        if all(int(each.broker_id) != lifecycle.node_id for each in registered):
            self._host.say(
                "this broker cannot reach ZooKeeper, its session has expired, and the other brokers have "
                "removed it from the cluster: it serves nothing until it reaches ZooKeeper again. Check the "
                "network between the two"
            )
            self.has_expired = True
            lifecycle.cease()
