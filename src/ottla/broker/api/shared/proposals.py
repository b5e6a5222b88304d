"""What the APIs that change metadata share: the answer waits until the records are committed, or the time-out ends.

A request is one or more changes, each with its own row in the answer: a topic, or the settings of a resource. A change is
committed whole or not at all. One that is larger than an append of the store is refused alone, before it is proposed, so
that no later decision rests on it. The others share appends, in order.

A change that is not committed within the request's time-out is answered with REQUEST_TIMED_OUT. It may still be committed
later: the answer has left, and the image follows as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.broker.api.shared.api_table import NoResponse, Response, Result
from ottla.metadata.appends import encoded_bytes, pack, too_large
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import COMMIT_WAIT_MS
from ottla.model.steps import STEP_COST, Steps
from ottla.ports.store import APPEND_BYTES_MAX

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.metadata.records import Record

#: Some clients send a time-out of 0 or -1 for "do not wait". A commit takes milliseconds, so they get its outcome nevertheless.
_UNTIMED_MS: Final = 1_000
_MILLISECOND: Final = timedelta(milliseconds=1)
TIMED_OUT: Final = (
    "the metadata log did not confirm the change within the request's time-out: the change may still be made, "
    "so look at the result before trying again. The broker's log tells whether the cluster store (ZooKeeper) can be reached"
)

_NOT_CONTROLLER: Final = "this broker is not the controller any more: ask the new one"


class Change(NamedTuple):
    """Records that belong together, and the row of the answer that tells what became of them."""

    records: Sequence[Record]
    row: dict[str, Any]


class CommitWait:
    """An answer that waits for a commit until the request's time-out; `timed_out()` is the answer then."""

    __slots__ = ("_broker", "_call", "_is_over", "_timed_out", "bucket")

    def __init__(self, broker: Broker, call: Call, limit_ms: int, timed_out: Callable[[], Response]) -> None:
        self._broker = broker
        self._call = call
        self._timed_out = timed_out
        self._is_over = False
        self.bucket = -1
        broker.timers.add(self, broker.now_ms + limit_ms)
        call.abandon = self.stop

    def answer(self, response: Callable[[], Response]) -> None:
        """Answer, unless the time-out or the end of the connection came first."""
        if not self._is_over:
            self.stop()
            self._call.abandon = None
            self._broker.slices.answer_built(self._call, response())

    def expire(self, now_ms: int) -> None:
        self.answer(self._timed_out)

    def stop(self) -> None:
        self._is_over = True
        self._broker.timers.cancel(self)


def limit_ms(request: Any) -> int:
    """How long a request may wait for its commit: its own time-out, or the broker's if it has none."""
    timeout = getattr(request, "timeout", None)
    if timeout is None:
        return COMMIT_WAIT_MS
    own_ms: int = timeout // _MILLISECOND
    return own_ms if own_ms > 0 else _UNTIMED_MS


class Proposals:
    """The changes of one request, proposed in slices as they are decided, so that a request of many rows holds up nobody.

        proposals = Proposals(broker, call, request)
        for row in request.rows:
            proposals.add(Change(decide(broker.proposed, row), answer_row))
            if proposals.is_slice_full(cost):
                yield from proposals.end_slice()
        return proposals.answer(response)

    `broker.proposed` lacks the changes of the slice that is under way: what they share is for the handler to know. After `end_slice`
    it has them, and what other requests proposed meanwhile.
    """

    def __init__(self, broker: Broker, call: Call, request: Any) -> None:
        self._broker = broker
        self._call = call
        self._deadline_ms = broker.now_ms + limit_ms(request)
        #: Of this slice: what it cost, and its changes with their sizes.
        self._cost = 0
        self._sized: list[tuple[Change, int]] = []
        #: Changes that are proposed and not answered, and how many appends they are in.
        self._waiting: dict[int, Change] = {}
        self._appends = 0
        self._response: Response = {}
        self._wait: CommitWait | None = None

    def add(self, change: Change) -> None:
        if not change.records and not self._broker.proposals:
            return
        # One without records rests on what others have proposed: it is answered once that is committed.
        size = encoded_bytes(change.records)
        if size <= APPEND_BYTES_MAX:
            self._sized.append((change, size))
        else:
            change.row.update(error_code=ErrorCode.POLICY_VIOLATION, error_message=too_large(size))

    def is_slice_full(self, cost: int) -> bool:
        """Count what was done (as in `model/steps.py`); True if others should have their turn."""
        self._cost += cost
        return self._cost >= STEP_COST

    def end_slice(self) -> Steps[None]:
        self._propose()
        cost, self._cost = self._cost, 0
        yield cost

    def answer(self, response: Response) -> Result:
        """The response now if nothing was written, else once every change is committed, refused or timed out."""
        self._propose()
        if not self._appends:
            return (
                NoResponse.DONE
                if self._broker.slices.answer_built(self._call, response)
                else NoResponse.LATER
            )
        self._response = response
        left_ms = max(self._deadline_ms - self._broker.now_ms, 1)
        self._wait = CommitWait(self._broker, self._call, left_ms, self._timed_out)
        return NoResponse.LATER

    def _propose(self) -> None:
        broker = self._broker
        appends, self._sized = pack(self._sized), []
        for append in appends:
            if not broker.controller_driver.is_active:
                # It was while the slices before this one were decided.
                for change in append:
                    change.row.update(
                        error_code=broker.controller_driver.failure, error_message=_NOT_CONTROLLER
                    )
                continue
            self._appends += 1
            self._waiting.update((id(change), change) for change in append)
            records = [record for change in append for record in change.records]
            broker.propose(records, partial(self._append_done, append))

    def _append_done(self, append: list[Change], error: str | None) -> None:
        self._appends -= 1
        for change in append:
            del self._waiting[id(change)]
            if error is not None:
                change.row.update(error_code=self._broker.controller_driver.failure, error_message=error)
        if not self._appends and self._wait is not None:
            # Forgotten at once: the two refer to each other.
            wait, self._wait = self._wait, None
            wait.answer(lambda: self._response)

    def _timed_out(self) -> Response:
        for change in self._waiting.values():
            change.row.update(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=TIMED_OUT)
        return self._response


def refused(refusal: Refusal) -> dict[str, Any]:
    return {"error_code": refusal.code, "error_message": refusal.message}
