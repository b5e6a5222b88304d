"""Reads and writes values by schema: bytes ↔ Python values, without Spark.

    reader = ValueReader("http://127.0.0.1:8081", subject="orders-value")
    order = reader.read(record.value)
    writer = ValueWriter("http://127.0.0.1:8081", "orders-value")
    value = writer.write({"id": 7, "price": Decimal("9.50")})

A `Plan` contains everything that is needed before the first value, above all the schema. It is plain data:
the driver creates it and sends it to workers. Readers request schemas of other versions by id; the `Registry`
caches them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ottla.spark.values.avro import AvroReader, AvroWriter
from ottla.spark.values.errors import BadValue, SchemaError, UnknownSchema
from ottla.spark.values.json_schema import JsonReader, JsonWriter
from ottla.spark.values.registry import AVRO, JSON, KINDS, NO_ID, PROTOBUF, Location, Registry, Schema
from ottla.spark.values.wire_format import schema_id_of


class Reader(Protocol):
    def read(self, frame: bytes, writer: Schema, /) -> Any: ...


class Writer(Protocol):
    def write(self, value: Any, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """The schema to read or write with.

    `files` are the compiled files of a Protobuf schema, `message` is the full name of its message.
    """

    location: Location
    schema: Schema
    files: tuple[bytes, ...] = ()
    message: str | None = None


@dataclass(frozen=True, slots=True)
class SchemaOptions:
    """Which schema to use: of a subject and version, of an id, given as text, or (Protobuf) compiled.

    `schema_type` is the type of a schema given as text, AVRO by default. A schema from the registry must have
    this type, if it is given. `message` names the message of a Protobuf schema.
    """

    subject: str | None = None
    version: int | str = "latest"
    schema_id: int | None = None
    schema: str | None = None
    schema_type: str | None = None
    message: str | None = None
    descriptor_set: bytes | None = None


def plan(location: Location, options: SchemaOptions, registry: Registry | None = None) -> Plan:
    """Find the schema to read as. `registry` is reused if it is given."""
    given = [
        name
        for name in ("subject", "schema_id", "schema", "descriptor_set")
        if getattr(options, name) is not None
    ]
    if len(given) != 1:
        found_text = f"{' and '.join(given)} are given" if given else "none is given"
        raise ValueError(
            f"{found_text}: name the schema by exactly one of subject, schema_id, schema and descriptor_set"
        )
    subject, schema_id = options.subject, options.schema_id
    if options.version != "latest" and subject is None:
        raise ValueError(f"version {options.version!r} needs subject: give both, or leave version out")
    asked = registry or Registry(location)
    if subject is not None:
        found = asked.by_subject(subject, options.version)
    elif schema_id is not None:
        found = asked.by_id(schema_id)
    else:
        kind = PROTOBUF if options.descriptor_set is not None else _kind(options.schema_type)
        found = Schema(NO_ID, kind, options.schema or "")
    if options.schema_type is not None and found.kind != _kind(options.schema_type):
        what = f"subject {subject!r}" if subject is not None else f"schema id {schema_id}"
        raise SchemaError(
            f"{what} is of type {found.kind}, not {_kind(options.schema_type)}: change schema_type or leave "
            "it out"
        )
    return compiled(Plan(location, found, message=options.message), options.descriptor_set)


def _kind(schema_type: str | None) -> str:
    kind = AVRO if schema_type is None else schema_type.upper()
    if kind not in KINDS:
        raise ValueError(f"schema_type must be one of {', '.join(KINDS)}, not {schema_type!r}")
    return kind


def compiled(planned: Plan, descriptor_set: bytes | None = None) -> Plan:
    """Add the compiled files of a Protobuf schema to the plan. Other schemas need none."""
    if planned.schema.kind != PROTOBUF:
        if planned.message is not None:
            raise ValueError(
                f"message {planned.message!r} needs a Protobuf schema, but the schema is "
                f"{planned.schema.kind}: "
                "leave message out"
            )
        return planned
    # Loaded only if it is used.
    from ottla.spark.values.protobuf_schema import files_of, files_of_set

    files = files_of_set(descriptor_set) if descriptor_set is not None else files_of(planned.schema)
    return replace(planned, files=files.serialized, message=files.message(planned.message).full_name)


def reader_of(planned: Plan, *, columns: bool = False) -> Reader:
    schema = planned.schema
    if schema.kind == AVRO:
        return AvroReader(schema, columns=columns)
    if schema.kind == JSON:
        return JsonReader(schema, columns=columns)
    from ottla.spark.values.protobuf import ProtobufReader
    from ottla.spark.values.protobuf_schema import Files

    return ProtobufReader(schema, Files(planned.files), planned.message)


def writer_of(planned: Plan, *, columns: bool = False) -> Writer:
    schema = planned.schema
    if schema.id == NO_ID:
        raise SchemaError("the schema has no id, because it is not from a registry: write with a subject")
    if schema.kind == AVRO:
        return AvroWriter(schema)
    if schema.kind == JSON:
        return JsonWriter(schema, columns=columns)
    from ottla.spark.values.protobuf import ProtobufWriter
    from ottla.spark.values.protobuf_schema import Files

    return ProtobufWriter(schema, Files(planned.files), planned.message)


class FrameReader:
    """Reads frames: finds the schema of each frame by its id, and passes both to a reader.

    It remembers ids that the registry does not know. Create one per task, so that the next task finds a
    schema that is registered later.
    """

    def __init__(self, planned: Plan, registry: Registry, reader: Reader) -> None:
        self._kind = planned.schema.kind
        self._registry = registry
        self._reader = reader
        self._schemas: dict[int, Schema | str] = {}
        if planned.schema.id != NO_ID:
            self._schemas[planned.schema.id] = planned.schema

    def read(self, frame: bytes) -> Any:
        schema_id = schema_id_of(frame)
        schema = self._schemas.get(schema_id)
        if schema is None:
            schema = self._schemas[schema_id] = self._find(schema_id)
        if isinstance(schema, str):
            raise BadValue(schema)
        return self._reader.read(frame, schema)

    def _find(self, schema_id: int) -> Schema | str:
        try:
            schema = self._registry.by_id(schema_id)
        except UnknownSchema as error:
            return f"unknown schema id {schema_id}: {error}"
        except SchemaError as error:
            return f"schema {schema_id} cannot be used: {error}"
        if schema.kind != self._kind:
            return f"written with schema {schema_id} of type {schema.kind}, but {self._kind} is expected"
        return schema


class ValueReader:
    """Decodes values with a schema of the registry, without Spark.

    Values of other versions are converted to this schema.

    Args:
        registry: The URL of the schema registry, several URLs, or a `Location`.
        **schema: The schema: `subject`, `version`, `schema_id`, `schema`, `schema_type`, `message` and
            `descriptor_set`, as for `from_registry`.

    Raises:
        ValueError: An argument is invalid.
        SchemaError: The schema cannot be used.
        RegistryError: The registry cannot be reached, or refuses the request.

    Example:
        >>> ValueReader("http://127.0.0.1:8081", subject="orders-value").read(record.value)
    """

    def __init__(self, registry: str | Sequence[str] | Location, **schema: Any) -> None:
        location = registry if isinstance(registry, Location) else Location.of(registry)
        asked = Registry(location)
        planned = plan(location, SchemaOptions(**schema), asked)
        self._frames = FrameReader(planned, asked, reader_of(planned))

    def read(self, frame: bytes | None) -> Any:
        """Decode a value; None (a tombstone) is returned as None. Raises `BadValue`."""
        return None if frame is None else self._frames.read(frame)


class ValueWriter:
    """Encodes values with a schema of the registry, without Spark.

    Args:
        registry: The URL of the schema registry, several URLs, or a `Location`.
        subject: The subject of the schema.
        schema: Register this schema, given as text, under the subject, if it is missing.
        schema_type: AVRO (default), JSON or PROTOBUF: the type of `schema`.
        version: Without `schema`: the version of the subject.
        message: The full name of a Protobuf message; by default the first of the schema.

    Raises:
        ValueError: An argument is invalid.
        SchemaError: The schema cannot be used.
        RegistryError: The registry cannot be reached, or refuses the request.

    Example:
        >>> ValueWriter("http://127.0.0.1:8081", "orders-value").write({"id": 7})
    """

    def __init__(
        self,
        registry: str | Sequence[str] | Location,
        subject: str,
        *,
        schema: str | None = None,
        schema_type: str | None = None,
        version: int | str = "latest",
        message: str | None = None,
    ) -> None:
        location = registry if isinstance(registry, Location) else Location.of(registry)
        options = SchemaOptions(
            subject=subject, version=version, schema=schema, schema_type=schema_type, message=message
        )
        self._writer = writer_of(writing_plan(location, options))

    def write(self, value: Any) -> bytes:
        return self._writer.write(value)


def writing_plan(location: Location, options: SchemaOptions) -> Plan:
    """Find the schema to write with. A schema given as text is registered under the subject."""
    registry = Registry(location)
    if options.schema is None:
        return plan(location, options, registry)
    if options.version != "latest":
        raise ValueError(f"schema and version {options.version!r} are both given: give only one of them")
    assert options.subject is not None, "a schema is registered under a subject"
    schema = registry.register(options.subject, options.schema, _kind(options.schema_type))
    return compiled(Plan(location, schema, message=options.message))
