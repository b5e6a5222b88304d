"""The objects that an exception interrupted: those whose frames it passed through.

They are read from the traceback, so code that does not fail pays nothing. Used where errors are contained
(`broker/requests/isolation.py`, `runtime/effect_runner.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType


def interrupted_frames(error: BaseException) -> Iterator[FrameType]:
    """The frames that the exception left, outermost first, without that of the handler."""
    step = error.__traceback__
    while step is not None and (step := step.tb_next) is not None:
        yield step.tb_frame


def interrupted_objects(error: BaseException) -> list[object]:
    """The objects whose methods it left, each once, outermost first."""
    found: dict[int, object] = {}
    for frame in interrupted_frames(error):
        if (owner := frame.f_locals.get("self")) is not None:
            found.setdefault(id(owner), owner)
    return list(found.values())
