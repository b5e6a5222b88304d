"""Sync sites, found in the source: for each, a test must notice when it is skipped.

A site has the name that `SimDisk` gives it: file, function and line of a call of `sync` or `sync_dir` on a
disk; `SYNC …` for the kinds of the effect; and the two syncs inside `replace_file`, which are one site each
for all callers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import ottla

#: The packages that decide about syncs.
_PLACES: Final = ("broker", "log", "runtime/embedded_store.py")
EFFECT_SITES: Final = ("SYNC file", "SYNC directory", "SYNC loose file", "SYNC parent")
REPLACE_SITES: Final = ("replace_file:sync", "replace_file:sync_dir")


def call_sites() -> list[str]:
    """Every line that calls `sync` or `sync_dir` on a disk."""
    package = Path(ottla.__file__).resolve().parent
    files = [
        path for place in _PLACES for path in sorted((package / place).rglob("*.py")) or [package / place]
    ]
    return [
        f"{path.relative_to(package).as_posix()}:{function}:{line}"
        for path in files
        for function, line in _calls(ast.parse(path.read_text()), "<module>")
    ]


def _calls(node: ast.AST, function: str) -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        inner = function
        if isinstance(child, ast.FunctionDef):
            inner = child.name
        elif isinstance(child, ast.Lambda):
            inner = "<lambda>"
        elif isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
            on = ast.unparse(child.func.value).rpartition(".")[2]
            if child.func.attr in ("sync", "sync_dir", "sync_device") and on in ("disk", "_disk"):
                yield function, child.lineno
        yield from _calls(child, inner)


def all_sites() -> list[str]:
    return [*call_sites(), *EFFECT_SITES, *REPLACE_SITES]
