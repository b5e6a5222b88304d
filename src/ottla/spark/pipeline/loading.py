"""From a file to a plan: YAML is read, Python is run and its pipeline taken; functions that YAML names are found beside it.

The functions and classes of a Python file, and of the modules that it imports from its own folder, travel to Spark's workers by value: a worker
that once had an older version of a file cannot use that. Those modules are shipped as files, too (`Loaded.modules`), for imports that
happen inside functions.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ottla.spark.pipeline.builder import Pipeline, settings_from
from ottla.spark.pipeline.model import Function, PipelineError, Plan, Problem
from ottla.spark.pipeline.reading import read_plan

#: What the names of modules begin with that are files of pipelines.
_OWN: Final = "ottla_pipeline_"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A plan, and the Python that was run for it: its own files, and those beside them that they have imported."""

    plan: Plan
    own: tuple[ModuleType, ...] = ()
    beside: tuple[ModuleType, ...] = ()

    @property
    def modules(self) -> list[Path]:
        """The files of what lies beside."""
        return [Path(str(module.__file__)) for module in self.beside]


def load(path: Path, variables: Mapping[str, str] | None = None) -> Loaded:
    """Raises `PipelineError`, and `FileNotFoundError`. `variables` go before the environment."""
    if not path.is_file():
        raise FileNotFoundError(2, "no such file", str(path))
    known = {**os.environ, **(variables or {})}
    if path.suffix == ".py":
        return _load_python(path, known)
    if path.suffix in (".yaml", ".yml"):
        from ottla.spark.pipeline.yaml_file import read_yaml

        written = read_yaml(str(path), path.read_text(encoding="utf-8"), known)
        return _with_functions(read_plan(written, path.stem), path.parent, known)
    raise PipelineError(
        [Problem(str(path), None, "", "a pipeline is a file that ends in .yaml, .yml or .py")]
    )


def load_together(paths: Sequence[Path], variables: Mapping[str, str] | None = None) -> list[Loaded]:
    """Several files, each with the modules of its own folder. Raises as `load`; and where two of those have one name, since workers know one."""
    found: list[Loaded] = []
    apart: dict[str, ModuleType] = {}
    problems = []
    try:
        for path in paths:
            loaded = load(path, variables)
            found.append(loaded)
            for module in loaded.beside:
                other = apart.setdefault(module.__name__, module)
                if other.__file__ != module.__file__:
                    said = f"{module.__file__} and {other.__file__} have one name: run the pipelines apart, or rename one"
                    problems.append(Problem(str(path), None, "", said))
                # The next file's import of that name looks into its own folder.
                sys.modules.pop(module.__name__, None)
    finally:
        sys.modules.update(apart)
    if problems:
        raise PipelineError(problems)
    return found


def _load_python(path: Path, variables: Mapping[str, str]) -> Loaded:
    module, beside = _run(path, variables)
    found = {id(value): value for value in vars(module).values() if isinstance(value, Pipeline)}
    if len(found) != 1:
        said = (
            "has no pipeline: write pipeline = Pipeline(…)"
            if not found
            else "has several pipelines: one a file"
        )
        raise PipelineError([Problem(str(path), None, "", said)])
    (pipeline,) = found.values()
    return Loaded(pipeline.plan(str(path)), (module,), beside)


def _with_functions(plan: Plan, folder: Path, variables: Mapping[str, str]) -> Loaded:
    """The plan with every FILE.py:NAME found."""
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
    return Loaded(
        dataclasses.replace(plan, steps=steps, sinks=sinks),
        tuple(module for module, _ in ran.values()),
        tuple({id(each): each for _, beside in ran.values() for each in beside}.values()),
    )


def _as_callable(found: Any) -> Callable[..., Any]:
    assert callable(found)
    return found  # type: ignore[no-any-return]


def _run(path: Path, variables: Mapping[str, str]) -> tuple[ModuleType, tuple[ModuleType, ...]]:
    """Run a file as a module; which modules of its folder did it import?"""
    # A name that nothing else has: `json.py` must not hide Python's own.
    name = f"{_OWN}{path.stem}"
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
    except Exception as error:
        raise PipelineError([_failure(path, error)]) from error
    finally:
        sys.path.remove(folder)
    beside = [
        other
        for other in list(sys.modules.values())
        if not other.__name__.startswith(_OWN)
        and (file := getattr(other, "__file__", None))
        and Path(file).resolve().parent == Path(folder)
    ]
    return module, tuple(beside)


def _failure(path: Path, error: Exception) -> Problem:
    if isinstance(error, SyntaxError):
        return Problem(error.filename or str(path), error.lineno, "", f"no Python: {error.msg}")
    inside = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    said = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    if "SESSION_OR_CONTEXT_NOT_EXISTS" in said:
        # As udf(…) does at the top of a file.
        said = "this needs a Spark session, and the file is read before Spark starts: move it into the step that uses it"
    return Problem(str(path), inside[-1].lineno if inside else None, "", said)
