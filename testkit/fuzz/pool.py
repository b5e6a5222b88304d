"""Runs parts of a run in parallel, each in its own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
#: Processes are replaced after this many items, to release their memory.
_ITEMS_PER_PROCESS: Final = 40


def in_processes(
    function: Callable[[_Item], _Result], items: Sequence[_Item], jobs: int
) -> Iterator[_Result]:
    """The results in the order of the items; the first exception ends the run. With one job, in this process.

    Each part of the items has its own pool: a pool with `max_tasks_per_child` may not replace a process that
    ended, and then hangs (CPython issue 115634).
    """
    if jobs == 1 or len(items) < 2:
        yield from map(function, items)
        return
    size = jobs * _ITEMS_PER_PROCESS
    for start in range(0, len(items), size):
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            try:
                yield from pool.map(function, items[start : start + size])
            finally:
                pool.shutdown(cancel_futures=True)
