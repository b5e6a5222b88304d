"""Long computations on the event loop in slices: one slice a turn, and other clients have theirs in between.

A computation is a generator of `model/steps.py`. Its steps run on the loop, a few milliseconds at a time. A step that is a
function runs as a job off the loop (RUN), one at a time, so that flushes and checkpoints find threads free. Several
computations take turns, step by step.

An exception in one ends that one alone: `done` gets it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ottla.broker.api.table import WAIT, Response
from ottla.model.steps import Steps, attempt

if TYPE_CHECKING:
    from ottla.broker.connection import Call
    from ottla.broker.core import Broker

#: The cost of one slice: 3 ms.
SLICE_COST: Final = 2000

Done: TypeAlias = Callable[[Any, Exception | None], None]


class _Task(NamedTuple):
    steps: Steps[Any]
    done: Done
    #: What the last step gave: sent into the generator, or raised in it.
    value: Any = None
    error: Exception | None = None


class Slices:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: Those that can go on now.
        self.tasks: deque[_Task] = deque()
        #: Jobs that wait for the one that runs.
        self._jobs: deque[tuple[_Task, Callable[[], Any]]] = deque()
        self._is_running = False

    def begin(self, steps: Steps[Any], done: Done) -> None:
        """Run this computation, from the end of this turn on."""
        self.tasks.append(_Task(steps, done))

    def answer(self, call: Call, steps: Steps[Response]) -> Response:
        """What a handler returns whose answer this computation makes: the answer if one slice is enough, else WAIT."""
        budget = SLICE_COST
        task = _Task(steps, lambda response, error: self._answer(call, response, error))
        while budget > 0:
            try:
                step = steps.send(None)
            except StopIteration as end:
                response: Response = end.value
                return response
            if not isinstance(step, int):
                self._run(task, step)
                return WAIT
            budget -= step
        self.tasks.append(task)
        return WAIT

    def _answer(self, call: Call, response: Response | None, error: Exception | None) -> None:
        if response is None:
            self.failed(call, error)
        else:
            self._broker.answer(call, response)

    def failed(self, call: Call, error: Exception | None) -> None:
        """A request that can have no answer: its connection is closed, and the reason logged."""
        reason = f"internal error: {error!r}"
        self._broker.say(f"API {call.entry.key} version {call.version} from {call.connection.peer}: {reason}")
        self._broker.close(call.connection, reason)

    def run_slice(self) -> None:
        budget = SLICE_COST
        tasks = self.tasks
        while tasks and budget > 0:
            task = tasks.popleft()
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

    def _finish(self, task: _Task, result: Any, error: Exception | None) -> None:
        try:
            task.done(result, error)
        except Exception as failure:
            self._broker.say(f"internal error at the end of a long computation: {failure!r}")

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
