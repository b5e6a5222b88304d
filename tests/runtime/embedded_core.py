"""Questions to the core of an embedded broker, asked on its own thread."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.peer import PATIENCE_S


def on_loop(broker: Any, question: Callable[[Any], Any]) -> Any:
    """Call a function with the core on its own thread, between two turns."""
    answer: list[Any] = []
    done = threading.Event()

    def ask() -> None:
        answer.append(question(broker._node._broker))
        done.set()

    broker._loop.call_soon_threadsafe(ask)
    assert done.wait(PATIENCE_S)
    return answer[0]


def eventually(broker: Any, question: Callable[[Any], bool]) -> None:
    """Wait until a condition of the core holds. Each check is a turn of its loop, so this needs no sleep."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if on_loop(broker, question):
            return
    pytest.fail("the condition did not become true")
