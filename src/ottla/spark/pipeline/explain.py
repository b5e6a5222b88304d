"""Describes a plan: for people as a tree from each sink to its sources, for programs as JSON. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ottla.spark.pipeline.model import AVAILABLE_NOW, Plan, Sink, Source, Step

#: URL parameters with secret values.
_SECRET: Final = re.compile(
    r"([?&;][\w.-]*(?:passw|pwd|passphrase|secret|token|credential|private|signature|\bsig\b|key)[\w.-]*=)[^&;#]*",
    re.IGNORECASE,
)


def tree(plan: Plan, schemas: Mapping[str, str] | None = None) -> list[str]:
    """The lines of the tree, with columns if schemas are given. Repeated parts are drawn once."""
    trigger = {None: "as soon as data arrives", AVAILABLE_NOW: "all available data, then exit"}
    lines = [
        f"pipeline {plan.name} ({plan.file})",
        f"  checkpoint {without_passwords(plan.checkpoint_path)}",
        f"  trigger {trigger.get(plan.trigger, f'every {plan.trigger}')}",
    ]
    drawn: set[str] = set()
    for sink in plan.sinks.values():
        lines += ["", f"{sink.name} → {describe_sink(sink)}"]
        lines += _below(plan, sink.input, "", drawn, schemas or {}, last=True)
    unused = [name for name in [*plan.sources, *plan.steps] if name not in drawn]
    if unused:
        lines += ["", f"no sink uses {', '.join(unused)}"]
    return lines


def _below(
    plan: Plan, name: str, indent: str, drawn: set[str], schemas: Mapping[str, str], *, last: bool
) -> list[str]:
    again = name in drawn and bool(plan.inputs_of(name))
    drawn.add(name)
    thing = plan.sources.get(name) or plan.steps[name]
    words = describe_source(thing) if isinstance(thing, Source) else describe_step(thing)
    columns = f"  ({schemas[name]})" if name in schemas else ""
    lines = [f"{indent}{'└─' if last else '├─'} {name}  {words}{columns}{'  (as above)' if again else ''}"]
    if again:
        return lines
    inputs = plan.inputs_of(name)
    for each in inputs:
        inner = indent + ("   " if last else "│  ")
        lines += _below(plan, each, inner, drawn, schemas, last=each == inputs[-1])
    return lines


def describe_source(source: Source) -> str:
    if not source.is_topic:
        words = f"{source.format}{' ' + without_passwords(source.path) if source.path else ''}"
        return words if source.read == "stream" else f"{words}, read as {source.read}"
    kind = {"stream": "topic", "batch": "all of topic", "table": "table of topic"}[source.read]
    which = f" {source.topic}" if source.topic else f"s like {source.pattern}"
    value = f", {source.value}" if source.value else ""
    late = f", watermark {source.watermark.column} {source.watermark.delay}" if source.watermark else ""
    return f"{kind}{which}{value}{late} at {source.brokers}"


def describe_step(step: Step) -> str:
    if step.function is not None:
        return f"Python {step.function.where}"
    text = " ".join((step.sql or "").split())
    return f"SQL {text if len(text) <= 60 else text[:59] + '…'}"


def describe_sink(sink: Sink) -> str:
    if sink.topic is not None:
        key = f", key {', '.join(sink.key)}" if sink.key else ""
        return f"topic {sink.topic}{key}{', ' + sink.value if sink.value else ''}, {sink.guarantee} at {sink.brokers}"
    if sink.table is not None:
        return (
            f"table {sink.table.name} of {without_passwords(sink.table.url)}, key {', '.join(sink.table.key)}"
        )
    if sink.parquet is not None:
        return (
            f"parquet {without_passwords(sink.parquet)}{', key ' + ', '.join(sink.key) if sink.key else ''}"
        )
    if sink.function is not None:
        return f"Python {sink.function.where}"
    return f"{sink.format}{' ' + without_passwords(sink.path) if sink.path else ''}"


def without_passwords(url: str) -> str:
    """A URL without passwords, in the user part and in parameters."""
    scheme, slashes, rest = url.partition("://")
    # Up to the first /, else up to the ?: a password may contain one of these, although it should not.
    ends = (rest.find("/"), rest.find("?"), len(rest))
    for end in ends:
        user, at, host = rest[: max(end, 0)].rpartition("@")
        name, colon, _ = user.partition(":")
        if at and colon:
            rest = f"{name}:…@{host}{rest[end:]}"
            break
        if end > 0 and rest[end : end + 1] == "?":
            break
    return _SECRET.sub("\\1…", f"{scheme}{slashes}{rest}")


def as_json(plan: Plan, schemas: Mapping[str, str] | None = None) -> dict[str, Any]:
    columns = schemas or {}
    tables = {
        **{name: {"kind": "source", "what": describe_source(each), "inputs": []} for name, each in plan.sources.items()},
        **{name: {"kind": "step", "what": describe_step(each), "inputs": list(each.inputs)} for name, each in plan.steps.items()},
    }  # fmt: skip
    return {
        "pipeline": plan.name,
        "file": plan.file,
        "checkpoint": without_passwords(plan.checkpoint_path),
        "trigger": plan.trigger,
        "tables": {
            name: table | ({"schema": columns[name]} if name in columns else {})
            for name, table in tables.items()
        },
        "sinks": {
            name: {"from": sink.input, "what": describe_sink(sink)} for name, sink in plan.sinks.items()
        },
    }
