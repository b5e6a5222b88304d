"""What may stand in a pipeline's file: a table for each kind of thing, with what every field means. docs/pipelines.md is held to it.

A field's `read` turns what was written into a value, or raises `ValueError` with a message that goes on from the field's name.
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
#: Spark knows whole words only.
_WORDS: Final = {"ms": "milliseconds", "s": "seconds", "min": "minutes", "h": "hours", "d": "days"}
VALUES: Final = ("string", "json", "avro", "protobuf")
MODES: Final = ("append", "update", "complete")


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name in the file, how it is read, and what it means."""

    name: str
    read: Callable[[Any], Any]
    meaning: str


def text(given: Any) -> str:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise ValueError(f"must be a text, not {_kind(given)}")
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
    """One text, or a list of them."""
    if isinstance(given, list | tuple):
        found = tuple(text(each) for each in given)
        if not found:
            raise ValueError("must not be an empty list")
        if len(set(found)) < len(found):
            raise ValueError("must not name one thing twice")
        return found
    return (text(given),)


def flag(given: Any) -> bool:
    if isinstance(given, bool):
        return given
    # As ${NAME:-false} gives it.
    return one_of("true", "false")(given) == "true"


def registry(given: Any) -> str:
    """The address of a schema registry, or several with commas."""
    from ottla.spark.values.registry import Location

    try:
        Location.of(text(given))
    except ValueError as error:
        raise ValueError(
            str(error).removeprefix("registry: ").replace("as auth", "as registry_auth")
        ) from None
    return text(given)


def user_and_password(given: Any) -> str:
    """What was written is not repeated: it is a secret."""
    if not isinstance(given, str) or ":" not in given:
        raise ValueError("must be USER:PASSWORD, as in registry_auth: ${REGISTRY_AUTH}")
    return given.strip()


def mapping(given: Any) -> dict[str, str]:
    """Names and values, as Spark and Kafka want them: texts."""
    if not isinstance(given, Mapping):
        raise ValueError(f"must be names and values, not {_kind(given)}")
    found = {}
    for name, value in given.items():
        if isinstance(value, bool):
            found[str(name)] = str(value).lower()
        elif isinstance(value, str | int | float):
            found[str(name)] = str(value)
        else:
            raise ValueError(f"has {_kind(value)} as the value of {name}: it must be a text or a number")
    return found


def things(given: Any) -> Mapping[str, Any]:
    """Names and what stands under them; each is read by a table of its own."""
    if not isinstance(given, Mapping):
        raise ValueError(f"must be names with what they are, not {_kind(given)}")
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
    """A stretch of time, as Spark writes it: "10 seconds"."""
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
            f"must be a stretch of time as in 1 second, {AVAILABLE_NOW}, or once, not {given!r}"
        ) from None


def watermark(given: Any) -> Watermark:
    column, _, delay = text(given).partition(" ")
    try:
        return Watermark(column, span(delay))
    except ValueError:
        raise ValueError(
            f"must be a column and how late rows may come, as in at 10 seconds, not {given!r}"
        ) from None


