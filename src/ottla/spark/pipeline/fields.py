"""The fields of a pipeline file: one table per section, with the meaning of each field.

docs/pipelines.md is tested against it.

A field's `read` converts the given value, or raises `ValueError` with a message that continues the field's
name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla.spark.pipeline.model import AVAILABLE_NOW, Function, Watermark

_UNITS: Final = r"(?:milliseconds?|ms|seconds?|s|minutes?|min|hours?|h|days?|d)"
_SPAN: Final = re.compile(rf"(\d+(?:\.\d+)?)\s*({_UNITS})", re.IGNORECASE)
_SECONDS: Final = {"milliseconds": 0.001, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
#: Spark accepts only whole words.
_WORDS: Final = {"ms": "milliseconds", "s": "seconds", "min": "minutes", "h": "hours", "d": "days"}
VALUES: Final = ("string", "json", "avro", "protobuf")
MODES: Final = ("append", "update", "complete")


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name, its parser and its meaning."""

    name: str
    read: Callable[[Any], Any]
    meaning: str


def text(given: Any) -> str:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise ValueError(f"must be a string, not {_kind(given)}")
    if not str(given).strip():
        raise ValueError("must not be empty")
    return str(given).strip()


def one_of(*known: str) -> Callable[[Any], str]:
    def read(given: Any) -> str:
        if text(given).lower() not in known:
            raise ValueError(f"must be one of {', '.join(known)}, not {text(given)!r}")
        return text(given).lower()

    return read


def texts(given: Any) -> tuple[str, ...]:
    """One string, or a list of strings."""
    if isinstance(given, list | tuple):
        found = tuple(text(each) for each in given)
        if not found:
            raise ValueError("must not be an empty list")
        if len(set(found)) < len(found):
            raise ValueError("names something twice: remove one")
        return found
    return (text(given),)


def flag(given: Any) -> bool:
    if isinstance(given, bool):
        return given
    # From ${NAME:-false}, for example.
    return one_of("true", "false")(given) == "true"


def registry(given: Any) -> str:
    """The URL of a schema registry, or several with commas."""
    from ottla.spark.values.registry import Location

    try:
        Location.of(text(given))
    except ValueError as error:
        raise ValueError(
            str(error).removeprefix("registry: ").replace("to auth", "to registry_auth")
        ) from None
    return text(given)


def user_and_password(given: Any) -> str:
    """The message does not repeat the value: it is secret."""
    if not isinstance(given, str) or ":" not in given:
        raise ValueError("must be USER:PASSWORD, as in registry_auth: ${REGISTRY_AUTH}")
    return given.strip()


def mapping(given: Any) -> dict[str, str]:
    """Names and values, as strings for Spark and Kafka."""
    if not isinstance(given, Mapping):
        raise ValueError(f"must be names and values, not {_kind(given)}")
    found = {}
    for name, value in given.items():
        if isinstance(value, bool):
            found[str(name)] = str(value).lower()
        elif isinstance(value, str | int | float):
            found[str(name)] = str(value)
        else:
            raise ValueError(f"has {_kind(value)} as the value of {name}: write a string or a number")
    return found


def things(given: Any) -> Mapping[str, Any]:
    """Names and their definitions, each parsed by its own table."""
    if not isinstance(given, Mapping):
        raise ValueError(f"must be names with their definitions, not {_kind(given)}")
    return given


def whole_number(given: Any) -> int:
    try:
        number = int(text(given))
    except ValueError:
        raise ValueError(f"must be a whole number, not {given!r}") from None
    if number < 1:
        raise ValueError(f"must be 1 or more, not {number}")
    return number


def span(given: Any) -> str:
    """A duration, as Spark writes it: "10 seconds"."""
    match = _SPAN.fullmatch(text(given))
    if match is None:
        raise ValueError(f"must be a number and a unit, as in 10 seconds or 500 ms, not {given!r}")
    return f"{match[1]} {_WORDS.get(match[2].lower(), match[2].lower())}"


def seconds(given: Any) -> float:
    number, unit = span(f"{given} s" if isinstance(given, int | float) else given).split()
    word = unit if unit in _SECONDS else {"minute": "min", "minutes": "min"}.get(unit, unit[0])
    return float(number) * (0.001 if unit.startswith("milli") else _SECONDS[word])


