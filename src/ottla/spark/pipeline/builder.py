"""A pipeline written in Python: the same fields as in YAML, and functions as steps.

    from ottla.spark.pipeline import Pipeline

    pipeline = Pipeline("orders", brokers="127.0.0.1:9092", checkpoint="./checkpoints/orders")
    pipeline.source("orders", topic="orders", value="json", schema="id BIGINT, amount DOUBLE")

    @pipeline.step
    def large(orders):
        return orders.where("amount > 100")

    pipeline.sink("large", from_="large", topic="large-orders", key="id", value="json")

Nothing is checked before the whole of it is there; then `plan()` reads it by the tables that YAML is read by.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ottla.spark.pipeline.model import Plan, Problem
from ottla.spark.pipeline.parser import FileContent, Place, read_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    StepFunction = Callable[..., DataFrame]

Decorated = TypeVar("Decorated", bound="StepFunction")

_set: Mapping[str, str] = os.environ


def setting(name: str, default: str | None = None) -> str:
    """What `--set NAME=VALUE` or the environment says, as ${NAME:-default} in YAML."""
    found = _set.get(name, default)
    if found is None:
        raise ValueError(
            f"{name} is not set: set it in the environment or with --set {name}=…, or give a default, setting({name!r}, …)"
        )
    return found


@contextmanager
def settings_from(variables: Mapping[str, str]) -> Iterator[None]:
    """While a file is loaded, `setting` looks here."""
    global _set
    before, _set = _set, variables
    try:
        yield
    finally:
        _set = before


class Pipeline:
    """One a file. `fields` are those of a pipeline in YAML, apart from sources, steps and sinks, for which there are methods."""

    def __init__(self, name: str, **fields: Any) -> None:
        self._file, line = _place()
        self._content: dict[str, Any] = {"name": name, **fields, "sources": {}, "steps": {}, "sinks": {}}
        self._lines: dict[Place, int] = {(): line}
        self._problems: list[Problem] = []
        self._name = name

    def source(self, name: str, **fields: Any) -> None:
        """A table that comes from outside: a topic, or another format of Spark's."""
        self._add("sources", name, fields)

    def sql(
        self, name: str, text: str, *, inputs: list[str] | None = None, watermark: str | None = None
    ) -> None:
        """A step as a query; `inputs` is what it reads, where that is not to be told from its text."""
        given = {"sql": text, "inputs": inputs, "watermark": watermark}
        self._add("steps", name, {field: value for field, value in given.items() if value is not None})

    @overload
    def step(self, function: Decorated) -> Decorated: ...

    @overload
    def step(
        self,
        function: None = None,
        *,
        name: str | None = None,
        inputs: list[str] | None = None,
        watermark: str | None = None,
    ) -> Callable[[Decorated], Decorated]: ...

    def step(
        self,
        function: Decorated | None = None,
        *,
        name: str | None = None,
        inputs: list[str] | None = None,
        watermark: str | None = None,
    ) -> Decorated | Callable[[Decorated], Decorated]:
        """A step as a function over DataFrames, named after it; its parameters are what it reads, unless `inputs` says so."""

        def add(function: Decorated) -> Decorated:
            given = {"python": function, "inputs": inputs, "watermark": watermark}
            self._add(
                "steps",
                name or str(getattr(function, "__name__", "step")),
                {field: value for field, value in given.items() if value is not None},
            )
            return function

        return add if function is None else add(function)

    def sink(self, name: str, *, from_: str, **fields: Any) -> None:
        """Where the rows of `from_` go."""
        self._add("sinks", name, {"from": from_, **fields})

    def plan(self, file: str | None = None) -> Plan:
        """The pipeline as it runs. Raises `PipelineError` with all that is wrong with it."""
        problems = tuple(
            Problem(file or each.file, each.line, each.place, each.message) for each in self._problems
        )
        return read_plan(FileContent(file or self._file, self._content, self._lines, problems), self._name)

    def _add(self, kind: str, name: str, fields: dict[str, Any]) -> None:
        _, line = _place()
        if name in self._content[kind]:
            self._problems.append(
                Problem(self._file, line, f"{kind}.{name}", "is there twice: one name, one thing")
            )
        self._lines[kind, name] = line
        self._content[kind][name] = fields


def _place() -> tuple[str, int]:
    """File and line of who called into this module."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
