"""Codec for tables of fields: the records in internal topics of coordinators, which kio does not have.

A struct is a list of fields in the order in which they are written. A version can lack fields, and can be
flexible (KIP-482): then lengths are unsigned varints of length + 1, and the struct ends with tagged fields.
Values are plain dicts by field name. A field that a version lacks has its default. Invalid bytes raise
Malformed and nothing else.

    int8 int16 int32 int64   big-endian
    uuid                     16 bytes
    string                   int16 length | UTF-8      (flexible: varint length + 1)
    bytes                    int32 length | bytes      (flexible: varint length + 1)
    ?string, ?bytes          length -1 is null
    [kind]                   int32 count | items       (flexible: varint count + 1)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from ottla.model.steps import Steps
from ottla.wire.encode import uvarint
from ottla.wire.guard import MalformedMessage, read_uvarint

NEVER: Final = 1 << 15


class Malformed(ValueError):
    """The bytes are not a record of this layout."""


class Struct(NamedTuple):
    fields: tuple[Field, ...]
    #: The first flexible version.
    flexible: int = NEVER


class Array(NamedTuple):
    item: Kind
    nullable: bool = False


Kind: TypeAlias = str | Struct | Array


class Field(NamedTuple):
    name: str
    kind: Kind
    #: The versions that have it.
    since: int = 0
    until: int = NEVER
    default: Any = None
    #: The number of a tagged field, which is written if it differs from the default.
    tag: int = -1
    #: A struct that can be null, which a byte before it says.
    nullable: bool = False


_NUMBERS: Final = {name: struct.Struct(f">{code}") for name, code in zip(
    ("int8", "int16", "int32", "int64"), "bhiq", strict=True
)}  # fmt: skip
_ROWS_AT_ONCE: Final = 250


def write(kind: Struct, version: int, value: Mapping[str, Any]) -> bytes:
    """The bytes of a struct in one version."""
    out: list[bytes] = []
    try:
        _write_struct(out, kind, version, version >= kind.flexible, value)
    except (struct.error, UnicodeError, TypeError, KeyError) as error:
        raise Malformed(f"cannot be written: {error!r}") from error
    return b"".join(out)


def write_in_steps(kind: Struct, version: int, value: Mapping[str, Any]) -> Steps[bytes]:
    """As `write`, in steps, for arrays of very many structs."""
    out: list[bytes] = []
    flexible = version >= kind.flexible
    try:
        for field in kind.fields:
            if field.tag >= 0 or not isinstance(field.kind, Array) or not isinstance(field.kind.item, Struct):
                continue
            rows, written = value[field.name], []
            for at in range(0, len(rows), _ROWS_AT_ONCE):
                part: list[bytes] = []
                for row in rows[at : at + _ROWS_AT_ONCE]:
                    _write_struct(part, field.kind.item, version, flexible, row)
                written.append(b"".join(part))
                yield _ROWS_AT_ONCE
            length = _length(len(rows), flexible, "int32", field.kind.nullable)
            value = {**value, field.name: _Written(b"".join((length, *written)))}
        _write_struct(out, kind, version, flexible, value)
    except (struct.error, UnicodeError, TypeError, KeyError) as error:
        raise Malformed(f"cannot be written: {error!r}") from error
    return b"".join(out)


class _Written(NamedTuple):
    """An array that is encoded already."""

    data: bytes


def read(kind: Struct, version: int, data: bytes, at: int = 0, *, may_go_on: bool = False) -> dict[str, Any]:
    """The struct at a position of `data`. Bytes after it are an error unless `may_go_on`."""
    reader = _Reader(data, at)
    try:
        value = _read_struct(reader, kind, version, version >= kind.flexible)
    except (struct.error, UnicodeError, IndexError, MalformedMessage) as error:
        raise Malformed(f"cannot be read: {error!r}") from error
    if reader.at != len(data) and not may_go_on:
        raise Malformed(f"{len(data) - reader.at} bytes are left over")
    return value


def _write_struct(
    out: list[bytes], kind: Struct, version: int, flexible: bool, value: Mapping[str, Any]
) -> None:
    tagged: list[bytes] = []
    for field in kind.fields:
        if not field.since <= version <= field.until:
            continue
        present = value.get(field.name, field.default)
        if field.tag < 0:
            _write(out, field.kind, version, flexible, present)
        elif present != field.default:
            inner: list[bytes] = [b"\1"] if field.nullable else []
            _write(inner, field.kind, version, flexible, present)
            body = b"".join(inner)
            tagged.append(uvarint(field.tag) + uvarint(len(body)) + body)
    if flexible:
        out.append(uvarint(len(tagged)))
        out += tagged


def _write(out: list[bytes], kind: Kind, version: int, flexible: bool, value: Any) -> None:
    if isinstance(kind, Struct):
        _write_struct(out, kind, version, flexible, value)
    elif type(value) is _Written:
        out.append(value.data)
    elif isinstance(kind, Array):
        out.append(_length(None if value is None else len(value), flexible, "int32", kind.nullable))
        if kind.item == "int32":
            out.append(struct.pack(f">{len(value or ())}i", *(value or ())))
            return
        if kind.item == "string":
            for text in value or ():
                body = text.encode()
                out += (_length(len(body), flexible, "int16", False), body)
            return
        for item in value or ():
            _write(out, kind.item, version, flexible, item)
    elif kind in _NUMBERS:
        out.append(_NUMBERS[kind].pack(value))
    elif kind == "uuid":
        if len(value) != 16:
            raise Malformed(f"an id of {len(value)} bytes")
        out.append(value)
    else:
        nullable = kind[0] == "?"
        body = value.encode() if isinstance(value, str) else value
        prefix = "int16" if kind.endswith("string") else "int32"
        out.append(_length(None if body is None else len(body), flexible, prefix, nullable))
        if body:
            out.append(body)


def _length(count: int | None, flexible: bool, prefix: str, nullable: bool) -> bytes:
    if count is None and not nullable:
        raise Malformed("null where null is not allowed")
    if flexible:
        return uvarint(0 if count is None else count + 1)
    return _NUMBERS[prefix].pack(-1 if count is None else count)


class _Reader:
    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def take(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise Malformed(f"{size} bytes at {self.at} of {len(self.data)}")
        taken = self.data[self.at : end]
        self.at = end
        return bytes(taken)

    def number(self, kind: str) -> int:
        packed = _NUMBERS[kind]
        value: int = packed.unpack_from(self.data, self.at)[0]
        self.at += packed.size
        return value

    def varint(self) -> int:
        value, self.at = read_uvarint(self.data, self.at)
        return value

    def length(self, flexible: bool, prefix: str, nullable: bool) -> int:
        """-1 for null."""
        count = self.varint() - 1 if flexible else self.number(prefix)
        if count < -1 or (count == -1 and not nullable) or count > len(self.data) - self.at:
            raise Malformed(f"a length of {count}")
        return count


def _read_struct(reader: _Reader, kind: Struct, version: int, flexible: bool) -> dict[str, Any]:
    value: dict[str, Any] = {}
    tagged: dict[int, Field] = {}
    for field in kind.fields:
        there = field.since <= version <= field.until
        if there and field.tag < 0:
            value[field.name] = _read(reader, field.kind, version, flexible)
        else:
            value[field.name] = field.default
            if there:
                tagged[field.tag] = field
    if flexible:
        for _ in range(reader.varint()):
            number, size = reader.varint(), reader.varint()
            end = reader.at + size
            known = tagged.get(number)
            if known is None:
                reader.take(size)
                continue
            # Kafka also writes a null that is not the default, as 0.
            if not known.nullable or reader.number("int8") > 0:
                value[known.name] = _read(reader, known.kind, version, flexible)
            if reader.at != end:
                raise Malformed(f"tagged field {number} has another size than it says")
    return value


def _read(reader: _Reader, kind: Kind, version: int, flexible: bool) -> Any:
    if isinstance(kind, Struct):
        return _read_struct(reader, kind, version, flexible)
    if isinstance(kind, Array):
        count = reader.length(flexible, "int32", kind.nullable)
        if count < 0:
            return None
        # Arrays of these two kinds can have hundreds of thousands of items.
        if kind.item == "int32":
            return list(struct.unpack(f">{count}i", reader.take(4 * count)))
        if kind.item == "string" and not flexible:
            return _read_strings(reader, count)
        return [_read(reader, kind.item, version, flexible) for _ in range(count)]
    if kind in _NUMBERS:
        return reader.number(kind)
    if kind == "uuid":
        return reader.take(16)
    is_text = kind.endswith("string")
    count = reader.length(flexible, "int16" if is_text else "int32", kind[0] == "?")
    if count < 0:
        return None
    body = reader.take(count)
    return body.decode() if is_text else body


def _read_strings(reader: _Reader, count: int) -> list[str]:
    found: list[str] = []
    data, at, end = reader.data, reader.at, len(reader.data)
    for _ in range(count):
        start = at + 2
        at = start + (data[at] << 8 | data[at + 1])
        if at > end:
            raise Malformed(f"a string at {start} of {end}")
        found.append(str(data[start:at], "utf-8"))
    reader.at = at
    return found


def fields(*rows: Field | tuple[str, Kind]) -> tuple[Field, ...]:
    """A field that all versions have can be given as (name, kind)."""
    return tuple(row if isinstance(row, Field) else Field(*row) for row in rows)


__all__ = ["NEVER", "Array", "Field", "Kind", "Malformed", "Struct", "fields", "read", "write"]
