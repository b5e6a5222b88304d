"""The model of a pipeline: sources, steps, sinks and settings, from YAML or Python. Plain data.

Sources and steps share one namespace, because both are tables for the steps. Sinks have another: each sink is
a streaming query with its own checkpoint below the pipeline's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

Read = Literal["stream", "batch", "table"]

OTTLA: Final = "ottla"
AVAILABLE_NOW: Final = "available-now"


def _is_url(place: str) -> bool:
    return re.match(r"[A-Za-z][\w+.-]*:/", place) is not None


def beside(file: str, place: str) -> str:
    """Resolve a path of a pipeline file: a relative path starts at the file's folder."""
    return place if _is_url(place) else str(Path(file).absolute().parent / place)


def database_beside(file: str, url: str) -> str:
    """Resolve the relative path of a SQLite URL; other URLs are unchanged."""
    match = re.fullmatch(r"sqlite:///([^/].*)", url)
    if match is None:
        return url
    return f"sqlite:///{quote(str(Path(file).absolute().parent))}/{match[1]}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem in a file and its place: `sources.orders.watermark`, and the line if it is known."""

    file: str
    line: int | None
    place: str
    message: str
    #: Not the file's fault: something was unavailable and may come back.
    is_outage: bool = False

    def __str__(self) -> str:
        line = f":{self.line}" if self.line else ""
        place = f" {self.place}:" if self.place else ""
        return f"{self.file}{line}:{place} {self.message}"


class PipelineError(ValueError):
    """The file is not a valid pipeline. The message has one line per problem."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Function:
    """A function over DataFrames: the function itself, or its place, FILE.py:NAME."""

    where: str
    call: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True)
class Watermark:
    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class Source:
    """An input table: a topic, or another format that Spark reads."""

    name: str
    topic: str | None = None
    pattern: str | None = None
    format: str = OTTLA
    path: str | None = None
    read: Read = "stream"
    brokers: str | None = None
    value: str | None = None
    schema: str | None = None
    registry: str | None = None
    #: USER:PASSWORD
    registry_auth: str | None = field(default=None, repr=False)
    registry_ca: str | None = None
    subject: str | None = None
    message: str | None = None
    dead_letters: str | None = None
    watermark: Watermark | None = None
    start: str = "earliest"
    group: str | None = None
    records_max: int | None = None
    # May contain passwords.
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_topic(self) -> bool:
        return self.format == OTTLA


@dataclass(frozen=True, slots=True)
class Step:
    """A table computed by SQL or a function."""

    name: str
    sql: str | None = None
    function: Function | None = None
    inputs: tuple[str, ...] = ()
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A database table."""

    url: str = field(repr=False)
    name: str
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sink:
    """An output: a topic, a database table, files, a function, or another format that Spark writes."""

    name: str
    input: str
    topic: str | None = None
    table: Table | None = None
    parquet: str | None = None
    function: Function | None = None
    format: str | None = None
    path: str | None = None
    brokers: str | None = None
    key: tuple[str, ...] = ()
    value: str | None = None
    schema: str | None = None
    registry: str | None = None
    registry_auth: str | None = field(default=None, repr=False)
    registry_ca: str | None = None
    subject: str | None = None
    message: str | None = None
    dead_letters: str | None = None
    order_by: str | None = None
    tombstones: bool = False
    reset: bool = False
    guarantee: str = "exactly-once"
    mode: str = "append"
    trigger: str | None = None
    # May contain passwords.
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole pipeline. Each step comes after its inputs."""

    name: str
    file: str
    checkpoint: str
    sources: Mapping[str, Source]
    steps: Mapping[str, Step]
    sinks: Mapping[str, Sink]
    trigger: str | None = None
    stop_within_s: float = 30.0
    status: str | None = None
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def checkpoint_path(self) -> str:
        return beside(self.file, self.checkpoint)

    @property
    def status_path(self) -> str | None:
        """The status file; None if the checkpoint is not on a local disk and no other path is set."""
        if self.status is not None:
            return beside(self.file, self.status)
        place = self.checkpoint_path.removeprefix("file:")
        return None if _is_url(place) else str(Path(place, "status.json"))

    def checkpoint_of(self, sink: Sink) -> str:
        return f"{self.checkpoint_path}/{sink.name}"

    def inputs_of(self, name: str) -> tuple[str, ...]:
        return self.steps[name].inputs if name in self.steps else ()

    def upstream(self, name: str) -> list[str]:
        """The source or step of that name after all its direct and indirect inputs."""
        seen: dict[str, None] = {}

        def visit(each: str) -> None:
            if each not in seen:
                for below in self.inputs_of(each):
                    visit(below)
                seen[each] = None

        visit(name)
        return list(seen)
