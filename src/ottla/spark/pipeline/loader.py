"""Loads a file as a plan: parses YAML, or runs Python and takes its pipeline.

Finds the functions that YAML names.

Functions and classes of a Python file, and of modules in its folder, are sent to Spark's workers by value, so
that a worker cannot use an older version of the file. These modules are also sent as files
(`LoadedPipeline.modules`), including modules that are imported only inside functions. For them the folder
stays on `sys.path`, last, so that it hides nothing.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ottla.spark.pipeline.builder import Pipeline, settings_from
from ottla.spark.pipeline.local_modules import imported_from, loaded_from, top_of
from ottla.spark.pipeline.model import Function, PipelineError, Plan, Problem
from ottla.spark.pipeline.parser import read_plan


@dataclass(frozen=True, slots=True)
class LoadedPipeline:
    """A plan with its Python modules: `own` are its files, `beside` the imported modules of their folders."""

    plan: Plan
    own: tuple[ModuleType, ...] = ()
    beside: tuple[ModuleType, ...] = ()
    #: Files and package folders to send to the workers, whether imported already or only inside functions.
    modules: tuple[Path, ...] = ()


def load(path: Path, variables: Mapping[str, str] | None = None) -> LoadedPipeline:
    """Load a pipeline.

    `variables` override the environment. Raises `PipelineError` and `FileNotFoundError`.
    """
    if not path.is_file():
        raise FileNotFoundError(2, "no such file", str(path))
    known = {**os.environ, **(variables or {})}
    if path.suffix == ".py":
        return _load_python(path, known)
    if path.suffix in (".yaml", ".yml"):
        from ottla.spark.pipeline.yaml_file import read_yaml

        written = read_yaml(str(path), _text(path), known)
        return _with_functions(read_plan(written, path.stem), path.parent, known)
    raise PipelineError(
        [Problem(str(path), None, "", "is not a pipeline file: use a name that ends in .yaml, .yml or .py")]
    )


def load_together(paths: Sequence[Path], variables: Mapping[str, str] | None = None) -> list[LoadedPipeline]:
    """Load several files, each with the modules of its folder.

    Raises as `load`, and if two modules have the same name: workers can have only one.
    """
    found: list[LoadedPipeline] = []
    apart: dict[str, ModuleType] = {}
    places: dict[str, Path] = {}
    folders = list(sys.path)
    before = list(sys.path)
    problems = []
    try:
        for path in paths:
            loaded = load(path, variables)
            found.append(loaded)
            for place in loaded.modules:
                other = places.setdefault(place.stem, place)
                if other != place:
                    said = (
                        f"{place} and {other} have the same name: rename one, or run the pipelines separately"
                    )
                    problems.append(Problem(str(path), None, "", said))
            # So that the next file imports this name from its own folder.
            for module in loaded.beside:
                apart.setdefault(module.__name__, module)
                sys.modules.pop(module.__name__, None)
            folders += [each for each in sys.path if each not in folders]
            sys.path[:] = before
    finally:
        sys.modules.update(apart)
        sys.path[:] = folders
    if problems:
        raise PipelineError(problems)
    return found


def _text(path: Path) -> str:
    content = path.read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        said = f"is not UTF-8: it contains the byte 0x{content[error.start]:02x}; save the file as UTF-8"
        raise PipelineError([Problem(str(path), line, "", said)]) from None


def _load_python(path: Path, variables: Mapping[str, str]) -> LoadedPipeline:
    module, beside = _run(path, variables)
    found = {id(value): value for value in vars(module).values() if isinstance(value, Pipeline)}
    if len(found) != 1:
        said = (
            "has no pipeline: write pipeline = Pipeline(…)"
            if not found
            else "has several pipelines: split the file, one pipeline per file"
        )
        raise PipelineError([Problem(str(path), None, "", said)])
    (pipeline,) = found.values()
    return LoadedPipeline(pipeline.plan(str(path)), (module,), beside, _modules([module]))


def _with_functions(plan: Plan, folder: Path, variables: Mapping[str, str]) -> LoadedPipeline:
    """Resolve every FILE.py:NAME of the plan."""
    ran: dict[Path, tuple[ModuleType, tuple[ModuleType, ...]]] = {}

    def find(function: Function, place: str) -> Function:
        file, _, name = function.where.rpartition(":")
        path = folder / file
        if path not in ran:
            if not path.is_file():
                raise PipelineError([Problem(plan.file, None, place, f"{path}: no such file")])
            ran[path] = _run(path, variables)
        call = getattr(ran[path][0], name, None)
        if not callable(call):
            raise PipelineError([Problem(plan.file, None, place, f"{path} has no function {name}")])
        return Function(function.where, _as_callable(call))

    steps = {
        name: dataclasses.replace(step, function=find(step.function, f"steps.{name}.python"))
        if step.function
        else step
        for name, step in plan.steps.items()
    }
    sinks = {
        name: dataclasses.replace(sink, function=find(sink.function, f"sinks.{name}.python"))
        if sink.function
        else sink
        for name, sink in plan.sinks.items()
    }
    return LoadedPipeline(
        dataclasses.replace(plan, steps=steps, sinks=sinks),
        tuple(module for module, _ in ran.values()),
        tuple({id(each): each for _, beside in ran.values() for each in beside}.values()),
        _modules(module for module, _ in ran.values()),
    )


def _modules(own: Iterable[ModuleType]) -> tuple[Path, ...]:
    found: dict[Path, None] = {}
    for module in own:
        file = Path(str(module.__file__)).resolve()
        found |= dict.fromkeys(top_of(file.parent, each) for each in loaded_from(file.parent))
        found |= dict.fromkeys(imported_from(file.parent, [file]))
        found.pop(file, None)
    return tuple(found)


def _as_callable(found: Any) -> Callable[..., Any]:
    assert callable(found)
    return found  # type: ignore[no-any-return]


def _run(path: Path, variables: Mapping[str, str]) -> tuple[ModuleType, tuple[ModuleType, ...]]:
    """Run a file as a module. Returns the module, and the modules of its folder that it imported."""
    # A unique name: `json.py` must not hide Python's json.
    name = f"ottla_pipeline_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(path.parent.resolve())
    sys.modules[name] = module
    sys.path.insert(0, folder)
    try:
        with settings_from(variables):
            spec.loader.exec_module(module)
    except PipelineError:
        raise
    except (Exception, SystemExit) as error:
        raise PipelineError([_failure(path, error)]) from error
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)
    return module, tuple(loaded_from(Path(folder)))


def _failure(path: Path, error: BaseException) -> Problem:
    if isinstance(error, SyntaxError):
        return Problem(error.filename or str(path), error.lineno, "", f"no Python: {error.msg}")
    own = path.resolve()
    inside = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).resolve() == own
    ]
    said = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    if "SESSION_OR_CONTEXT_NOT_EXISTS" in said:
        # For example udf(…) at module level.
        said = "this needs a Spark session, but the file is loaded before Spark starts: move it into the step"
    return Problem(str(path), inside[-1].lineno if inside else None, "", said)
