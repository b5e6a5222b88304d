"""Parses a file's content, from YAML or Python, into the model.

Reports all problems of the file at once. Pure.

`FileContent` is common to both kinds of file: nested names and values, with line numbers if they are known.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.producer.settings import ProducerConfig
from ottla.spark.clients import settings_for
from ottla.spark.pipeline import fields
from ottla.spark.pipeline.fields import Field
from ottla.spark.pipeline.model import (
    OTTLA,
    Function,
    PipelineError,
    Plan,
    Problem,
    Read,
    Sink,
    Source,
    Step,
    Table,
    beside,
    database_beside,
)
from ottla.spark.pipeline.rules import KINDS, WITH_REGISTRY, Wrong, wrong_with_sink, wrong_with_source
from ottla.spark.pipeline.sql import tables

_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_FILE_NAME: Final = re.compile(r"[\w.-]+")
Place = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileContent:
    """The content of a file. Line numbers are known for some places, such as ("sources", "orders")."""

    file: str
    content: Mapping[str, Any]
    lines: Mapping[Place, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name."""
    names = list(known)
    near = difflib.get_close_matches(name, names, 1, 0.5)
    if near:
        return f"did you mean {near[0]}?"
    return f"known are {', '.join(names)}" if names else "there are none"


def read_plan(written: FileContent, default_name: str) -> Plan:
    """Parse the pipeline. Raises `PipelineError` with all problems."""
    return _PlanParser(written).pipeline(default_name)


