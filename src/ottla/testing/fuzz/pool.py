"""Parts of a run side by side, each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
#: A process is replaced after so many, and its memory with it.
_TASKS_PER_PROCESS: Final = 40


def in_processes(
    function: Callable[[_Item], _Result], items: Sequence[_Item], jobs: int
) -> Iterator[_Result]:
    """The results in the order of the items; the first exception ends it. With one job, here."""
    if jobs == 1 or len(items) < 2:
        yield from map(function, items)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=_TASKS_PER_PROCESS) as pool:
        try:
            yield from pool.map(function, items)
        finally:
            pool.shutdown(cancel_futures=True)
