"""Protobuf payloads ↔ Python dicts. Pure, except for the compiler that a new schema version may need.

`ProtobufReader` reads messages of any version with one descriptor: field numbers are the only schema
resolution. The message type of a value is checked by name. An unset field with presence is None, including
unset members of a oneof; other unset fields have their default. Timestamp becomes `datetime`, Duration
`timedelta`, a wrapper (StringValue, …) its value. Struct, Value, ListValue and Any become JSON text.
`ProtobufWriter` does the reverse; None leaves a field unset.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from google.protobuf import json_format, message_factory
from google.protobuf.message import DecodeError

from ottla.spark.values.errors import BadValue, SchemaError, at, pairs, wrong
from ottla.spark.values.numbers import single_of
from ottla.spark.values.protobuf_schema import Files, files_of, indexes_of, names_at
from ottla.spark.values.registry import NO_ID, Schema
from ottla.spark.values.wire_format import header, message_indexes, message_indexes_of

_Get = Callable[[Any], Any]
_Set = Callable[[Any, Any, str], None]

TIMESTAMP: Final = "google.protobuf.Timestamp"
DURATION: Final = "google.protobuf.Duration"
WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
#: Messages whose columns are not known in advance.
TEXTS: Final = frozenset(f"google.protobuf.{kind}" for kind in ("Struct", "Value", "ListValue", "Any"))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class ProtobufReader:
    """Reads frames of any version as one message."""

    def __init__(self, schema: Schema, files: Files, message: str | None = None) -> None:
        self._descriptor = files.message(message)
        self._class = message_factory.GetMessageClass(self._descriptor)
        self._get = getting(self._descriptor)
        self._schema_id = schema.id
        self._files = files
        self._mains: dict[int, Any] = {}
        #: The payload's start, by header and indexes of frames that were checked: they are mostly the same.
        self._checked: set[tuple[int, tuple[int, ...]]] = set()

    def read(self, frame: bytes, writer: Schema) -> Any:
        indexes, start = message_indexes_of(frame)
        if (writer.id, indexes) not in self._checked:
            self._check(writer, indexes)
        try:
            message = self._class.FromString(frame[start:])
        except DecodeError as error:
            raise BadValue(f"truncated, or not Protobuf of schema {writer.id}: {error}") from None
        try:
            return self._get(message)
        except BadValue:
            raise
        except (OverflowError, ValueError) as error:
            raise BadValue(f"does not fit: {error}") from None

    def _check(self, writer: Schema, indexes: tuple[int, ...]) -> None:
        main = self._mains.get(writer.id)
        if main is None:
            try:
                files = self._files if writer.id == self._schema_id else files_of(writer)
            except ModuleNotFoundError:
                # With a compiled schema the compiler may be missing. Then the message indexes of that schema
                # are used.
                if self._schema_id != NO_ID:
                    raise
                files = self._files
            except SchemaError as error:
                raise BadValue(f"schema {writer.id} cannot be used: {error}") from None
            main = self._mains[writer.id] = files.main()
        found = names_at(main, indexes)
        if self._descriptor.full_name not in found:
            held = (
                " or ".join(sorted(found))
                or f"one at {list(indexes)}, which its schema {writer.id} does not have"
            )
            raise BadValue(f"holds another message: {held}, not {self._descriptor.full_name}")
        self._checked.add((writer.id, indexes))


class ProtobufWriter:
    """Writes dicts as one message."""

    def __init__(self, schema: Schema, files: Files, message: str | None = None) -> None:
        descriptor = files.message(message)
        self._class = message_factory.GetMessageClass(descriptor)
        self._set = setting(descriptor)
        self._before = header(schema.id) + message_indexes(indexes_of(descriptor))

    def write(self, value: Any) -> bytes:
        message = self._class()
        try:
            self._set(message, value, "")
            return self._before + bytes(message.SerializeToString())
        except BadValue:
            raise
        except Exception as error:
            raise BadValue(f"does not fit: {error}") from None


def is_map(field: Any) -> bool:
    return bool(
        field.is_repeated and field.message_type is not None and field.message_type.GetOptions().map_entry
    )


def entry_of(field: Any) -> tuple[Any, Any]:
    """The fields for key and value of a map."""
    fields = field.message_type.fields_by_name
    return fields["key"], fields["value"]


def getting(descriptor: Any, entered: tuple[str, ...] = ()) -> _Get:
    """The function that converts a message to a dict, compiled once per descriptor."""
    if descriptor.full_name in entered:
        raise SchemaError(f"{descriptor.full_name} is recursive, which no column can hold")
    inside = (*entered, descriptor.full_name)
    fields = []
    for field in descriptor.fields:
        if is_map(field):
            get: _Get = _of_map(*(_one(each, inside) for each in entry_of(field)))
        elif field.is_repeated:
            get = _of_list(_one(field, inside))
        else:
            get = _one(field, inside)
        fields.append((field.name, get, field.has_presence))

    def read(message: Any) -> Any:
        return {
            name: None if presence and not message.HasField(name) else get(getattr(message, name))
            for name, get, presence in fields
        }

    return read


def _of_list(get: _Get) -> _Get:
    return list if get is _as_is else lambda value: [get(each) for each in value]


def _of_map(get_key: _Get, get: _Get) -> _Get:
    return lambda value: {get_key(key): get(value[key]) for key in value}


def _as_is(value: Any) -> Any:
    return value


def _one(field: Any, entered: tuple[str, ...]) -> _Get:
    if field.enum_type is not None:
        symbols = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        # Proto3 allows numbers without a name, for example of a newer version.
        return lambda value: symbols.get(value) or str(value)
    if field.cpp_type == field.CPPTYPE_UINT64:
        return Decimal
    if field.message_type is None:
        return _as_is
    name = field.message_type.full_name
    if name == TIMESTAMP:
        return lambda value: _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if name == DURATION:
        # Toward zero: both parts have the same sign.
        return lambda value: timedelta(seconds=value.seconds, microseconds=int(value.nanos / 1000))
    if name in WRAPPERS:
        inner = _one(field.message_type.fields_by_name["value"], entered)
        return lambda value: inner(value.value)
    if name in TEXTS:
        return _json_of
    return getting(field.message_type, entered)


def _json_of(value: Any) -> str:
    try:
        return str(json_format.MessageToJson(value, indent=None, descriptor_pool=value.DESCRIPTOR.file.pool))
    except Exception as error:
        raise BadValue(f"does not fit: {value.DESCRIPTOR.name} cannot be written as JSON: {error}") from None


def setting(descriptor: Any) -> _Set:
    """The function that fills a message from a dict, compiled once per descriptor.

    Recursive messages are compiled on first use.
    """
    made: dict[str, Any] | None = None
    oneofs: dict[str, str] = {
        field.name: each.name for each in descriptor.oneofs for field in each.fields if len(each.fields) > 1
    }

    def fill(message: Any, value: Any, path: str) -> None:
        nonlocal made
        if made is None:
            made = {field.name: _setter(field) for field in descriptor.fields}
        if not isinstance(value, Mapping):
            raise wrong(path, f"a message {descriptor.full_name}", value)
        taken: dict[str, str] = {}
        for name, each in value.items():
            put = made.get(name)
            if put is None:
                raise BadValue(f"does not fit: {path or descriptor.full_name} has no field {name}")
            if each is None:
                continue
            if name in oneofs and taken.setdefault(oneofs[name], name) != name:
                raise BadValue(
                    f"does not fit: {at(path, name)} and {taken[oneofs[name]]} of one oneof are both set"
                )
            put(message, each, at(path, name))

    return fill


def _setter(field: Any) -> _Set:
    name = field.name
    if is_map(field):
        key, inner = entry_of(field)
        key_of, put_value = _key(key), _putter(inner)

        def put_map(message: Any, value: Any, path: str) -> None:
            target = getattr(message, name)
            for each_key, each in pairs(value, path):
                put_value(target, key_of(each_key, path), each, f"{path}{{{each_key}}}")

        return put_map
    put = _putter(field)
    if field.is_repeated:

        def put_list(message: Any, value: Any, path: str) -> None:
            if not isinstance(value, (list, tuple)):
                raise wrong(path, "an array", value)
            target = getattr(message, name)
            for place, each in enumerate(value):
                put(target, None, each, f"{path}[{place}]")

        return put_list
    return lambda message, value, path: put(message, name, value, path)


def _key(field: Any) -> Callable[[Any, str], Any]:
    convert, type_ = _converter(field), str if field.cpp_type == field.CPPTYPE_STRING else int

    def of(value: Any, path: str) -> Any:
        with contextlib.suppress(TypeError, ValueError, ArithmeticError):
            key = convert(value)
            if isinstance(key, type_):
                return key
        raise wrong(path, f"a map with keys of type {_KINDS[field.type]}", value)

    return of


#: By `FieldDescriptor.type`.
_KINDS: Final = (
    *("?", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group"),
    *("message", "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"),
)


def _putter(field: Any) -> Callable[[Any, Any, Any, str], None]:
    """How to set one value: in a message by name, in a map by key, or at the end of a list (None)."""
    kind = field.message_type or field.enum_type
    wanted = f"of type {kind.full_name if kind is not None else _KINDS[field.type]}"
    store = (
        _store_message(_filler(field.message_type))
        if field.message_type is not None
        else _store(_converter(field))
    )

    def put(target: Any, key: Any, value: Any, path: str) -> None:
        try:
            store(target, key, value, path)
        except BadValue:
            raise
        except (TypeError, ValueError, ArithmeticError, KeyError, AttributeError):
            raise wrong(path, wanted, value) from None

    return put


def _store_message(fill: _Set) -> Callable[[Any, Any, Any, str], None]:
    def store(target: Any, key: Any, value: Any, path: str) -> None:
        if key is None:
            fill(target.add(), value, path)
        elif hasattr(target, "DESCRIPTOR"):
            inner = getattr(target, key)
            # Set the field, even if all its fields have their default.
            inner.SetInParent()
            fill(inner, value, path)
        else:
            fill(target[key], value, path)

    return store


def _store(convert: _Get) -> Callable[[Any, Any, Any, str], None]:
    def store(target: Any, key: Any, value: Any, _path: str) -> None:
        if key is None:
            target.append(convert(value))
        elif hasattr(target, "DESCRIPTOR"):
            setattr(target, key, convert(value))
        else:
            target[key] = convert(value)

    return store


def _converter(field: Any) -> _Get:
    if field.enum_type is not None:
        numbers = {name: each.number for name, each in field.enum_type.values_by_name.items()}
        # A number without a name was read as a number, and is written as one.
        return lambda value: numbers[value] if value in numbers else int(value)
    if field.type == field.TYPE_BOOL:
        return lambda value: value if isinstance(value, bool) else _refuse(value)
    if field.cpp_type == field.CPPTYPE_UINT64:
        return lambda value: (
            int(value) if isinstance(value, Decimal) and value == int(value) else _not_bool(value)
        )
    if field.cpp_type == field.CPPTYPE_STRING:
        return _as_is
    if field.cpp_type == field.CPPTYPE_FLOAT:
        # Protobuf would convert values that are too large to infinity.
        return lambda value: single_of(value) if not isinstance(value, (bool, str, bytes)) else _refuse(value)
    return _not_bool


def _not_bool(value: Any) -> Any:
    return _refuse(value) if isinstance(value, bool) else value


def _refuse(value: Any) -> Any:
    raise TypeError(value)


def _filler(descriptor: Any) -> _Set:
    name = descriptor.full_name
    if name == TIMESTAMP:
        return lambda message, value, path: _put_micros(message, _since_epoch(value, path))
    if name == DURATION:
        return lambda message, value, _path: _put_micros(message, value, towards_zero=True)
    if name in WRAPPERS:
        return _setter(descriptor.fields_by_name["value"])
    if name in TEXTS:
        return _put_json
    return setting(descriptor)


def _since_epoch(value: Any, path: str) -> timedelta:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise wrong(path, "a timestamp with a time zone", value)
    return value - _EPOCH


def _put_micros(message: Any, value: timedelta, *, towards_zero: bool = False) -> None:
    micros = value // _MICROSECOND
    seconds, rest = divmod(micros, 1_000_000)
    if towards_zero and seconds < 0 and rest:
        # Both parts of a duration have the same sign.
        seconds, rest = seconds + 1, rest - 1_000_000
    message.seconds, message.nanos = seconds, rest * 1000


def _put_json(message: Any, value: Any, path: str) -> None:
    try:
        json_format.Parse(value, message, descriptor_pool=message.DESCRIPTOR.file.pool)
    except (json_format.ParseError, TypeError) as error:
        raise BadValue(f"does not fit: {path} must be JSON text: {error}") from None
