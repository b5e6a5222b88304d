"""Database drivers, imported when a store needs one. If one is missing, the error says how to install it."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def driver(module: str, distribution: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"this store needs {distribution}: install it with `pip install 'ottla[stores]'`"
        ) from error
