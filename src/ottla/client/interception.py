"""Calls interceptors: each method may be missing, and an interceptor that raises is logged and skipped."""

from __future__ import annotations

import logging
from typing import Any, TypeAlias

logger = logging.getLogger(__name__)

#: An object with any of the methods of its chain. A protocol cannot express that each one is optional.
Interceptor: TypeAlias = Any


def call(interceptor: Interceptor, name: str, *arguments: Any) -> Any:
    method = getattr(interceptor, name, None)
    if method is None:
        return None
    try:
        return method(*arguments)
    except Exception:
        logger.exception("%s of interceptor %r raised", name, interceptor)
        return None
