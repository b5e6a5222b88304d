"""Avro payloads ↔ Python values: dicts, lists, numbers, strings, `Decimal`, `date`, `datetime`, `UUID`. Pure.

`AvroReader` converts values of any version to one schema, by Avro's schema resolution (in fastavro). With
`columns=True` it returns the values of Spark's types: logical types without a Spark type stay as they are
written, and a union of several types becomes a dict with one member set (`member0`, `member1`, …), as in
Spark's Avro. `AvroWriter` checks values before it writes, because fastavro would turn 1.5 into 1, and 2⁴⁰
into an int that no reader accepts.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, cast

from fastavro import schemaless_reader, schemaless_writer
from fastavro._read_py import schemaless_reader as uncompiled_reader

from ottla.spark.values.avro_defaults import decode_defaults
from ottla.spark.values.avro_fit import fitting
from ottla.spark.values.avro_tree import (
    Avro,
    align,
    branches,
    holds_itself,
    is_choice,
    kind_of,
    logical_of,
    parse,
    simplify,
    walk,
    widened,
)
from ottla.spark.values.errors import BadValue, SchemaError
from ottla.spark.values.registry import Schema
from ottla.spark.values.wire_format import HEADER_BYTES, header

_Change = Callable[[Any], Any]

_WIDER: Final = {"int": "long", "float": "double"}


class AvroReader:
    """Reads frames of any version as one schema."""

    def __init__(self, schema: Schema, *, columns: bool = False) -> None:
        self.schema = schema
        self._columns = columns
        self.avro = parse(schema)
        if columns:
            simplify(self.avro)
        # fastavro returns union branches only to a reader that needs them.
        self._tells = columns and any(is_choice(node) for _path, node in walk(self.avro))
        self._change = changing(self.avro) if self._tells else None
        decode_defaults(self.avro, tells=self._tells)
        self._readers: dict[int, Callable[[io.BytesIO], Any]] = {}

    def read(self, frame: bytes, writer: Schema) -> Any:
        reader = self._readers.get(writer.id)
        if reader is None:
            reader = self._readers[writer.id] = self._reader(writer)
        payload = io.BytesIO(frame)
        payload.seek(HEADER_BYTES)
        try:
            value = reader(payload)
            if payload.tell() != len(frame):
                raise BadValue(f"does not fit: {len(frame) - payload.tell()} extra bytes after the value")
            if self._change is not None:
                value = self._change(value)
        except EOFError:
            raise BadValue(f"truncated: it ends within a value of schema {writer.id}") from None
        except BadValue:
            raise
        except Exception as error:
            # Random bytes make fastavro fail in many ways: missing branches, invalid UTF-8, a date in the
            # year 40,000.
            raise BadValue(f"does not fit schema {writer.id}: {type(error).__name__}: {error}") from None
        return value

    def _reader(self, written: Schema) -> Callable[[io.BytesIO], Any]:
        same = (written.text, written.references) == (self.schema.text, self.schema.references)
        try:
            writer = parse(written)
            if self._columns:
                simplify(writer)
            if not same:
                align(writer, self.avro)
        except SchemaError as error:
            raise BadValue(f"schema {written.id} cannot be used: {error}") from None
        carried = not (writer.is_record and self.avro.is_record)
        writing = writer.for_fastavro(carried)
        reading = None if same else self.avro.for_fastavro(carried)
        tells = self._tells
        # fastavro's compiled reader crashes on values that are nested a thousand times; the pure one raises
        # an error.
        reads = uncompiled_reader if holds_itself(writer) else schemaless_reader

        def read(payload: io.BytesIO) -> Any:
            return reads(payload, writing, reading, return_named_type=tells)

        if not carried:
            return read
        return lambda payload: cast("Any", read(payload))["value"]


class AvroWriter:
    """Writes values with one schema."""

    def __init__(self, schema: Schema) -> None:
        avro = parse(schema)
        decode_defaults(avro)
        self._carried = not avro.is_record
        self._schema = avro.for_fastavro(self._carried)
        self._fit = fitting(avro)
        self._header = header(schema.id)

    def write(self, value: Any) -> bytes:
        out = io.BytesIO()
        out.write(self._header)
        try:
            fitted = self._fit(value, "")
            schemaless_writer(out, self._schema, {"value": fitted} if self._carried else fitted)
        except BadValue:
            raise
        except Exception as error:
            raise BadValue(f"does not fit: {type(error).__name__}: {error}") from None
        return out.getvalue()


def changing(avro: Avro) -> _Change:
    """Converts fastavro's values, with branches as (name, value), to column values."""
    entered: list[str] = []

    def change(node: Any) -> _Change:
        node = avro.resolve(node)
        match kind_of(node):
            case "union" if is_choice(node):
                return _choosing([(avro.resolve(each), change(each)) for each in branches(node)])
            case "union":
                inner = change(widened(node) or branches(node)[0]) if branches(node) else _as_is
                return lambda value: None if value is None else inner(value)
            case "record":
                if node["name"] in entered:
                    raise SchemaError(f"{node['name']} is recursive, which no column can hold")
                entered.append(node["name"])
                fields = [(each["name"], change(each["type"])) for each in node["fields"]]
                entered.pop()
                return lambda value: {name: inner(_bare(value)[name]) for name, inner in fields}
            case "array":
                items = change(node["items"])
                return lambda value: [items(each) for each in value]
            case "map":
                values = change(node["values"])
                return lambda value: {key: values(each) for key, each in value.items()}
            case _:
                return _bare

    return change(avro.root)


