"""The databases' drivers, loaded when they are needed: SQLite's comes with Python, the others with `pip install 'ottla[stores]'`."""

from __future__ import annotations

import importlib
from typing import Any

from ottla.spark.table_sinks.errors import SinkError


def driver(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise SinkError(
            f"this database needs the package {package}: `pip install '{package}'`, on the driver and on every executor"
        ) from None
