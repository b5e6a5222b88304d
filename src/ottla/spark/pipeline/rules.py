"""Which fields of a source and of a sink go together: a field that would do nothing is a mistake, and is told. Pure.

Each function is given what was written and what was made of it, and gives what is wrong: a field's name, or "" for the whole, and a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ottla.spark.pipeline.model import Sink, Source

Wrong = tuple[str, str]

KINDS: Final = ("topic", "table", "parquet", "python", "format")
WITH_REGISTRY: Final = ("avro", "protobuf")
_REGISTRY: Final = ("registry", "registry_auth", "registry_ca", "subject", "message")
_SOURCES_OF_TOPICS: Final = (
    "brokers", "value", *_REGISTRY, "dead_letters", "start", "group", "records", "kafka",
)  # fmt: skip
_STREAMS: Final = ("watermark", "group", "records", "start", "dead_letters")
#: Fields of a sink, the kinds that have them, and what to say of any other.
_SINKS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    **dict.fromkeys(("value", "guarantee", "schema", *_REGISTRY), (("topic",), "is for topics only")),
    "key": (("topic", "parquet"), "does not belong here: it is for topics and parquet"),
    "path": (("format",), "is for other formats of Spark's: it belongs to format"),
    "options": (("topic", "format"), "is for topics and for other formats of Spark's"),
    "brokers": (("topic", "table"), "is for topics, and for the dead letters of tables"),
    "kafka": (("topic", "table"), "is for topics, and for the dead letters of tables"),
    "dead_letters": (("table",), "is for tables, whose rows a database may refuse"),
    "order_by": (("table", "parquet"), "is for tables and for parquet with a key"),
    "tombstones": (("table", "parquet"), "is for tables and for parquet with a key"),
    "reset": (("topic", "table", "parquet"), "is for topics, tables and parquet"),
}  # fmt: skip


def wrong_with_source(own: Mapping[str, Any], source: Source) -> Iterator[Wrong]:
    if not source.is_topic:
        yield from ((name, "is for topics only") for name in _SOURCES_OF_TOPICS if name in own)
        if source.read == "table":
            yield "read", "table is for topics; another format is read as stream or batch"
        return
    if not source.brokers and ("topic" in own or "pattern" in own):
        yield "", "brokers is missing: write it here or at the top, as in brokers: 127.0.0.1:9092"
    if "path" in own:
        yield "path", "is for other formats of Spark's: a topic has none"
    if source.value == "json" and not source.schema and not source.registry:
        yield "", 'value: json needs a schema, as in schema: "id BIGINT, at TIMESTAMP", or a registry'
    if source.value in WITH_REGISTRY and not source.registry:
        yield "", f"value: {source.value} needs a registry, the URL of a schema registry"
    if source.value in (None, "string"):
        for name in ("schema", *_REGISTRY):
            if name in own:
                yield name, "is for decoded values: add value: json (or avro, protobuf)"
        if source.value is None and "dead_letters" in own:
            yield "dead_letters", "is for decoded values: add value: json, avro or protobuf"
    else:
        yield from _wrong_with_registry(own, source)
        if source.registry and source.schema and source.subject:
            yield "subject", "does not go with schema: the values are read by one of them"
        several = source.pattern is not None or "," in (source.topic or "")
        if source.registry and several and not source.subject and not source.schema:
            yield "", "subject is missing: with several topics it cannot be told from the topic's name"
    if source.read != "stream":
        for name in _STREAMS:
            if name in own:
                yield name, f"is for streams, and this is read: {source.read}"


def _wrong_with_registry(own: Mapping[str, Any], thing: Source | Sink) -> Iterator[Wrong]:
    """Of values that are json, avro or protobuf."""
    if not thing.registry and thing.value == "json":
        for name in ("registry_auth", "registry_ca", "subject"):
            if name in own:
                yield (
                    name,
                    "goes with a registry, and value: json has none here: add registry, or leave it out",
                )
    if "message" in own and thing.value != "protobuf":
        yield "message", f"is for value: protobuf, and this is {thing.value}"


def wrong_with_sink(own: Mapping[str, Any], sink: Sink) -> Iterator[Wrong]:
    kinds = [each for each in KINDS if each in own]
    if len(kinds) != 1:
        return
    (kind,) = kinds
    for name, (has, said) in _SINKS.items():
        if name in own and kind not in has:
            inside = name == "key" and kind == "table"
            yield name, "does not belong here: write it inside table" if inside else said
    if kind == "topic":
        yield from _wrong_with_topic(own, sink)
    if kind == "table":
        if sink.dead_letters is None:
            for name in ("brokers", "kafka"):
                if name in own:
                    yield name, "is for the dead letters of a table: add dead_letters, or leave it out"
        elif not sink.brokers:
            yield "dead_letters", "needs brokers: write it here or at the top, as in brokers: 127.0.0.1:9092"
    if kind == "parquet" and not sink.key:
        for name in ("order_by", "tombstones"):
            if name in own:
                yield name, "goes with key: without it every row is added"
        if sink.mode == "complete":
            yield (
                "mode",
                "complete would add the whole result again with each batch: give it a key, or another mode",
            )


def _wrong_with_topic(own: Mapping[str, Any], sink: Sink) -> Iterator[Wrong]:
    if not sink.brokers:
        yield "", "brokers is missing: write it here or at the top, as in brokers: 127.0.0.1:9092"
    if sink.value in WITH_REGISTRY and not sink.registry:
        yield "", f"value: {sink.value} needs a registry"
    if sink.value in (None, "string"):
        for name in ("schema", *_REGISTRY):
            if name in own:
                yield name, "is for values with a schema: add value: avro, protobuf, or json with a registry"
        return
    yield from _wrong_with_registry(own, sink)
    if "schema" in own and not sink.registry and sink.value == "json":
        yield "schema", "goes with a registry: without one, the JSON is of the step's columns"
