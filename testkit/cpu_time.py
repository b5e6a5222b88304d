"""CPU time of the calling thread, without the garbage collections that ran on it.

A collection in a test process visits the objects of all tests, and can start at any allocation. So it would
be added to any measurement. A broker in its own process has frozen its initial objects: there collections are
measured.
"""

import gc
import threading
import time


class _Collections(threading.local):
    """Per thread: a collection runs on the thread whose allocation started it."""

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
