"""Garbage collection in Spark's Python workers, which run a full collection after each task.

With numba, pyarrow and the client loaded, such a collection takes 0.1 s of CPU and finds nothing. This is
more than the rest of a small micro-batch. `freeze_loaded_modules` therefore freezes the loaded modules. Garbage of the
tasks is still collected.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

#: Freeze again only after at least this many new modules were loaded.
_MODULES_NEW: Final = 20
_modules_seen = 0


def freeze_loaded_modules() -> None:
    """Freeze the loaded modules after the first task, and after tasks that loaded many modules."""
    global _modules_seen
    loaded = len(sys.modules)
    if loaded - _modules_seen >= _MODULES_NEW:
        _modules_seen = loaded
        # Collect first: frozen garbage is never freed.
        gc.collect()
        gc.freeze()
