"""What the APIs of the controller share: who may ask it, and an answer that leaves once the decision is committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.cluster_action import is_broker
from ottla.broker.api.proposing import CommitWait, limit_ms
from ottla.broker.api.table import WAIT, Response
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.broker.connection import Call
    from ottla.broker.core import Broker
    from ottla.controller.records import Record


def answer_committed(
    broker: Broker,
    call: Call,
    request: Any,
    records: Sequence[Record],
    response: Callable[[], Response],
    failed: Callable[[ErrorCode], Response],
) -> Response:
    """Propose, and answer with `response` once all of it is in the image, or with `failed` at the latest when the time-out ends.

    Also without records: the answer may rest on what others proposed and what is not committed yet.
    """
    controlling = broker.controlling

    wait = CommitWait(broker, call, limit_ms(request), lambda: failed(ErrorCode.REQUEST_TIMED_OUT))

    def done(error: str | None) -> None:
        wait.answer(response if error is None else lambda: failed(controlling.failure))

    controlling.propose(records, done)
    return WAIT


def asked_in_vain(broker: Broker, call: Call, node_id: int, epoch: int) -> ErrorCode | None:
    """Why a broker's own request is refused: it is not that broker's, there is another controller, or another registration of
    that broker (R5)."""
    if not is_broker(broker, call, node_id):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if not broker.controlling.may_decide:
        return ErrorCode.NOT_CONTROLLER
    known = broker.proposed.brokers.get(node_id)
    if known is None or known.epoch != epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    return None
