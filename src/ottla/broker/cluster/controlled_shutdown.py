"""Controlled shutdown: asks the controller to move leadership away (BrokerHeartbeat, want_shut_down).

It ends when the controller has done so, when there is nothing to hand over, or after ten seconds. There is
nothing to hand over when no other broker is alive, or when this broker's registration ended: then new leaders
are elected.

A stopping broker does not claim to be the controller, since it would resign at once. But if no controller
answers after a few attempts, it does, and hands over by itself: all other brokers may be stopping too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ottla.model.api_key import ApiKey
from ottla.model.timer_wheel import Later
from ottla.ports.effects import REFUSED

if TYPE_CHECKING:
    from ottla.broker.cluster.host import ShutdownHost

_BROKER_HEARTBEAT_VERSION: Final = 1
_LIMIT_MS: Final = 10_000
_RETRY_MS: Final = 300
#: Attempts without a controller's answer before this broker claims. An election takes less time than one
#: attempt.
_ATTEMPTS_MAX: Final = 3


class ControlledShutdown:
    def __init__(self, host: ShutdownHost, done: Callable[[], None]) -> None:
        self._host = host
        self._done: Callable[[], None] | None = done
        self._failed_attempts = 0
        self._limit = Later(self._end)
        self._retry = Later(self._ask)

    @property
    def may_claim(self) -> bool:
        return self._failed_attempts >= _ATTEMPTS_MAX

    def begin(self, now_ms: int) -> None:
        self._host.timers.add(self._limit, now_ms + _LIMIT_MS)
        self._ask()

    def end_if_done(self) -> None:
        """Live brokers or this broker's registration have changed: end if there is nothing to hand over."""
        lifecycle = self._host.lifecycle
        if not lifecycle.is_serving or all(each == lifecycle.node_id for each in lifecycle.live):
            self._end()

    def _ask(self) -> None:
        self.end_if_done()
        if self._done is None:
            return
        lifecycle = self._host.lifecycle
        request = {
            "broker_id": lifecycle.node_id, "broker_epoch": lifecycle.broker_epoch,
            "current_metadata_offset": self._host.image.end, "want_shut_down": True,
        }  # fmt: skip
        self._host.controller_channel.ask(
            ApiKey.BROKER_HEARTBEAT, _BROKER_HEARTBEAT_VERSION, request, self._answered
        )

    def _answered(self, response: Any, error: str | None) -> None:
        if self._done is None:
            return
        if error is None and not response.error_code and response.should_shut_down:
            self._end()
            return
        # An error counts as well: the controller may have been replaced without knowing it.
        self._failed_attempts += 1
        if self.may_claim:
            self._host.lifecycle.claim_if_free(is_controller_gone=error == REFUSED)
        self._host.timers.add(self._retry, self._host.now_ms + _RETRY_MS)

    def _end(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            self._host.timers.cancel(self._limit)
            self._host.timers.cancel(self._retry)
            done()
