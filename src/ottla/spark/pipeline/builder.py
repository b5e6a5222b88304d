"""Pipelines written in Python: the same fields as in YAML, and functions as steps.

    from ottla.spark.pipeline import Pipeline

    pipeline = Pipeline("orders", brokers="127.0.0.1:9092", checkpoint="./checkpoints/orders")
    pipeline.source("orders", topic="orders", value="json", schema="id BIGINT, amount DOUBLE")

    @pipeline.step
    def large(orders):
        return orders.where("amount > 100")

    pipeline.sink("large", from_="large", topic="large-orders", key="id", value="json")

Nothing is checked until the file is complete. Then `plan()` parses it with the tables that also parse YAML.
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
    """Return a setting: from `--set NAME=VALUE`, else the environment. Like ${NAME:-default} in YAML.

    Args:
        name: The name of the setting.
        default: The value if it is not set.

    Returns:
        The value.

    Raises:
        ValueError: It is not set and has no default.

    Example:
        >>> pipeline = Pipeline("orders", brokers=setting("BROKERS", "127.0.0.1:9092"))
    """
    found = _set.get(name, default)
    if found is None:
        raise ValueError(
            f"{name} is not set: set it in the environment or with --set {name}=…, or give a default, "
            f"setting({name!r}, …)"
        )
    return found


@contextmanager
def settings_from(variables: Mapping[str, str]) -> Iterator[None]:
    """Let `setting` read these variables while a file is loaded."""
    global _set
    before, _set = _set, variables
    try:
        yield
    finally:
        _set = before


class Pipeline:
    """A pipeline in a Python file. A file has exactly one.

    Args:
        name: The name of the pipeline.
        **fields: The other fields of a pipeline, as in YAML. Sources, steps and sinks are added by methods.

    Example:
        >>> pipeline = Pipeline("orders", brokers="127.0.0.1:9092", checkpoint="./checkpoints/orders")
    """

    def __init__(self, name: str, **fields: Any) -> None:
        self._file, line = _place()
        self._content: dict[str, Any] = {"name": name, **fields, "sources": {}, "steps": {}, "sinks": {}}
        self._lines: dict[Place, int] = {(): line}
        self._problems: list[Problem] = []
        self._name = name

    def source(self, name: str, **fields: Any) -> None:
        """Add a source: a topic, or another format of Spark.

        Args:
            name: The name of the table that steps read.
            **fields: The fields of a source, as in YAML.

        Example:
            >>> pipeline.source("orders", topic="orders", value="json", schema="id BIGINT, amount DOUBLE")
        """
        self._add("sources", name, fields)

    def sql(
        self, name: str, text: str, *, inputs: list[str] | None = None, watermark: str | None = None
    ) -> None:
        """Add a step as a SQL query.

        Args:
            name: The name of the step.
            text: The query.
            inputs: The tables that it reads, if they cannot be found in the text.
            watermark: A time column and a delay, as in "at 10 seconds".

        Example:
            >>> pipeline.sql("large", "SELECT * FROM orders WHERE amount > 100")
        """
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
        """Add a step as a function over DataFrames; a decorator.

        Args:
            function: The function. Its parameters name the tables that it reads.
            name: The name of the step; by default the function's name.
            inputs: The tables that it reads, in the order of the parameters, if their names differ.
            watermark: A time column and a delay, as in "at 10 seconds".

        Returns:
            The function.

        Example:
            >>> @pipeline.step
            ... def large(orders):
            ...     return orders.where("amount > 100")
        """

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
        """Add a sink.

        Args:
            name: The name of the sink, and of its checkpoint.
            from_: The step or source whose rows are written.
            **fields: The fields of a sink, as in YAML.

        Example:
            >>> pipeline.sink("large", from_="large", topic="large-orders", key="id", value="json")
        """
        self._add("sinks", name, {"from": from_, **fields})

    def plan(self, file: str | None = None) -> Plan:
        """Check the pipeline.

        Args:
            file: The file name for messages.

        Returns:
            The plan that `ottla pipeline` runs.

        Raises:
            PipelineError: The pipeline has problems; it lists all of them.

        Example:
            >>> pipeline.plan().sinks
        """
        problems = tuple(
            Problem(file or each.file, each.line, each.place, each.message) for each in self._problems
        )
        return read_plan(FileContent(file or self._file, self._content, self._lines, problems), self._name)

    def _add(self, kind: str, name: str, fields: dict[str, Any]) -> None:
        _, line = _place()
        if name in self._content[kind]:
            self._problems.append(Problem(self._file, line, f"{kind}.{name}", "is defined twice: rename one"))
        self._lines[kind, name] = line
        self._content[kind][name] = fields


def _place() -> tuple[str, int]:
    """File and line of the caller outside this module."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
