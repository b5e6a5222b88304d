"""CPU time of the calling thread, without the garbage collections that ran on it.

A collection in a process of tests walks over everything that all tests have made. It starts at any
allocation, so it would be added to whatever is measured at that moment. A broker in a process of its own has
frozen what it started with: there collections count.
"""

import gc
import threading
import time


class _Collections(threading.local):
    """Of one thread: a collection runs on the thread whose allocation started it."""

    seconds = 0.0
    began_s = 0.0


_COLLECTIONS = _Collections()


def _note(phase: str, _info: dict[str, int]) -> None:
    if phase == "start":
        _COLLECTIONS.began_s = time.thread_time()
    else:
        _COLLECTIONS.seconds += time.thread_time() - _COLLECTIONS.began_s


gc.callbacks.append(_note)


def thread_time_s() -> float:
    return time.thread_time() - _COLLECTIONS.seconds
