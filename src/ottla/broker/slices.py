"""Long requests in slices: no request holds the event loop while it is worked on.

The work of a request is a generator that yields what it did since the last time, in rows (a partition, a setting, a
member; a few microseconds each). What is done within the first slice is answered at once, like any request. The rest goes
into a line: each call of `turn` does one slice of one request, and the first few requests of the line take turns. So
other connections wait for one slice at most, and the answers that are being built have a bounded size together.

A handler uses it like this:

    return broker.slices.answer(call, _describe(broker, request))

where `_describe` yields now and then and returns the response. An answer that is large in itself hands over its rows as
they are made, so that they are encoded and forgotten one by one:

    rows: list[dict[str, Any]] = []
    return broker.slices.answer(call, _describe(broker, request, rows), "results", rows)

While a request is in the line nothing more is read from its connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ottla.broker.api.table import SILENT, WAIT, Response
from ottla.broker.connection import Enclosed
from ottla.model.limits import ANSWER_BYTES_MAX
from ottla.ports.effects import PAUSE
from ottla.wire.encode import EncodedRows
from ottla.wire.schema import response_class
from ottla.wire.sliced import CHUNK, encode_parts, encode_row, rows_below, rows_class

if TYPE_CHECKING:
    from ottla.broker.connection import Call
    from ottla.broker.core import Broker

#: What a handler works on: yields rows done, returns the response (or WAIT or SILENT, if it sees to the answer itself).
Work: TypeAlias = Generator[int, None, Response]

#: Rows that are worked on in one slice: about five milliseconds.
SLICE_ROWS: Final = 1000
#: Requests that take turns; the others wait for one of them to end.
_ACTIVE_MAX: Final = 4


class AnswerTooLarge(Exception):
    """An answer has grown beyond what is sent to anybody."""


class Slices:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: The requests that are worked on or wait for it; the first few are the active ones.
        self.line: deque[_Job] = deque()
        #: Rows that were worked on since the last turn, so that many requests at once do not add up either.
        self._spent = 0

    def answer(
        self, call: Call, work: Work, field: str | None = None, rows: list[dict[str, Any]] | None = None
    ) -> Response:
        """What a handler returns: the response if it is done soon, else WAIT.

        `field` names the array of the response to which `rows` belong, which the work fills.
        """
        if self._spent < SLICE_ROWS:
            try:
                while self._spent < SLICE_ROWS:
                    self._spent += next(work) or 1
            except StopIteration as stop:
                self._spent += 1
                response: Response = stop.value
                if field is not None:
                    response = {**response, field: rows}
                return response
        self._wait(call, work, field, rows)
        return WAIT

    def _wait(self, call: Call, work: Work, field: str | None, rows: list[dict[str, Any]] | None) -> None:
        job = _Job(self, call, work, field, rows)
        self.line.append(job)
        call.abandon = job.abandon
        connection = call.connection
        if not connection.paused and not isinstance(connection, Enclosed):
            connection.paused = True
            self._broker.outbox.append((PAUSE, connection))

    def answer_later(
        self, call: Call, work: Work, field: str | None = None, rows: list[dict[str, Any]] | None = None
    ) -> None:
        """The same for a call that waits already."""
        response = self.answer(call, work, field, rows)
        if response is not WAIT and response is not SILENT:
            self._broker.answer(call, response)

    def answer_built(self, call: Call, response: Response) -> bool:
        """Answer with a response that is there already, however large it is; False if that will be later."""
        if rows_below(response_class(call.entry.key, call.entry.version), response) <= CHUNK:
            self._broker.answer(call, response)
            return True
        self._wait(call, _built(response), None, None)
        return False

    def turn(self) -> bool:
        """Do one slice of the next request; True if there is more to do."""
        self._spent = 0
        line = self.line
        if not line:
            return False
        job = line.popleft()
        if job.go_on():
            # Behind the other active ones, in front of those who have not begun.
            line.insert(min(_ACTIVE_MAX - 1, len(line)), job)
        return bool(line)

    def forget(self, job: _Job) -> None:
        if job in self.line:
            self.line.remove(job)


class _Job:
    """One request in the line: its work, then the encoding of its answer."""

    __slots__ = ("_call", "_field", "_rows", "_slices", "_steps", "_work")

    def __init__(
        self, slices: Slices, call: Call, work: Work, field: str | None, rows: list[dict[str, Any]] | None
    ) -> None:
        self._slices = slices
        self._call = call
        self._work = work
        self._field = field
        self._rows = rows
        self._steps = self._all()

    def abandon(self) -> None:
        """The connection is gone."""
        self._slices.forget(self)
        self._work.close()

    def go_on(self) -> bool:
        """One slice; False when there is nothing left to do."""
        call, done = self._call, 0
        if call.connection.closed:
            self._work.close()
            return False
        try:
            while done < SLICE_ROWS:
                done += next(self._steps) or 1
        except StopIteration:
            return False
        except Exception as error:
            # It affects this connection alone.
            broker, entry = self._slices._broker, call.entry
            if not isinstance(error, AnswerTooLarge):
                broker.say(
                    f"internal error in API {entry.key} version {entry.version} from {call.connection.peer}: {error!r}"
                )
            broker.close(call.connection, f"API {entry.key}: {error}")
            return False
        return True

    def _all(self) -> Generator[int, None, None]:
        call = self._call
        broker, entry = self._slices._broker, call.entry
        cls = response_class(entry.key, entry.version)
        encoded = EncodedRows()
        rows = self._rows if self._rows is not None else []
        row_cls = rows_class(cls, self._field) if self._field is not None else None
        response: Response | None = None
        while response is None:
            try:
                yield next(self._work)
            except StopIteration as stop:
                response = stop.value
            for row in rows:
                encoded.add((yield from encode_row(row_cls, row)))
                _check_size(encoded.size)
            rows.clear()
        if response is WAIT or response is SILENT:
            return
        if self._field is not None:
            response = {**response, self._field: encoded}
        parts = yield from encode_parts(cls, response)
        _check_size(sum(map(len, parts)))
        broker.answer_encoded(call, parts)


def _built(response: Response) -> Work:
    yield 0
    return response


def _check_size(size: int) -> None:
    if size > ANSWER_BYTES_MAX:
        raise AnswerTooLarge(
            f"the answer would have more than {ANSWER_BYTES_MAX} bytes: ask for less at once"
        )