def _as_is(value: Any) -> Any:
    return value


def _bare(value: Any) -> Any:
    return value[1] if type(value) is tuple else value


def _choosing(choices: list[tuple[Any, _Change]]) -> _Change:
    members = [f"member{place}" for place in range(len(choices))]
    # fastavro does not tell which of two numeric types it was: the wider one holds both.
    nodes = [node for node, _ in choices]
    narrow = [each for each, wider in _WIDER.items() if wider in nodes]
    unnamed = [(place, node) for place, node in enumerate(nodes) if node not in narrow]
    named = {
        node["name"]: place
        for place, (node, _) in enumerate(choices)
        if isinstance(node, dict) and "name" in node
    }

    def choose(value: Any) -> Any:
        if value is None:
            return None
        if type(value) is tuple and value[0] in named:
            place = named[value[0]]
        else:
            value = _bare(value)
            place = next((place for place, node in unnamed if is_of(node, value)), -1)
            if place < 0:
                raise BadValue(f"does not fit: {type(value).__name__} is in no branch of its union")
        chosen: dict[str, Any] = dict.fromkeys(members)
        chosen[members[place]] = choices[place][1](value)
        return chosen

    return choose


def is_of(node: Any, value: Any) -> bool:
    """Whether a Python value may belong to this branch of a union.

    Avro allows each unnamed type once per union.
    """
    logical = logical_of(node) or ""
    if logical.endswith("decimal"):
        return isinstance(value, Decimal)
    if logical.endswith("-date"):
        return isinstance(value, date) and not isinstance(value, datetime)
    if "timestamp-" in logical and not logical.endswith("nanos"):
        return isinstance(value, datetime)
    match kind_of(node):
        case "boolean":
            return isinstance(value, bool)
        case "int":
            return type(value) is int and -(1 << 31) <= value < 1 << 31
        case "long":
            return type(value) is int
        case "float" | "double":
            return isinstance(value, float)
        case "bytes":
            return isinstance(value, bytes)
        case "fixed":
            return isinstance(value, bytes) and len(value) == node["size"]
        case "string":
            return isinstance(value, str) or logical == "string-uuid"
        case "enum":
            return isinstance(value, str) and value in node["symbols"]
        case "array":
            return isinstance(value, list)
        case "map":
            return isinstance(value, dict) and all(isinstance(key, str) for key in value)
        case "record":
            return isinstance(value, dict) and set(value) <= {each["name"] for each in node["fields"]}
        case _:
            return False
