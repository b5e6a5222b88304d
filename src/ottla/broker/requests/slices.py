"""Long work on the event loop in slices: one slice a turn, so that other clients wait for one slice at most.

Work is a generator of `model/steps.py`. Its steps run on the loop, a few milliseconds a turn. A step that is a function runs
as a job off the loop (RUN), one at a time, so that flushes and checkpoints find threads free. Several pieces of work take
turns, step by step. An exception in one ends that one alone: `done` gets it.

A request whose answer may be long is answered like this:

    return broker.slices.answer(call, _describe(broker, request))

where `_describe` yields now and then and returns the response. What is done within one slice is answered at once, like any
request. An answer that is large in itself hands over its rows as they are made, so that they are encoded and forgotten one by one:

    rows: list[dict[str, Any]] = []
    return broker.slices.answer(call, _describe(broker, request, rows), "results", rows)

A few of these requests at a time take turns, which bounds the answers that are being built. While a request waits here
nothing more is read from its connection.

A request that arrives when the turn has no time left is tried for a moment at the start of the next turns, before the long ones go on.
Only if it is long too does it wait in line behind them. So a short request does not wait until hundreds of long ones are answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ottla.broker.api.shared.api_table import NoResponse, Response, Result
from ottla.broker.requests.connection import EnclosedConnection
from ottla.model.limits import ANSWER_BYTES_MAX
from ottla.model.steps import SLICE_COST, Step, Steps, attempt
from ottla.ports.effects import PAUSE
from ottla.wire.encode import EncodedRows
from ottla.wire.schema import response_class
from ottla.wire.sliced import CHUNK, encode_parts, encode_row, rows_below, rows_class

if TYPE_CHECKING:
    from ottla.broker.core import Broker
    from ottla.broker.requests.connection import Call

#: Requests that take turns; the others wait for one of them to end.
_ACTIVE_MAX: Final = 4
#: The cost of a request that was not begun yet, before it counts as long.
_TRIAL_COST: Final = 50

Done: TypeAlias = Callable[[Any, Exception | None], None]
#: The steps of a handler. They return its response, or a `NoResponse`.
Work: TypeAlias = Steps[Result]
Rows: TypeAlias = list[dict[str, Any]]


class AnswerTooLarge(Exception):
    """An answer has grown beyond what is sent to anybody."""


class _Task(NamedTuple):
    steps: Steps[Any]
    done: Done
    #: What the last step gave: sent into the generator, or raised in it.
    value: Any = None
    error: Exception | None = None


class _NewRequest(NamedTuple):
    """A request that was not begun yet."""

    call: Call
    work: Work
    field: str | None
    rows: Rows | None


class Slices:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: Those that can go on now.
        self.tasks: deque[_Task] = deque()
        #: Jobs that wait for the one that runs.
        self._jobs: deque[tuple[_Task, Callable[[], Any]]] = deque()
        self._is_running = False
        #: What requests cost that were answered at once since the last slice, so that many of them do not add up.
        self._spent = 0
        #: What the present step costs beside what it yields.
        self._charged = 0
        #: Requests that take turns, and those that have not begun.
        self._active = 0
        self._line: deque[tuple[Call, Steps[None]]] = deque()
        #: Requests that are tried first. While there are any, a task that does nothing keeps the turns coming.
        self._new: deque[_NewRequest] = deque()

    def charge(self, cost: int) -> None:
        """The work that is under way costs more than its steps say."""
        self._spent += cost
        self._charged += cost

    def begin(self, steps: Steps[Any], done: Done) -> None:
        """Do this work, from the end of this turn on."""
        self.tasks.append(_Task(steps, done))

    # --- answers ------------------------------------------------------------------------------------------------

    def answer(self, call: Call, work: Work, field: str | None = None, rows: Rows | None = None) -> Result:
        """What a handler returns: the response if it is done soon, else NoResponse.LATER.

        `field` names the array of the response to which `rows` belong, which the work fills.
        """
        if self._spent >= SLICE_COST:
            if not self._new:
                self.begin(self._while_new(), _ignore)
            self._new.append(_NewRequest(call, work, field, rows))
            self._put_off(call, work)
            return NoResponse.LATER
        step: Step = 0
        while self._spent < SLICE_COST:
            try:
                step = work.send(None)
            except StopIteration as end:
                self._spent += 1
                response: Result = end.value
                if field is None or isinstance(response, NoResponse):
                    return response
                return {**response, field: rows}
            if not isinstance(step, int):
                break
            self._spent += step or 1
        self._wait(call, self._rest(call, work, step, field, rows))
        return NoResponse.LATER

    def answer_later(
        self, call: Call, work: Work, field: str | None = None, rows: Rows | None = None
    ) -> None:
        """The same for a call that waits already."""
        response = self.answer(call, work, field, rows)
        if not isinstance(response, NoResponse):
            self._broker.answer(call, response)

    def answer_built(self, call: Call, response: Response) -> bool:
        """Answer with a response that is there already, however large it is; False if that will be later."""
        if rows_below(response_class(call.entry.key, call.entry.version), response) <= CHUNK:
            self._broker.answer(call, response)
            return True
        self._wait(call, self._encoded(call, response))
        return False

    def _wait(self, call: Call, steps: Steps[None]) -> None:
        self._line.append((call, steps))
        self._start()
        self._put_off(call, steps)

    def _put_off(self, call: Call, steps: Steps[Any]) -> None:
        call.abandon = steps.close
        connection = call.connection
        if not connection.paused and not isinstance(connection, EnclosedConnection):
            connection.paused = True
            self._broker.outbox.append((PAUSE, connection))

    def _start(self) -> None:
        while self._line and self._active < _ACTIVE_MAX:
            call, steps = self._line.popleft()
            self._active += 1
            self.begin(steps, partial(self._ended, call))

    def _ended(self, call: Call, _result: None, error: Exception | None) -> None:
        self._active -= 1
        self._start()
        if isinstance(error, AnswerTooLarge):
            self._broker.close(call.connection, f"API {call.entry.key}: {error}")
        elif error is not None:
            self.failed(call, error)

    def failed(self, call: Call, error: Exception) -> None:
        """A request that can have no answer: its connection is closed, and the reason logged."""
        what = f"API {call.entry.key} version {call.version} from {call.connection.peer}"
        self._broker.isolation.contain(what, error, call=call, reloads=False)

    def _rest(self, call: Call, work: Work, step: Step, field: str | None, rows: Rows | None) -> Steps[None]:
        """The rest of a request's work, its rows encoded as they come, then the answer."""
        cls = response_class(call.entry.key, call.entry.version)
        encoded = EncodedRows()
        rows = rows if rows is not None else []
        row_cls = rows_class(cls, field) if field is not None else None
        response: Result | None = None
        counted = 0
        try:
            while response is None:
                go_on, value = work.send, None
                try:
                    value = yield step
                except Exception as error:
                    go_on, value = work.throw, error
                try:
                    step = go_on(value)
                except StopIteration as end:
                    response = end.value
                for row in rows:
                    encoded.add((yield from encode_row(row_cls, row)))
                    _check_size(encoded.size)
                rows.clear()
                # It is memory for an answer, as if it waited to be sent.
                self._broker.answers.held_bytes += encoded.size - counted
                counted = encoded.size
            if not isinstance(response, NoResponse):
                yield from self._encoded(call, response if field is None else {**response, field: encoded})
        finally:
            self._broker.answers.held_bytes -= counted

    def _encoded(self, call: Call, response: Response) -> Steps[None]:
        parts = yield from encode_parts(response_class(call.entry.key, call.entry.version), response)
        _check_size(sum(map(len, parts)))
        self._broker.answers.answer_encoded(call, parts)

    # --- requests that were not begun yet -------------------------------------------------------------------------

    def _while_new(self) -> Steps[None]:
        while self._new:
            yield 1

    def _try(self, new: _NewRequest) -> int:
        """Answer it if it is short, else it waits in line; what that cost."""
        call, work, field, rows = new
        if call.connection.closed:
            return 1
        call.abandon = None
        cost = self._charged = 0
        step: Step = 0
        try:
            while cost + self._charged < _TRIAL_COST:
                step = work.send(None)
                if not isinstance(step, int):
                    break
                cost += step or 1
        except StopIteration as end:
            response: Result = end.value
            if not isinstance(response, NoResponse):
                self._broker.answer(call, response if field is None else {**response, field: rows})
        except Exception as error:
            self.failed(call, error)
        else:
            self._wait(call, self._rest(call, work, step, field, rows))
        return cost + self._charged + 1

    # --- turns --------------------------------------------------------------------------------------------------

    def run_slice(self) -> None:
        self._spent = 0
        budget = SLICE_COST
        # A quarter is left for the long ones.
        while self._new and budget > SLICE_COST // 4:
            budget -= self._try(self._new.popleft())
        tasks = self.tasks
        while tasks and budget > 0:
            task = tasks.popleft()
            self._charged = 0
            try:
                step = task.steps.send(task.value) if task.error is None else task.steps.throw(task.error)
            except StopIteration as end:
                budget -= 1
                self._finish(task, end.value, None)
            except Exception as error:
                budget -= 1
                self._finish(task, None, error)
            else:
                if isinstance(step, int):
                    budget -= max(step, 1)
                    tasks.append(_Task(task.steps, task.done))
                else:
                    self._run(task, step)
            budget -= self._charged

    def _finish(self, task: _Task, result: Any, error: Exception | None) -> None:
        try:
            task.done(result, error)
        except Exception as failure:
            self._broker.isolation.contain("the end of a long computation", failure)

    def _run(self, task: _Task, step: Callable[[], Any]) -> None:
        self._jobs.append((task, step))
        if not self._is_running:
            self._next_job()

    def _next_job(self) -> None:
        task, step = self._jobs.popleft()
        self._is_running = True

        def done(result: tuple[Any, Exception | None] | None, error: str | None) -> None:
            self._is_running = False
            value, failure = result if result is not None else (None, RuntimeError(error))
            self.tasks.append(_Task(task.steps, task.done, value, failure))
            if self._jobs:
                self._next_job()

        self._broker.run(lambda _disk: attempt(step), done)


def _ignore(_result: Any, _error: Exception | None) -> None:
    pass


def _check_size(size: int) -> None:
    if size > ANSWER_BYTES_MAX:
        raise AnswerTooLarge(
            f"the answer would have more than {ANSWER_BYTES_MAX} bytes: ask for less at once"
        )
