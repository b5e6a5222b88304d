"""What the APIs of the controller share: who may ask it, and an answer that leaves once the decision is committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.shared.api_table import NoResponse, Response, Result
from ottla.broker.api.shared.cluster_action import is_broker
from ottla.broker.api.shared.proposals import CommitWait, limit_ms
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.metadata.records import Record


class Decisions:
    """Changes of partitions and brokers that one request proposes, in one go or in slices; `answer` waits for all of them."""

    def __init__(self, broker: Broker, request: Any) -> None:
        self._broker = broker
        self._deadline_ms = broker.now_ms + limit_ms(request)
        self._proposed = self._left = 0
        self._error: str | None = None
        self._done: Callable[[], None] | None = None

    def propose(self, records: Sequence[Record]) -> None:
        self._proposed += 1
        self._left += 1
        self._broker.controller_driver.propose(records, self._one_done)

    def _one_done(self, error: str | None) -> None:
        self._left -= 1
        self._error = self._error or error
        if not self._left and self._done is not None:
            self._done()

    def answer(
        self, call: Call, response: Callable[[], Response], failed: Callable[[ErrorCode], Response]
    ) -> Result:
        """Answer with `response` once all of it is in the image, or with `failed` at the latest when the time-out ends."""
        broker = self._broker
        if not self._proposed:
            # The answer may rest on what others proposed and what is not committed yet.
            self.propose(())
        limit_ms = max(self._deadline_ms - broker.now_ms, 1)
        wait = CommitWait(broker, call, limit_ms, lambda: failed(ErrorCode.REQUEST_TIMED_OUT))

        def done() -> None:
            wait.answer(response if self._error is None else lambda: failed(broker.controller_driver.failure))

        self._done = done
        if not self._left:
            done()
        return NoResponse.LATER


def answer_committed(
    broker: Broker,
    call: Call,
    request: Any,
    records: Sequence[Record],
    response: Callable[[], Response],
    failed: Callable[[ErrorCode], Response],
) -> Result:
    """Propose, and answer with `response` once all of it is in the image, or with `failed` at the latest when the time-out ends."""
    decisions = Decisions(broker, request)
    decisions.propose(records)
    return decisions.answer(call, response, failed)


def asked_in_vain(broker: Broker, call: Call, node_id: int, epoch: int) -> ErrorCode | None:
    """Why a broker's own request is refused: it is not that broker's, there is another controller, or another registration of
    that broker (R5)."""
    if not is_broker(broker, call, node_id):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if not broker.controller_driver.may_decide:
        return ErrorCode.NOT_CONTROLLER
    known = broker.proposed.brokers.get(node_id)
    if known is None or known.epoch != epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    return None
