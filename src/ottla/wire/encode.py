"""Encoders compiled from kio's dataclasses: one function per class and version, from a dict to the bytes of
the body.

kio's own writer interprets the schema for every field of every message (15–22 µs per produce response). Here
the schema is interpreted once and becomes straight-line Python: adjacent fixed-size fields share one
`struct.pack`, small varints come from a table, arrays are inlined loops. The dict can have the fields of all
versions; each version takes its fields, with defaults for missing ones. Values are plain:

- int for every number, error code, duration and timestamp (milliseconds; None or -1 is the null timestamp),
- 16 bytes for a uuid (None is the zero id),
- str, bytes-like, sequences, dicts for structs, and None where the schema allows null.

A value that does not fit the schema (too large, null where null is not allowed) raises; nothing is truncated
silently.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from struct import Struct
from typing import Any, Final
from uuid import UUID

from ottla.wire.layout import EPOCH, FIXED_FORMATS, EntityClass, FieldLayout, body_fields, tagged_fields
from ottla.wire.schema import request_class, response_class

Encoder = Callable[[Mapping[str, Any]], bytes]


@cache
def response_encoder(api_key: int, version: int) -> Encoder:
    """Encodes a response body, without header and size."""
    return entity_encoder(response_class(api_key, version))


@cache
def request_encoder(api_key: int, version: int) -> Encoder:
    """Encodes a request body, without header and size."""
    return entity_encoder(request_class(api_key, version))


@cache
def entity_encoder(cls: EntityClass, *, takes_encoded: bool = False) -> Encoder:
    """Compiles the encoder of a kio class: a message, a nested struct or a header.

    With `takes_encoded` an array of structs can also be `EncodedRows`.
    """
    source = _Source(takes_encoded=takes_encoded)
    source.write_struct(cls, "d")
    source.flush()
    return source.compile(f"encode_{cls.__name__}_v{cls.__version__}")


@cache
def parts_encoder(cls: EntityClass) -> Callable[[Mapping[str, Any]], list[bytes]]:
    """As `entity_encoder` with `takes_encoded`, but the parts are not joined: that saves a copy of a large
    response.
    """
    source = _Source(takes_encoded=True)
    source.write_struct(cls, "d")
    source.flush()
    return source.compile_parts(f"encode_parts_{cls.__name__}_v{cls.__version__}")


class EncodedRows:
    """The items of an array of structs, already encoded."""

    __slots__ = ("count", "parts", "size")

    def __init__(self) -> None:
        self.count = 0
        self.parts: list[bytes] = []
        self.size = 0

    def add(self, data: bytes, count: int = 1) -> None:
        self.count += count
        self.parts.append(data)
        self.size += len(data)

    def __len__(self) -> int:
        return self.count


def uvarint(value: int) -> bytes:
    """An unsigned varint: seven bits per byte, least significant first, the high bit set on all but the last."""
    return _VARINTS[value] if 0 <= value < _VARINTS_KNOWN else _uvarint(value)


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Lengths and counts are almost always small; a lookup is four times as fast as encoding.
_VARINTS_KNOWN: Final = 1024
_VARINTS: Final = tuple(map(_uvarint, range(_VARINTS_KNOWN)))
# Arrays of up to this many numbers are packed by a cached struct, count included.
_PACKED_ITEMS_MAX: Final = 32
_UUID_ZERO: Final = bytes(16)


@cache
def _array_packers(prefix: str, item: str) -> tuple[Callable[..., bytes], ...]:
    return tuple(Struct(f">{prefix}{count}{item}").pack for count in range(_PACKED_ITEMS_MAX))


def _pack_items(item: str, values: Any) -> bytes:
    return Struct(f">{len(values)}{item}").pack(*values)


class _Source:
    """Generates the body of one encoder. Fixed fields are collected in `_formats` until a variable field
    follows.
    """

    def __init__(self, *, takes_encoded: bool = False) -> None:
        self._takes_encoded = takes_encoded
        self._lines: list[str] = []
        self._appended: list[str] = []
        self._indent = 1
        self._names = 0
        self._formats: list[str] = []
        self._arguments: list[str] = []
        self._globals: dict[str, Any] = {
            "V": _VARINTS,
            "uvarint": uvarint,
            "pack_items": _pack_items,
            "EncodedRows": EncodedRows,
        }

    def write_struct(self, cls: EntityClass, record: str) -> None:
        for field in body_fields(cls):
            self._write_field(field, record)
        if cls.__flexible__:
            tagged = tagged_fields(cls)
            if tagged:
                self._write_tagged(tagged, record)
            else:
                self._formats.append("x")

    def flush(self) -> None:
        """Emits the collected fixed fields as one piece."""
        if not self._formats:
            return
        if not self._arguments:
            self._append(repr(bytes(len(self._formats))))
        else:
            packer = self._constant(Struct(">" + "".join(self._formats)).pack, "pack")
            self._append(f"{packer}({', '.join(self._arguments)})")
        self._formats, self._arguments = [], []

    def compile(self, name: str) -> Encoder:
        if len(self._appended) == 1 and len(self._lines) == 1:
            lines = [f"    return {self._appended[0]}"]
        elif not self._lines:
            lines = ["    return b''"]
        else:
            lines = ["    out = []", *self._lines, "    return b''.join(out)"]
        exec("\n".join([f"def {name}(d):", *lines]), self._globals)
        encoder: Encoder = self._globals[name]
        return encoder

    def compile_parts(self, name: str) -> Callable[[Mapping[str, Any]], list[bytes]]:
        exec("\n".join([f"def {name}(d):", "    out = []", *self._lines, "    return out"]), self._globals)
        encoder: Callable[[Mapping[str, Any]], list[bytes]] = self._globals[name]
        return encoder

    def _write_field(self, field: FieldLayout, record: str) -> None:
        default = _plain(field.default)
        fixed = field.fixed_format
        if fixed is not None:
            self._formats.append(fixed)
            self._arguments.append(_fixed_argument(field, self._value(field, record, default)))
        elif field.is_array:
            self._write_array(field, record, default)
        elif field.struct is not None:
            self._write_nested(field, record)
        else:
            self._write_bytes(field, record, default)

    def _write_bytes(self, field: FieldLayout, record: str, default: str | bytes | None) -> None:
        value = self._name("v")
        is_text = field.kind == "string"
        found = self._value(field, record, default)
        if is_text and not field.is_nullable:
            # A tagged string with default null comes here too; if it is written, it is not null.
            found = f"{self._value(field, record, default or '')}.encode()"
        self._line(f"{value} = {found}")
        if is_text and field.is_nullable:
            self._line(f"if {value} is not None: {value} = {value}.encode()")
        self._write_length(field, value, "h" if is_text else "i")
        self._append(value, guard=f"if {value} is not None: " if field.is_nullable else "")

    def _write_array(self, field: FieldLayout, record: str, default: tuple[Any, ...] | None) -> None:
        value = self._name("v")
        self._line(f"{value} = {self._value(field, record, default)}")
        item_format = FIXED_FORMATS.get(field.kind)
        if item_format is not None and field.kind != "uuid":
            self._write_numbers(field, value, item_format)
            return
        self._write_length(field, value, "i")
        if field.kind == "uuid":
            zero = self._constant(_UUID_ZERO, "zero")
            self._line(f"if {value}: out.extend([item or {zero} for item in {value}])")
            return
        item = self._name("d")
        if field.struct is not None and self._takes_encoded:
            self._line(f"if type({value}) is EncodedRows:")
            self._line(f"    out += {value}.parts; {value} = ()")
        self._line(f"for {item} in {value}{' or ()' if field.is_nullable else ''}:")
        self._indent += 1
        if field.struct is not None:
            self.write_struct(field.struct, item)
        elif field.kind == "string":
            self._line(f"{item} = {item}.encode()")
            self._write_length(field._replace(is_nullable=False), item, "h")
            self._append(item)
        else:
            self._write_length(field._replace(is_nullable=False), item, "i")
            self._append(item)
        self.flush()
        self._indent -= 1

    def _write_numbers(self, field: FieldLayout, value: str, item_format: str) -> None:
        """An array of numbers: count and items in one piece when it is short."""
        self.flush()
        count = self._name("n")
        prefix, written = ("B", f"{count} + 1") if field.is_flexible else ("i", count)
        packers = self._constant(_array_packers(prefix, item_format), "packers")
        null = repr(b"\0" if field.is_flexible else b"\xff\xff\xff\xff")
        if field.is_nullable:
            self._line(f"if {value} is None:")
            self._append(null, guard="    ")
            self._line("else:")
            self._indent += 1
        self._line(f"{count} = len({value})")
        self._line(f"if {count} < {_PACKED_ITEMS_MAX}:")
        self._append(f"{packers}[{count}]({written}, *{value})", guard="    ")
        self._line("else:")
        length = f"uvarint({written})" if field.is_flexible else f"{count}.to_bytes(4, 'big')"
        self._append(f"{length} + pack_items({item_format!r}, {value})", guard="    ")
        if field.is_nullable:
            self._indent -= 1

    def _write_nested(self, field: FieldLayout, record: str) -> None:
        """A single struct; a nullable one starts with a marker byte (KIP-893)."""
        assert field.struct is not None
        nested = self._constant(entity_encoder(field.struct, takes_encoded=self._takes_encoded), "encode")
        if not field.is_nullable:
            self.flush()
            self._append(f"{nested}({self._value(field, record, {})})")
            return
        value = self._name("v")
        self._line(f"{value} = {self._value(field, record, None)}")
        self._formats.append("b")
        self._arguments.append(f"-1 if {value} is None else 1")
        self.flush()
        self._append(f"{nested}({value})", guard=f"if {value} is not None: ")

    def _write_tagged(self, tagged: list[FieldLayout], record: str) -> None:
        """The tagged section: only fields that differ from their default are written."""
        self.flush()
        count, section = self._name("n"), self._name("t")
        self._line(f"{count} = 0; {section} = b''")
        for field in tagged:
            # An encoder of one field; comparing its bytes with those of the default also compares structs by
            # value.
            alone = _Source()
            alone._write_field(field._replace(is_nullable=False), "d")
            alone.flush()
            encode = alone.compile(f"encode_tagged_{field.name}")
            encoder = self._constant(encode, "encode")
            is_null_default = field.default is None and field.fixed_format is None
            default = self._constant(None if is_null_default else encode({}), "default")
            self._line(f"if {record}.get({field.name!r}) is not None:")
            self._line(f"    b = {encoder}({record})")
            self._line(f"    if b != {default}:")
            self._line(
                f"        {count} += 1; {section} += {uvarint(field.tag or 0)!r} + uvarint(len(b)) + b"
            )
        self._append(f"V[{count}] + {section} if {count} else b'\\0'")

    def _write_length(self, field: FieldLayout, value: str, legacy_format: str) -> None:
        """The length of a byte string or array. A legacy length is packed with the fixed fields before it."""
        if not field.is_flexible:
            self._formats.append(legacy_format)
            self._arguments.append(
                f"-1 if {value} is None else len({value})" if field.is_nullable else f"len({value})"
            )
            self.flush()
            return
        self.flush()
        length = self._name("n")
        plus_one = f"0 if {value} is None else len({value}) + 1" if field.is_nullable else f"len({value}) + 1"
        self._line(f"{length} = {plus_one}")
        self._append(f"V[{length}] if {length} < {len(_VARINTS)} else uvarint({length})")

    @staticmethod
    def _value(field: FieldLayout, record: str, default: Any) -> str:
        return f"{record}.get({field.name!r}, {default!r})"

    def _append(self, expression: str, guard: str = "") -> None:
        self._appended.append(expression)
        self._line(f"{guard}out.append({expression})")

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._indent + text)

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def _constant(self, value: Any, prefix: str) -> str:
        name = f"{prefix}_{len(self._globals)}"
        self._globals[name] = value
        return name


def _fixed_argument(field: FieldLayout, value: str) -> str:
    if field.kind == "uuid":
        return f"{value} or {_UUID_ZERO!r}"
    if field.kind == "datetime_i64":
        return f"-1 if (t := {value}) is None else t"
    return value


def _plain(value: Any) -> Any:
    """A default of kio in the form that encoders take."""
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime):
        return round((value - EPOCH).total_seconds() * 1000)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, UUID):
        return value.bytes
    return value
