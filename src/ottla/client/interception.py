"""How interceptors of producers and consumers are called: each method may be missing, and one that raises is logged and passed over."""

from __future__ import annotations

import logging
from typing import Any, TypeAlias

logger = logging.getLogger(__name__)

#: An object with any of the methods that its chain calls; a protocol cannot say that each of them may be missing.
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
