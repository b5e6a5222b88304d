"""A computation in steps, so that a long one need not hold up others.

A generator of this kind yields after each step, either

    a number     what the step cost, in records decoded or rows made (1 to 5 µs each), or
    a function   a call into C code that takes long and releases the interpreter lock; its result is sent back in

and returns its result. Whoever runs it may stop after any step and go on later (`broker/requests/slices.py`),
or run it to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias, TypeVar

Result = TypeVar("Result")
Step: TypeAlias = int | Callable[[], Any]
Steps: TypeAlias = Generator[Step, Any, Result]

#: What a step costs at most, as far as a computation can choose.
STEP_COST: Final = 500
#: What is done in one turn of the event loop: 2 to 5 ms.
SLICE_COST: Final = 1000


def run(steps: Steps[Result]) -> Result:
    """Run to the end at once."""
    value: Any = None
    error: Exception | None = None
    while True:
        try:
            step = steps.send(value) if error is None else steps.throw(error)
        except StopIteration as end:
            result: Result = end.value
            return result
        value, error = (None, None) if isinstance(step, int) else attempt(step)


def attempt(step: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """The result of a step that is a function, or what it raised, which is for the computation to deal with."""
    try:
        return step(), None
    except Exception as error:
        return None, error
