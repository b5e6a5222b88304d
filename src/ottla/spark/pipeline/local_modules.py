"""The modules and packages of a pipeline's own folder that its Python file imports.

Modules that are already imported are found in `sys.modules`; imports inside functions are found in the
source. Spark's workers receive both: modules as files, packages as archives of their .py files.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType


def loaded_from(folder: Path) -> list[ModuleType]:
    """The modules imported from this folder; not other modules below it, such as a virtual environment."""
    found = []
    tops = {entry.name.removesuffix(".py") for entry in folder.iterdir()}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or name.partition(".")[0] not in tops:
            continue
        place = folder.joinpath(*name.split("."))
        if Path(file).resolve() in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
            found.append(module)
    return found


def imported_from(folder: Path, files: Iterable[Path]) -> list[Path]:
    """The modules (files) and packages (folders) of `folder` that these files import anywhere, recursively.

    The folder must be on `sys.path`: names are resolved as Python resolves them.
    """
    found: dict[Path, None] = {}
    waiting = list(files)
    while waiting:
        for name in _imports(waiting.pop()):
            place = _top(folder, name)
            if place is not None and place not in found:
                found[place] = None
                waiting += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return list(found)


def _imports(file: Path) -> Iterator[str]:
    """The top-level name of every import."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        # The import itself will report the error.
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _top(folder: Path, name: str) -> Path | None:
    """The module or package of that name, if it is in this folder."""
    module, package = folder / f"{name}.py", folder / name
    if not module.is_file() and not package.is_dir():
        return None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations is not None:
        places = [Path(each).resolve() for each in spec.submodule_search_locations]
        return package if package in places else None
    return module if spec.origin is not None and Path(spec.origin).resolve() == module else None


def top_of(folder: Path, module: ModuleType) -> Path:
    """The file or folder to send for this module."""
    name, dot, _ = module.__name__.partition(".")
    return folder / name if dot or hasattr(module, "__path__") else folder / f"{name}.py"


def as_file(place: Path) -> Path:
    """A module unchanged; a package as an archive of its .py files, kept until the process exits."""
    if not place.is_dir():
        return place
    files = {file.relative_to(place.parent): file.read_bytes() for file in sorted(place.rglob("*.py"))}
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:12]
    archive = Path(_scratch().name, f"{place.name}-{digest}.zip")
    if not archive.exists():
        with zipfile.ZipFile(archive, "w") as writing:
            for name, content in files.items():
                writing.writestr(name.as_posix(), content)
    return archive


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    """Removed when the process exits: until then Spark may send the files to new workers."""
    return tempfile.TemporaryDirectory(prefix="ottla-pipeline-")
