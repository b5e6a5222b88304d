"""A broker that cannot reach the store, while clients can reach it: it asks the others whether it still counts.

While the store is out of reach a broker serves on with what was decided (R6). If it is out of reach for this broker alone, the
others take it for dead after its session's time-out and elect new leaders, and it does not hear of that. Nothing it does
then can harm: it acknowledges nothing that the ISR lacks, and nobody fetches from it. But its clients would ask it, again and
again, and be told that it leads. So after the time-out it asks its peers; once one of them does not know it among the living
it ceases, and sends clients that ask for leaders away (`api/metadata.py`), until it reaches the store again.
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
#: The lane of this broker's own requests (`broker/requests/controller_channel.py`).
_LANE: Final = 0
_RETRY_MS: Final = 1000


class RegistrationCheck:
    def __init__(self, host: RegistrationCheckHost) -> None:
        self._host = host
        self._look = Later(self._ask)
        #: Whether others have said that this broker's life is over, which it could not hear of itself.
        self.has_expired = False

    def suspended(self, now_ms: int) -> None:
        """The store is out of reach."""
        timers = self._host.timers
        timers.cancel(self._look)
        timers.add(self._look, now_ms + self._host.config.zookeeper_session_timeout_ms)

    def back(self) -> None:
        """It can be reached again: what this broker is it hears from there."""
        self._host.timers.cancel(self._look)
        self.has_expired = False

    def _ask(self) -> None:
        host = self._host
        lifecycle = host.lifecycle
        if not lifecycle.suspended or not lifecycle.is_serving:
            return
        host.timers.add(self._look, host.now_ms + _RETRY_MS)
        body = request_encoder(ApiKey.DESCRIBE_CLUSTER, _VERSION)({"endpoint_type": 1})
        for peer in lifecycle.live.values():
            if peer.node_id != lifecycle.node_id:
                where = (peer.node_id, peer.host, peer.port)
                host.outbox.append(
                    (ASK, where, _LANE, ApiKey.DESCRIBE_CLUSTER, _VERSION, body, self._answered)
                )

    def _answered(self, answer: memoryview | None, error: str | None) -> None:
        lifecycle = self._host.lifecycle
        if answer is None or not lifecycle.suspended or not lifecycle.is_serving:
            return
        try:
            known = decode_response(ApiKey.DESCRIBE_CLUSTER, _VERSION, answer, 0).brokers
        except MalformedMessage:
            return
        if all(int(each.broker_id) != lifecycle.node_id for each in known):
            self._host.say(
                "the store cannot be reached, and the other brokers have taken this one for dead: it serves nothing until "
                "the store can be reached again"
            )
            self.has_expired = True
            lifecycle.cease()
