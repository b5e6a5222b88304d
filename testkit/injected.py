"""Errors that a test raises on purpose inside the broker, to see that they stay where they are.

Everything else that the broker's core contains (`broker/requests/isolation.py`) is a mistake of the core: in
simulations and tests it is raised again, so that it fails the run as if it had not been contained.
"""

from __future__ import annotations


class Injected(Exception):
    """Raised on purpose."""


def is_injected(error: BaseException) -> bool:
    return isinstance(error, Injected)
