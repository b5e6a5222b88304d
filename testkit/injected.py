"""Errors that a test raises inside the broker on purpose, to check that they are contained.

Every other error that the core contains (`broker/requests/isolation.py`) is a bug of the core. Simulations
and tests raise it again, so that it fails the run.
"""

from __future__ import annotations


class Injected(Exception):
    """Raised on purpose."""


def is_injected(error: BaseException) -> bool:
    return isinstance(error, Injected)
