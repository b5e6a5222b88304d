"""What a pipeline is, once its file has been read: sources, steps, sinks, and how they run. Pure values; both kinds of file become these.

Names of sources and steps are one set, since both are tables to the steps; names of sinks are another, since each is a streaming query
with a checkpoint of its own, below the pipeline's.
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
    """A path of a pipeline's file: a relative one is taken from the file's folder, wherever the command is called."""
    return place if _is_url(place) else str(Path(file).absolute().parent / place)


def database_beside(file: str, url: str) -> str:
    """A database's URL; one of SQLite's names a path."""
    match = re.fullmatch(r"sqlite:///([^/].*)", url)
    if match is None:
        return url
    return f"sqlite:///{quote(str(Path(file).absolute().parent))}/{match[1]}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a file, and where: `sources.orders.watermark`, and the line if it is known."""

    file: str
    line: int | None
    place: str
    message: str
    #: Whether it is no fault of the file's: something was not there that may come back.
    is_outage: bool = False

    def __str__(self) -> str:
        line = f":{self.line}" if self.line else ""
        place = f" {self.place}:" if self.place else ""
        return f"{self.file}{line}:{place} {self.message}"


class PipelineError(ValueError):
    """A file that is no pipeline: all that is wrong with it, a line each."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Function:
    """A function over DataFrames: the thing itself, or where it is to be found, FILE.py:NAME."""

    where: str
    call: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True)
class Watermark:
    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class Source:
    """A table that comes from outside: a topic, or any other format that Spark reads."""

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
    # Passwords may be among them.
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_topic(self) -> bool:
        return self.format == OTTLA


@dataclass(frozen=True, slots=True)
class Step:
    """A table that is made of others, in SQL or by a function."""

    name: str
    sql: str | None = None
    function: Function | None = None
    inputs: tuple[str, ...] = ()
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a database."""

    url: str = field(repr=False)
    name: str
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sink:
    """Where a step's rows go: a topic, a table of a database, files, a function, or any other format that Spark writes."""

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
    # Passwords may be among them.
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole of it. Steps are in an order in which each comes after its inputs."""

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
        """The status file; None where the checkpoint is not on this machine's disk and no other place is named."""
        if self.status is not None:
            return beside(self.file, self.status)
        place = self.checkpoint_path.removeprefix("file:")
        return None if _is_url(place) else str(Path(place, "status.json"))

    def checkpoint_of(self, sink: Sink) -> str:
        return f"{self.checkpoint_path}/{sink.name}"

    def inputs_of(self, name: str) -> tuple[str, ...]:
        return self.steps[name].inputs if name in self.steps else ()

    def upstream(self, name: str) -> list[str]:
        """The source or step of that name and all that it is made of, itself last."""
        seen: dict[str, None] = {}

        def visit(each: str) -> None:
            if each not in seen:
                for below in self.inputs_of(each):
                    visit(below)
                seen[each] = None

        visit(name)
        return list(seen)
