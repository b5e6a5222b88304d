"""Rules for combinations of fields: a field without effect is an error. Pure.

Each function takes the given fields and the parsed object. It yields problems: the name of a field (or "")
and a message.
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
#: Fields of a sink, the kinds of sink that support them, and the message for other kinds.
_SINKS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    **dict.fromkeys(("value", "guarantee", "schema", *_REGISTRY), (("topic",), "is for topics only")),
    "key": (("topic", "parquet"), "is for topics and parquet: remove it"),
    "path": (("format",), "is for other formats of Spark: add format, or remove path"),
    "options": (("topic", "format"), "is for topics and for other formats of Spark"),
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
            yield "read", "table is for topics: use stream or batch for another format"
        return
    if not source.brokers and ("topic" in own or "pattern" in own):
        yield "", "brokers is missing: write it here or at the top, as in brokers: 127.0.0.1:9092"
    if "path" in own:
        yield "path", "is for other formats of Spark: remove it"
    if source.value == "json" and not source.schema and not source.registry:
        yield "", 'value: json needs a schema, as in schema: "id BIGINT, at TIMESTAMP", or a registry'
    if source.value in WITH_REGISTRY and not source.registry:
        yield "", f"value: {source.value} needs a registry: add the URL of a schema registry"
    if source.value in (None, "string"):
        for name in ("schema", *_REGISTRY):
            if name in own:
                yield name, "is for decoded values: add value: json (or avro, protobuf)"
        if source.value is None and "dead_letters" in own:
            yield "dead_letters", "is for decoded values: add value: json, avro or protobuf"
    else:
        yield from _wrong_with_registry(own, source)
        if source.registry and source.schema and source.subject:
            yield "subject", "cannot be combined with schema: remove one of them"
        several = source.pattern is not None or "," in (source.topic or "")
        if source.registry and several and not source.subject and not source.schema:
            yield "", "subject is missing: add it, because several topics have no default subject"
    if source.read != "stream":
        for name in _STREAMS:
            if name in own:
                yield name, f"is for streams, but this source has read: {source.read}: remove one of them"


def _wrong_with_registry(own: Mapping[str, Any], thing: Source | Sink) -> Iterator[Wrong]:
    """Problems with json, avro and protobuf values."""
    if not thing.registry and thing.value == "json":
        for name in ("registry_auth", "registry_ca", "subject"):
            if name in own:
                yield (
                    name,
                    "needs a registry, and value: json has none here: add registry, or remove this field",
                )
    if "message" in own and thing.value != "protobuf":
        yield "message", f"is for value: protobuf, not {thing.value}: remove it"


def wrong_with_sink(own: Mapping[str, Any], sink: Sink) -> Iterator[Wrong]:
    kinds = [each for each in KINDS if each in own]
    if len(kinds) != 1:
        return
    (kind,) = kinds
    for name, (has, said) in _SINKS.items():
        if name in own and kind not in has:
            inside = name == "key" and kind == "table"
            yield name, "belongs inside table: move it there" if inside else said
    if kind == "topic":
        yield from _wrong_with_topic(own, sink)
    if kind == "table":
        if sink.dead_letters is None:
            for name in ("brokers", "kafka"):
                if name in own:
                    yield name, "is for the dead letters of a table: add dead_letters, or remove it"
        elif not sink.brokers:
            yield "dead_letters", "needs brokers: write it here or at the top, as in brokers: 127.0.0.1:9092"
    if kind == "parquet" and not sink.key:
        for name in ("order_by", "tombstones"):
            if name in own:
                yield name, "needs key: add key, or remove this field"
        if sink.mode == "complete":
            yield (
                "mode",
                "complete would append the whole result in each micro-batch: add a key, or use another mode",
            )


def _wrong_with_topic(own: Mapping[str, Any], sink: Sink) -> Iterator[Wrong]:
    if not sink.brokers:
        yield "", "brokers is missing: write it here or at the top, as in brokers: 127.0.0.1:9092"
    if "reset" in own and sink.guarantee != "exactly-once":
        yield "reset", f"has no effect with guarantee: {sink.guarantee}, which stores no progress: remove it"
    if sink.value in WITH_REGISTRY and not sink.registry:
        yield "", f"value: {sink.value} needs a registry: add the URL of a schema registry"
    if sink.value in (None, "string"):
        for name in ("schema", *_REGISTRY):
            if name in own:
                yield name, "is for values with a schema: add value: avro, protobuf, or json with a registry"
        return
    yield from _wrong_with_registry(own, sink)
    if "schema" in own and not sink.registry and sink.value == "json":
        yield "schema", "needs a registry: without one, the JSON contains the step's columns"
