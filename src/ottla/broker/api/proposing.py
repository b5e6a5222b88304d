"""What the APIs that change metadata share: the answer waits until the records are committed, or the time-out ends.

A request is one or more changes, each with its own row in the answer: a topic, or the settings of a resource. A change is
committed whole or not at all. One that is larger than an append of the store is refused alone, before it is proposed, so
that no later decision rests on it. The others share appends, in order.

A change that is not committed within the request's time-out is answered with REQUEST_TIMED_OUT. It may still be committed
later: the answer has left, and the image follows as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.broker.api.table import SILENT, WAIT, Response
from ottla.controller.appends import encoded_bytes, pack, too_large
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import COMMIT_WAIT_MS
from ottla.ports.store import APPEND_BYTES_MAX

if TYPE_CHECKING:
    from ottla.broker.connection import Call
    from ottla.broker.core import Broker
    from ottla.controller.records import Record

#: Some clients send a time-out of 0 or -1 for "do not wait". A commit takes milliseconds, so they get its outcome nevertheless.
_UNTIMED_MS: Final = 1_000
_MILLISECOND: Final = timedelta(milliseconds=1)
TIMED_OUT: Final = (
    "the metadata log did not confirm the change within the request's time-out: the change may still be made, "
    "so look at the result before trying again. The broker's log tells whether the cluster store (ZooKeeper) can be reached"
)


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


def answer_after(
    broker: Broker, call: Call, request: Any, changes: Iterable[Change], response: Response
) -> Response:
    """The response now if there is nothing to write, else once every change is committed, refused or timed out."""
    appends = pack(_that_fit(changes))
    if not appends:
        return SILENT if broker.slices.answer_built(call, response) else WAIT
    waiting = [change for append in appends for change in append]
    left = len(appends)

    def timed_out() -> Response:
        for change in waiting:
            change.row.update(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=TIMED_OUT)
        return response

    wait = CommitWait(broker, call, limit_ms(request), timed_out)

    def append_done(append: list[Change], error: str | None) -> None:
        nonlocal left
        left -= 1
        del waiting[: len(append)]
        if error is not None:
            for change in append:
                change.row.update(error_code=broker.controlling.failure, error_message=error)
        if not left:
            wait.answer(lambda: response)

    for append in appends:
        records = [record for change in append for record in change.records]
        broker.propose(records, partial(append_done, append))
    return WAIT


def _that_fit(changes: Iterable[Change]) -> Iterable[tuple[Change, int]]:
    """The changes with something to write and their sizes; each that is too large is refused in its own row."""
    for change in changes:
        if change.records:
            size = encoded_bytes(change.records)
            if size <= APPEND_BYTES_MAX:
                yield change, size
            else:
                change.row.update(error_code=ErrorCode.POLICY_VIOLATION, error_message=too_large(size))


def refused(refusal: Refusal) -> dict[str, Any]:
    return {"error_code": refusal.code, "error_message": refusal.message}
