"""What the APIs of groups share: finding a group's shard, and answers that come later, or in parts.

A coordinator's answer may come at once, or when others have joined, or when a batch counts; it may be refused when the partition
moves. `CoordinatorReply` is the reply of one request; `CombinedReply` that of one that asks about many groups, each a part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.shared.api_table import NoResponse, Response, Result
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.strings import is_name

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call
    from ottla.groups.shard import Shard

_MILLISECOND: Final = timedelta(milliseconds=1)


class CoordinatorReply:
    """The answer to one request. `refusal(code)` is an error in the shape of its API."""

    __slots__ = ("_broker", "_call", "_is_answered", "_refusal")

    def __init__(self, broker: Broker, call: Call, refusal: Callable[[ErrorCode], Response]) -> None:
        self._broker = broker
        self._call = call
        self._refusal = refusal
        self._is_answered = False

    def answer(self, response: Mapping[str, Any]) -> None:
        self._is_answered = self._broker.slices.answer_built(self._call, response)  # type: ignore[arg-type]  # an encoder only reads it

    def refuse(self, code: ErrorCode) -> None:
        self.answer(self._refusal(code))

    @property
    def outcome(self) -> Result:
        """What the handler returns."""
        return NoResponse.DONE if self._is_answered else NoResponse.LATER


class CombinedReply:
    """The answer to a request about many groups: a row each, in the request's order.

    It leaves when all rows are there, and not before the handler is done and has asked for the `outcome`: a handler that works in
    slices may be put off behind its last row.
    """

    __slots__ = ("_broker", "_call", "_finish", "_is_handled", "_left", "_rows")

    def __init__(
        self, broker: Broker, call: Call, count: int, finish: Callable[[list[Any]], Response]
    ) -> None:
        self._broker = broker
        self._call = call
        self._is_handled = False
        self._rows: list[Any] = [None] * count
        self._left = count
        self._finish = finish

    def row(self, at: int, refusal: Callable[[ErrorCode], Any]) -> RowReply:
        return RowReply(self, at, refusal)

    def fill(self, at: int, row: Any) -> None:
        self._rows[at] = row
        self._left -= 1
        if not self._left and self._is_handled:
            self._answer()

    def _answer(self) -> bool:
        return self._broker.slices.answer_built(self._call, self._finish(self._rows))

    @property
    def outcome(self) -> Result:
        """What the handler returns, when it has asked for all rows."""
        self._is_handled = True
        return NoResponse.DONE if not self._left and self._answer() else NoResponse.LATER


class RowReply:
    """One part of a gathered answer."""

    __slots__ = ("_at", "_combined", "_refusal")

    def __init__(self, combined: CombinedReply, at: int, refusal: Callable[[ErrorCode], Any]) -> None:
        self._combined = combined
        self._at = at
        self._refusal = refusal

    def answer(self, response: Mapping[str, Any]) -> None:
        self._combined.fill(self._at, response)

    def refuse(self, code: ErrorCode) -> None:
        self._combined.fill(self._at, self._refusal(code))


def find_shard(broker: Broker, group_id: str, *, writes: bool = False, may_be_empty: bool = False) -> Shard:
    """The shard of a group. Raises Refusal with what the client should hear.

    Old clients commit offsets under the empty name; nothing else may have it.
    """
    if (not group_id and not may_be_empty) or not is_name(group_id):
        raise Refusal(ErrorCode.INVALID_GROUP_ID)
    if writes:
        return broker.groups.writable_shard(group_id)
    return broker.groups.shard(group_id)


def check_still_here(broker: Broker, shard: Shard, group_id: str, *, may_be_empty: bool = False) -> None:
    """After others had their turns: the partition may have moved. Raises Refusal with what the client should hear."""
    if find_shard(broker, group_id, may_be_empty=may_be_empty) is not shard:
        raise Refusal(ErrorCode.NOT_COORDINATOR)


def milliseconds(duration: timedelta) -> int:
    return duration // _MILLISECOND