class _PlanParser:
    def __init__(self, written: FileContent) -> None:
        self._written = written
        self._problems = list(written.problems)

    def pipeline(self, default_name: str) -> Plan:
        whole = self._values(self._written.content, fields.PIPELINE, (), "a pipeline")
        limits = self._values(whole.get("limits", {}), fields.LIMITS, ("limits",), "limits")
        name = whole.get("name", default_name)
        if not _FILE_NAME.fullmatch(name):
            self._problem(
                ("name",), f"{name!r} is part of the queries' names: use only letters, digits, _, . and -"
            )
        if "checkpoint" not in whole and "checkpoint" not in self._written.content:
            self._problem(
                (),
                "checkpoint is missing: add the folder for progress, as in checkpoint: ./checkpoints/" + name,
            )
        for each in ("registry_auth", "registry_ca"):
            if each in whole and "registry" not in self._written.content:
                self._problem((each,), "needs registry: add it, or remove this field")
        sources = {
            each: self._source(each, given, whole, limits)
            for each, given in self._named(whole, "sources", _NAME)
        }
        steps = {each: self._step(each, given, sources) for each, given in self._named(whole, "steps", _NAME)}
        sinks = {
            each: self._sink(each, given, whole) for each, given in self._named(whole, "sinks", _FILE_NAME)
        }
        self._check_names(sources, steps)
        for kind, found in (("sources", sources), ("sinks", sinks)):
            if not found and kind not in self._written.content:
                self._problem((), f"{kind} are missing: add at least one")
        ordered = self._graph(sources, steps, sinks)
        if self._problems:
            raise PipelineError(sorted(self._problems, key=lambda each: each.line or 0))
        return Plan(
            name=name,
            file=self._written.file,
            checkpoint=whole["checkpoint"],
            sources=sources,
            steps=ordered,
            sinks=sinks,
            trigger=whole.get("trigger"),
            stop_within_s=limits.get("stop", 30.0),
            status=whole.get("status"),
            spark=whole.get("spark", {}),
        )

    # --- one thing at a time ------------------------------------------------------------------------------

    def _source(self, name: str, given: Any, whole: dict[str, Any], limits: dict[str, Any]) -> Source:
        place = ("sources", name)
        own = self._values(given, fields.SOURCE, place, "a source")
        source = Source(
            name=name,
            topic=own.get("topic"),
            pattern=own.get("pattern"),
            format=own.get("format", OTTLA),
            path=self._beside(own.get("path")),
            read=cast("Read", own.get("read", "stream")),
            brokers=own.get("brokers", whole.get("brokers")),
            value=own.get("value"),
            schema=own.get("schema"),
            **self._registry(own, whole),
            subject=own.get("subject"),
            message=own.get("message"),
            dead_letters=own.get("dead_letters"),
            watermark=own.get("watermark"),
            start=own.get("start", "earliest"),
            group=own.get("group"),
            records_max=own.get("records", limits.get("records")),
            kafka={**settings_for(whole.get("kafka", {}), ConsumerConfig), **own.get("kafka", {})},
            options=own.get("options", {}),
        )
        written = [name for name in ("topic", "pattern", "format") if name in own]
        if len(written) > 1:
            self._problem(place, f"has {' and '.join(written)}: keep one of them")
        elif not written and isinstance(given, Mapping):
            self._problem(place, "has neither topic nor pattern nor format: add one of them")
        self._report(place, wrong_with_source(own, source))
        return source

    def _step(self, name: str, given: Any, sources: Mapping[str, Source]) -> Step:
        place = ("steps", name)
        if isinstance(given, str):
            given = {"sql": given}
        elif callable(given):
            given = {"python": given}
        own = self._values(given, fields.STEP, place, "a step")
        if (
            ("sql" in own) == ("python" in own)
            and isinstance(given, Mapping)
            and not {"sql", "python"} & (given.keys() - own.keys())
        ):
            both = "sql and python: keep" if "sql" in own else "neither sql nor python: add"
            self._problem(place, f"has {both} one of them")
        if "sql" in own:
            return Step(
                name,
                sql=own["sql"],
                inputs=own["inputs"] if "inputs" in own else self._sql_inputs(own["sql"], sources),
                watermark=own.get("watermark"),
            )
        function = own.get("python")
        return Step(
            name,
            function=function,
            inputs=own["inputs"] if "inputs" in own else self._parameters(place, function),
            watermark=own.get("watermark"),
        )

    def _sql_inputs(self, text: str, sources: Mapping[str, Source]) -> tuple[str, ...]:
        """The tables of a query, spelled as they are declared: SQL names are case-insensitive."""
        declared = {each.lower(): each for each in [*sources, *self._written.content.get("steps", {})]}
        return tuple(declared.get(each.lower(), each) for each in tables(text))

    def _parameters(self, place: Place, function: Function | None) -> tuple[str, ...]:
        if function is None:
            return ()
        if function.call is None:
            self._problem(place, f"inputs is missing: list the tables for {function.where}")
            return ()
        return tuple(inspect.signature(function.call).parameters)

    def _sink(self, name: str, given: Any, whole: dict[str, Any]) -> Sink:
        place = ("sinks", name)
        own = self._values(given, fields.SINK, place, "a sink")
        kinds = [each for each in KINDS if each in own]
        if isinstance(given, Mapping):
            if "from" not in given:
                self._problem(place, "from is missing: add the step whose rows are written")
            if len(kinds) > 1:
                self._problem(place, f"has {' and '.join(kinds)}: keep one of them")
            elif not kinds and not given.keys() & set(KINDS):
                self._problem(
                    place, "has neither topic nor table, parquet, python or format: add one of them"
                )
        table = self._table(own.get("table"), (*place, "table"))
        sink = Sink(
            name=name,
            input=own.get("from", ""),
            topic=own.get("topic"),
            table=table,
            parquet=self._beside(own.get("parquet")),
            function=own.get("python"),
            format=own.get("format"),
            path=self._beside(own.get("path")),
            brokers=own.get("brokers", whole.get("brokers")),
            key=own.get("key", ()),
            value=own.get("value"),
            schema=own.get("schema"),
            **self._registry(own, whole),
            subject=own.get("subject"),
            message=own.get("message"),
            dead_letters=own.get("dead_letters"),
            order_by=own.get("order_by"),
            tombstones=own.get("tombstones", False),
            reset=own.get("reset", False),
            guarantee=own.get("guarantee", "exactly-once"),
            mode=own.get("mode", "update" if table or (own.get("parquet") and own.get("key")) else "append"),
            trigger=own.get("trigger"),
            kafka={**settings_for(whole.get("kafka", {}), ProducerConfig), **own.get("kafka", {})},
            options=own.get("options", {}),
        )
        self._report(place, wrong_with_sink(own, sink))
        return sink

    def _table(self, given: Any, place: Place) -> Table | None:
        if given is None:
            return None
        own = self._values(given, fields.TABLE, place, "a table")
        for name in ("url", "name", "key"):
            if name not in own and name not in given:
                self._problem(
                    place,
                    f"{name} is missing: {next(each for each in fields.TABLE if each.name == name).meaning}",
                )
        url = database_beside(self._written.file, own.get("url", ""))
        return Table(url, own.get("name", ""), own.get("key", ()))

    def _registry(self, own: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
        """The schema registry.

        JSON values use only their own; credentials are never sent to another registry.
        """
        taken = whole if own.get("value") in WITH_REGISTRY else {}
        place = own.get("registry", taken.get("registry"))
        shared = whole if place is not None and place == whole.get("registry") else {}
        return {
            "registry": place,
            "registry_auth": own.get("registry_auth", shared.get("registry_auth")),
            "registry_ca": self._beside(own.get("registry_ca", shared.get("registry_ca"))),
        }

    def _beside(self, place: str | None) -> str | None:
        return None if place is None else beside(self._written.file, place)

    # --- how they hang together ---------------------------------------------------------------------------

    def _check_names(self, sources: Mapping[str, Source], steps: Mapping[str, Step]) -> None:
        """Sources and steps are tables of one Spark session, whose names are case-insensitive."""
        taken: dict[str, tuple[str, str]] = {}
        for kind, name in [*(("source", each) for each in sources), *(("step", each) for each in steps)]:
            other_kind, other = taken.setdefault(name.lower(), (kind, name))
            if (other_kind, other) == (kind, name):
                continue
            rule = "share their names" if other == name else "share their names, and case is ignored"
            self._problem(
                (f"{kind}s", name),
                f"there is also a {other_kind} {other}: sources and steps {rule}; rename one",
            )

    def _graph(
        self, sources: Mapping[str, Source], steps: Mapping[str, Step], sinks: Mapping[str, Sink]
    ) -> dict[str, Step]:
        """Order the steps. Reports unknown names, cycles, and sinks without a stream."""
        known = [*sources, *steps]
        for name, step in steps.items():
            for each in step.inputs:
                if each not in sources and each not in steps:
                    self._problem(
                        ("steps", name),
                        f"reads {each}, which is neither a source nor a step: {nearest(each, known)}",
                    )
        ordered: dict[str, Step] = {}
        open_steps: list[str] = []
        circles: set[frozenset[str]] = set()

        def visit(name: str) -> None:
            if name in ordered or name not in steps:
                return
            if name in open_steps:
                circle = open_steps[open_steps.index(name) :]
                if frozenset(circle) not in circles:
                    circles.add(frozenset(circle))
                    self._problem(
                        ("steps", name), f"reads itself: break the cycle {' ← '.join([*circle, name])}"
                    )
                return
            open_steps.append(name)
            for each in steps[name].inputs:
                visit(each)
            open_steps.pop()
            ordered[name] = steps[name]

        for name in steps:
            visit(name)
        for name, sink in sinks.items():
            if sink.input and sink.input not in sources and sink.input not in steps:
                self._problem(
                    ("sinks", name, "from"),
                    f"{sink.input} is neither a source nor a step: {nearest(sink.input, known)}",
                )
            elif sink.input and not circles and not self._streams(sink.input, sources, steps):
                self._problem(
                    ("sinks", name),
                    f"no source of {sink.input} is a stream: set read: stream for one of its sources",
                )
        return ordered

    def _streams(self, name: str, sources: Mapping[str, Source], steps: Mapping[str, Step]) -> bool:
        if name in sources:
            return sources[name].read == "stream"
        # An unknown name is already reported.
        return name not in steps or any(self._streams(each, sources, steps) for each in steps[name].inputs)

    # --- fields -------------------------------------------------------------------------------------------

    def _named(self, whole: dict[str, Any], kind: str, pattern: re.Pattern[str]) -> Iterable[tuple[str, Any]]:
        for name, given in whole.get(kind, {}).items():
            if not isinstance(name, str) or not pattern.fullmatch(name):
                rule = (
                    "letters, digits and _, without a digit at the start"
                    if pattern is _NAME
                    else "letters, digits, _, . and -"
                )
                self._problem((kind, str(name)), f"is not a valid name in {kind}: use {rule}")
            else:
                yield name, given

    def _values(self, given: Any, table: Sequence[Field], place: Place, what: str) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            known = ", ".join(each.name for each in table)
            self._problem(place, f"must be fields with their values; {what} has {known}")
            return {}
        known_fields = {each.name: each for each in table}
        found = {}
        for name, value in given.items():
            if name not in known_fields:
                self._problem(
                    (*place, str(name)), f"{what} has no field {name}: {nearest(str(name), known_fields)}"
                )
                continue
            try:
                found[name] = known_fields[name].read(value)
            except ValueError as error:
                self._problem((*place, name), str(error))
        return found

    def _report(self, place: Place, wrong: Iterable[Wrong]) -> None:
        for name, message in wrong:
            self._problem((*place, name) if name else place, message)

    def _problem(self, place: Place, message: str) -> None:
        lines = self._written.lines
        line = next((lines[place[:end]] for end in range(len(place), -1, -1) if place[:end] in lines), None)
        self._problems.append(Problem(self._written.file, line, ".".join(place), message))