def trigger(given: Any) -> str:
    if text(given).lower() in (AVAILABLE_NOW, "once"):
        return AVAILABLE_NOW
    try:
        return span(given)
    except ValueError:
        raise ValueError(
            f"must be a duration as in 1 second, {AVAILABLE_NOW}, or once, not {given!r}"
        ) from None


def watermark(given: Any) -> Watermark:
    column, _, delay = text(given).partition(" ")
    try:
        return Watermark(column, span(delay))
    except ValueError:
        raise ValueError(f"must be a column and a delay, as in at 10 seconds, not {given!r}") from None


def start(given: Any) -> str:
    word = text(given)
    if word not in ("earliest", "latest") and not word.startswith("{"):
        raise ValueError(f"must be earliest, latest, or JSON with an offset per partition, not {word!r}")
    return word


def function(given: Any) -> Function:
    """A function, or FILE.py:NAME."""
    if callable(given):
        return Function(getattr(given, "__name__", repr(given)), given)
    file, colon, name = text(given).rpartition(":")
    if not colon or not name.isidentifier() or not file.endswith(".py"):
        raise ValueError(f"must be FILE.py:FUNCTION, not {given!r}")
    return Function(text(given))


def _kind(given: Any) -> str:
    if given is None:
        return "nothing"
    if isinstance(given, bool):
        return str(given).lower()
    if isinstance(given, Mapping):
        return "names and values"
    if isinstance(given, list | tuple):
        return "a list"
    return repr(given) if isinstance(given, str | int | float) else f"a {type(given).__name__}"


