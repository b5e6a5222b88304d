"""Computations in steps, so that a long one does not delay others.

Such a generator yields after each step, either

    a number     the cost of the step, in records decoded or rows created (1 to 5 µs each), or
    a function   a call into C code that takes long and releases the interpreter lock; its result is sent in

and returns its result. The caller can pause it after any step (`broker/requests/slices.py`), or run it to the
end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, TypeAlias, TypeVar

Result = TypeVar("Result")
Step: TypeAlias = int | Callable[[], Any]
Steps: TypeAlias = Generator[Step, Any, Result]

#: Maximum cost of one step, as far as a computation can choose.
STEP_COST: Final = 500
#: Cost per turn of the event loop: 2 to 5 ms.
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
    """The result of a step that is a function; its exception is raised in the computation."""
    try:
        return step(), None
    except Exception as error:
        return None, error
