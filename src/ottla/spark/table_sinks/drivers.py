"""Loads database drivers on demand: SQLite comes with Python, others with `pip install 'ottla[stores]'`."""

from __future__ import annotations

import importlib
from typing import Any

from ottla.spark.table_sinks.errors import SinkError


def driver(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise SinkError(
            f"the package {package} is missing: run `pip install '{package}'` on the driver and every "
            "executor"
        ) from None
