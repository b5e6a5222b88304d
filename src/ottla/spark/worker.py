"""Spark's Python workers: processes that run one task after another, and look for garbage after each.

With numba, pyarrow and the client loaded that look takes a tenth of a second of CPU, a task, and finds nothing: more than a small micro-batch needs for all
the rest. So what is loaded is taken out of the collector's sight. The tasks' own garbage is collected as ever.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

#: Fewer modules than these, loaded since, are not worth another look.
_MODULES_NEW: Final = 20
_modules_seen = 0


def spare_loaded() -> None:
    """Called at the end of a task, when everything that it needs is loaded. It does something after the first one, and where a later one loads much."""
    global _modules_seen
    loaded = len(sys.modules)
    if loaded - _modules_seen >= _MODULES_NEW:
        _modules_seen = loaded
        # What is garbage now would stay for ever.
        gc.collect()
        gc.freeze()