PIPELINE: Final = (
    Field("name", text, "name of the pipeline; by default the name of the file"),
    Field("brokers", text, "HOST:PORT of a broker, several with commas; the default for all sources and sinks"),
    Field("checkpoint", text, "folder for progress and state, with one subfolder per sink; a relative path starts at the file's folder"),
    Field("trigger", trigger, "interval of the micro-batches, as in 1 second; or available-now (once): process all available data, then exit"),
    Field("limits", things, "bounds, see below"),
    Field("kafka", mapping, "client settings with Kafka's names (security.protocol, …), for all sources and sinks; consumer settings apply only to sources, producer settings only to sinks"),
    Field("registry", registry, "URL of a schema registry, or several with commas; the default for all avro and protobuf values"),
    Field("registry_auth", user_and_password, "USER:PASSWORD for the registry, as in ${REGISTRY_AUTH}; never shown"),
    Field("registry_ca", text, "file with the CA certificate of the registry; a relative path starts at the file's folder"),
    Field("spark", mapping, "settings of the Spark session"),
    Field("status", text, "the status file; by default status.json in the checkpoint"),
    Field("sources", things, "input tables, by name"),
    Field("steps", things, "tables computed from sources and steps, by name: a SQL text, or the fields below"),
    Field("sinks", things, "outputs, by name"),
)  # fmt: skip
LIMITS: Final = (
    Field("records", whole_number, "maximum records of a topic per micro-batch; the default for all sources"),
    Field("stop", seconds, "how long a stop waits for the running micro-batch, as in 30 seconds; then the micro-batch is aborted, and repeated at the next start"),
)  # fmt: skip
SOURCE: Final = (
    Field("topic", text, "the topic, or several with commas"),
    Field("pattern", text, "a regular expression for topic names, instead of topic"),
    Field("brokers", text, "as above, for this source"),
    Field("read", one_of("stream", "batch", "table"), "stream (default): records as they arrive; batch: all records that exist when a micro-batch starts; table: the same, but only the latest record of each key, without keys deleted by a tombstone, as in a compacted topic"),
    Field("value", one_of(*VALUES), "format of the values. Without it, the columns are those of the record: key, value (bytes), topic, partition, offset, timestamp, …. With it, they are the fields of the value, plus _key, _topic, _partition, _offset and _timestamp"),
    Field("schema", text, "columns of a JSON value, as in id BIGINT, at TIMESTAMP; with a registry, the schema text to read with, instead of the subject's latest version"),
    Field("registry", registry, "URL of the schema registry; with value: json it selects JSON Schema, and schema is not needed"),
    Field("registry_auth", user_and_password, "as above, for this source; the top-level value is never sent to another registry"),
    Field("registry_ca", text, "as above, for this source"),
    Field("subject", text, "subject in the registry; by default TOPIC-value"),
    Field("message", text, "message of a Protobuf schema; by default the first"),
    Field("dead_letters", text, "topic for records of a stream that cannot be decoded; without it, such a record fails the micro-batch"),
    Field("watermark", watermark, "a time column and the maximum delay of its rows, as in at 10 seconds"),
    Field("start", start, "where the first run starts: earliest (default), latest, or JSON of offsets"),
    Field("group", text, "consumer group to which offsets are committed after each micro-batch, so that Kafka tools show the lag. If several sinks read the source, each commits, and the lag shown is that of the last commit"),
    Field("records", whole_number, "maximum records per micro-batch"),
    Field("kafka", mapping, "client settings, for this source"),
    Field("format", text, "another format of Spark, as in rate, json or parquet, instead of a topic"),
    Field("path", text, "path for that format; a relative path starts at the file's folder"),
    Field("options", mapping, "options of the format, with Spark's names"),
)  # fmt: skip
STEP: Final = (
    Field("sql", text, "a query over sources and other steps"),
    Field("python", function, "FILE.py:FUNCTION, instead of sql: it receives DataFrames and returns one"),
    Field(
        "inputs",
        texts,
        "tables for the function, in the order of its parameters; in a Python file, by default the names "
        "of the parameters. For a query: the tables it reads, if they cannot be found in the text",
    ),
    Field("watermark", watermark, "as for a source"),
)
SINK: Final = (
    Field("from", text, "the step or source whose rows are written"),
    Field("topic", text, "a topic"),
    Field("table", things, "a database table: url, name and key, see below"),
    Field("parquet", text, "a folder of Parquet files; with key, only the latest row of each key; a relative path starts at the file's folder"),
    Field("python", function, "FILE.py:FUNCTION, called with the DataFrame and the number of each micro-batch"),
    Field("format", text, "another format of Spark, as in console, memory or parquet"),
    Field("path", text, "path for that format; a relative path starts at the file's folder"),
    Field("options", mapping, "options of the format, or of the topic sink, with Spark's names"),
    Field("brokers", text, "as above, for this sink"),
    Field("key", texts, "column of the record key, or several: one is written as text, several as JSON. For parquet, the columns that identify a row"),
    Field("order_by", text, "for a table, and parquet with a key: column that decides which row of a key in one micro-batch is the latest; by default the offset, if rows have _topic, _partition and _offset"),
    Field("tombstones", flag, "for a table, and parquet with a key: true: a row that is null in all columns besides the key deletes its key; by default such a row is written"),
    Field("value", one_of(*VALUES), "format of the value: json (all columns that do not start with _), string (the only column besides the key), avro or protobuf; without it, the step needs a column value"),
    Field("schema", text, "schema text, registered if it is missing; by default the subject's latest version"),
    Field("registry", registry, "URL of the schema registry"),
    Field("registry_auth", user_and_password, "as for a source"),
    Field("registry_ca", text, "as for a source"),
    Field("subject", text, "subject in the registry; by default TOPIC-value"),
    Field("message", text, "as for a source"),
    Field("dead_letters", text, "topic for rows that the database refuses"),
    Field("guarantee", one_of("exactly-once", "at-least-once"), "for a topic: exactly-once (default) or at-least-once"),
    Field("mode", one_of(*MODES), "Spark's output mode: append (default), update (default for a table, and for parquet with a key) or complete"),
    Field("trigger", trigger, "as above, for this sink"),
    Field("reset", flag, "true, for one run: continue although checkpoint and sink do not belong together, for example after a checkpoint was deleted; see above"),
    Field("kafka", mapping, "client settings, for this sink"),
)  # fmt: skip
TABLE: Final = (
    Field(
        "url",
        text,
        "the database, as in sqlite:///totals.db (relative to the file's folder; sqlite:////… is "
        "absolute), postgresql://user:password@host/db or mysql://…",
    ),
    Field("name", text, "the table; created if it is missing"),
    Field("key", texts, "the columns that identify a row"),
)
