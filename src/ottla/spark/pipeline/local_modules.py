"""What lies beside a pipeline's Python file and belongs to it: the modules and packages of its own folder that it imports.

Those that it has imported by now are known to Python; those that it imports only inside functions are found in its text. Spark's workers are given
both, modules as files and packages as archives of their .py files.
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
    """The modules that were imported from there: not whatever else lies below it, as an environment of packages may."""
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
    """Modules (as files) and packages (as folders) of `folder` that these files import, anywhere in their text, and what those import.

    The folder must be on Python's path: what a name means there is what Python would make of it.
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
    """The first part of every name that is imported."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        # Who imports it will hear of it.
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _top(folder: Path, name: str) -> Path | None:
    """The module or package of that name, if it is this folder's and no other's."""
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
    """The file or the folder that has to travel for this module."""
    name, dot, _ = module.__name__.partition(".")
    return folder / name if dot or hasattr(module, "__path__") else folder / f"{name}.py"


def as_file(place: Path) -> Path:
    """A module as it is; of a package an archive of its .py files, named after what is in it, which lives as long as this process."""
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
    """Removed when the process ends: until then Spark may hand its files to new workers."""
    return tempfile.TemporaryDirectory(prefix="ottla-pipeline-")