def start(given: Any) -> str:
    word = text(given)
    if word not in ("earliest", "latest") and not word.startswith("{"):
        raise ValueError(f"must be earliest, latest, or JSON of offsets a partition, not {word!r}")
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
    Field("name", text, "what it is called; without it, the file's own name"),
    Field("brokers", text, "HOST:PORT of a broker, several with commas; for every source and sink that has none of its own"),
    Field("checkpoint", text, "the folder where progress and state are kept, each sink's in one of its name below it; a relative path is taken from the file's folder"),
    Field("trigger", trigger, "how often a batch begins, as in 1 second; or available-now (once): all that is there, then the end"),
    Field("limits", things, "bounds, see below"),
    Field("kafka", mapping, "settings of the clients under Kafka's names (security.protocol, …), for every source and sink; those that only consumers or only producers have are for sources, or for sinks, alone"),
    Field("registry", registry, "URL of a schema registry, or several with commas, for every source and sink whose values are avro or protobuf"),
    Field("registry_auth", user_and_password, "USER:PASSWORD for it, as in ${REGISTRY_AUTH}; never shown"),
    Field("registry_ca", text, "the file of the authority that its certificate is of; a relative path is taken from the file's folder"),
    Field("spark", mapping, "settings of the Spark session"),
    Field("status", text, "the file that tells how it is getting on; without it, status.json in the checkpoint"),
    Field("sources", things, "the tables that come from outside, by name"),
    Field("steps", things, "the tables that are made of them, by name: an SQL text, or the fields below"),
    Field("sinks", things, "where rows go, by name"),
)  # fmt: skip
LIMITS: Final = (
    Field("records", whole_number, "the most records of a topic in one batch, for every source that has no bound of its own"),
    Field("stop", seconds, "how long a stop waits for the batch that is running, as in 30 seconds; then the batch is given up, and repeated at the next start"),
)  # fmt: skip
SOURCE: Final = (
    Field("topic", text, "the topic, or several with commas"),
    Field("pattern", text, "a regular expression of topics, in place of topic"),
    Field("brokers", text, "as above, for this one alone"),
    Field("read", one_of("stream", "batch", "table"), "stream (the default): its rows as they come; batch: what is there when a batch begins; table: the same, but of each key the latest record only, without those deleted by a tombstone: what a compacted topic says"),
    Field("value", one_of(*VALUES), "what the values are. Without it the columns are the record's own: key, value (bytes), topic, partition, offset, timestamp, …; with it they are the value's, and the record's own are there as _key, _topic, _partition, _offset and _timestamp"),
    Field("schema", text, "the columns of a JSON value, as in id BIGINT, at TIMESTAMP; with a registry, the text of the schema to read by, in place of the latest of the subject"),
    Field("registry", registry, "URL of the schema registry; with value: json it means JSON Schema, and schema is not needed"),
    Field("registry_auth", user_and_password, "as above, for this one alone; what stands at the top is not told to another registry"),
    Field("registry_ca", text, "as above, for this one alone"),
    Field("subject", text, "the schema's name there; without it, the topic's name with -value"),
    Field("message", text, "which message of a Protobuf schema the values are; without it, the first"),
    Field("dead_letters", text, "a topic for records of a stream that cannot be decoded; without it the batch fails at the first one"),
    Field("watermark", watermark, "a column of time and how late its rows may come, as in at 10 seconds"),
    Field("start", start, "where the first run begins: earliest (the default), latest, or JSON of offsets"),
    Field("group", text, "a consumer group that is told how far each batch has come, so that every Kafka tool shows the lag. Where several sinks read the source each tells it for itself, and the lag shown is that of whoever did so last"),
    Field("records", whole_number, "the most records in one batch"),
    Field("kafka", mapping, "settings of the client, for this one alone"),
    Field("format", text, "another format of Spark's, as in rate, json or parquet, in place of a topic"),
    Field("path", text, "the path of that format; a relative one is taken from the file's folder"),
    Field("options", mapping, "options of the format, under Spark's names"),
)  # fmt: skip
STEP: Final = (
    Field("sql", text, "a query over sources and other steps"),
    Field("python", function, "FILE.py:FUNCTION, in place of sql: it is given DataFrames and returns one"),
    Field(
        "inputs",
        texts,
        "what the function is given, in its order; in a Python file its parameters' names say it. Of a query, what it reads, where that is not to be told from its text",
    ),
    Field("watermark", watermark, "as for a source"),
)
SINK: Final = (
    Field("from", text, "the step or source whose rows go there"),
    Field("topic", text, "a topic"),
    Field("table", things, "a table of a database: url, name and key, see below"),
    Field("parquet", text, "a folder of Parquet files; with key, each key's latest row only; a relative path is taken from the file's folder"),
    Field("python", function, "FILE.py:FUNCTION, called with each batch's DataFrame and the batch's number"),
    Field("format", text, "another format of Spark's, as in console, memory or parquet"),
    Field("path", text, "the path of that format; a relative one is taken from the file's folder"),
    Field("options", mapping, "options of the format, or of a topic's sink, under Spark's names"),
    Field("brokers", text, "as above, for this one alone"),
    Field("key", texts, "the column that is the record's key, or several; one is written as its text, several as JSON. For parquet, the columns that tell rows apart"),
    Field("order_by", text, "for a table, and parquet with a key: the column that tells which row of a key in one batch is the latest; without it, the offset, where rows have _topic, _partition and _offset"),
    Field("tombstones", flag, "for a table, and parquet with a key: true lets a row whose columns beside the key are all null delete its key; without it such a row is a row"),
    Field("value", one_of(*VALUES), "what the value is: json (of all columns but those that begin with _), string (of the one column that is not the key), avro or protobuf; without it the step must have a column value"),
    Field("schema", text, "the schema's text, which is registered if it is not there; without it, the latest of the subject"),
    Field("registry", registry, "URL of the schema registry"),
    Field("registry_auth", user_and_password, "as for a source"),
    Field("registry_ca", text, "as for a source"),
    Field("subject", text, "the schema's name there; without it, the topic's name with -value"),
    Field("message", text, "as for a source"),
    Field("dead_letters", text, "a topic for rows that cannot be written to the table"),
    Field("guarantee", one_of("exactly-once", "at-least-once"), "for a topic: exactly-once (the default) or at-least-once"),
    Field("mode", one_of(*MODES), "Spark's output mode: append (the default), update (the default of a table, and of parquet with a key) or complete"),
    Field("trigger", trigger, "as above, for this one alone"),
    Field("reset", flag, "true, for one run: go on though checkpoint and sink do not belong together, as after a checkpoint was deleted; see above"),
    Field("kafka", mapping, "settings of the client, for this one alone"),
)  # fmt: skip
TABLE: Final = (
    Field(
        "url",
        text,
        "the database, as in sqlite:///totals.db (beside the file; sqlite:////… is a path from the root), postgresql://user:password@host/db or mysql://…",
    ),
    Field("name", text, "the table; it is made if it is not there"),
    Field("key", texts, "the columns that tell its rows apart"),
)
