"""Decoding: kio's native reader behind a guard, and a tolerant reader for messages that the native one cannot
read.

The native reader is fast, but:

- it allocates memory by an array's count before it looks at the bytes, so a request of 25 bytes can abort the
  process,
- it accepts null for arrays that cannot be null,
- it fails on unknown tagged fields, which must be ignored.

So a compiled guard (`wire/guard.py`) checks the counts first. When the native reader fails, the tolerant
reader reads the message again, field by field. It skips unknown tags, reads unknown error codes as
UNKNOWN_SERVER_ERROR, as Kafka's clients do, and checks every count against the bytes left.

`decode_*` and `read_tolerant` return an entity or raise MalformedMessage, nothing else. Bytes after the
message are ignored. The native reader accepts bytes or a read-only memoryview.
"""

from datetime import timedelta
from functools import cache
from struct import Struct, error
from typing import Any, Final
from uuid import UUID

from ottla.model.limits import ROWS_WITH_UNKNOWN_TAGS_MAX
from ottla.wire.guard import (
    ARRAY_ITEMS_MAX,
    Buffer,
    MalformedMessage,
    Reader,
    TooManyRows,
    guarded,
    read_uvarint,
    too_many_rows,
)
from ottla.wire.layout import (
    EPOCH,
    FIXED_FORMATS,
    EntityClass,
    FieldLayout,
    body_fields,
    item_size_min,
    tagged_fields,
)
from ottla.wire.schema import request_class, response_class

__all__ = [
    "MalformedMessage",
    "TooManyRows",
    "decode_request",
    "decode_response",
    "entity_reader",
    "read_tolerant",
    "request_reader",
    "response_reader",
]

_TAGGED_FIELDS_MAX: Final = 10_000
#: The maximum of Python's timedelta.
_LONGEST_MS: Final = timedelta.max // timedelta(milliseconds=1)


def decode_request(
    api_key: int, version: int, buffer: Buffer, offset: int, rows_max: int | None = None
) -> Any:
    """The request whose body starts at `offset`. The version must be in `version_range`.

    With `rows_max`, a request with more rows is refused before it is decoded (TooManyRows).
    """
    try:
        return request_reader(api_key, version, rows_max)(buffer, offset)[0]
    except MalformedMessage:
        raise
    except Exception:
        tolerated = None if rows_max is None else min(rows_max, ROWS_WITH_UNKNOWN_TAGS_MAX)
        return read_tolerant(request_class(api_key, version), buffer, offset, tolerated)[0]


def decode_response(api_key: int, version: int, buffer: Buffer, offset: int) -> Any:
    """The response whose body starts at `offset`."""
    try:
        return response_reader(api_key, version)(buffer, offset)[0]
    except MalformedMessage:
        raise
    except Exception:
        return read_tolerant(response_class(api_key, version), buffer, offset)[0]


@cache
def request_reader(api_key: int, version: int, rows_max: int | None = None) -> Reader:
    """The fast path: (buffer, offset) to (entity, size). Raises any exception if the message needs
    `read_tolerant`.

    With `rows_max` it counts the rows first and raises TooManyRows.
    """
    return entity_reader(request_class(api_key, version), rows_max)


@cache
def response_reader(api_key: int, version: int) -> Reader:
    """As `request_reader`, for responses."""
    return entity_reader(response_class(api_key, version))


@cache
def entity_reader(cls: EntityClass, rows_max: int | None = None) -> Reader:
    """kio's native reader of a class, guarded when the class has arrays."""
    # Imported at the first use: kio.serial is a large import that a start does not need.
    from kio.serial import entity_reader as native_entity_reader

    native: Any = native_entity_reader(cls)
    return guarded(cls, native, rows_max)


def read_tolerant(
    cls: EntityClass, buffer: Buffer, offset: int, rows_max: int | None = None
) -> tuple[Any, int]:
    """Read an instance of `cls` at `offset`; returns it and its size. Slow; skips unknown tagged fields.

    `rows_max` limits the items of all arrays and the tagged fields together.
    """
    cursor = _Cursor(memoryview(buffer), offset, None if rows_max is None else _Rows(rows_max))
    try:
        entity = _read_struct(cursor, cls)
    except (ValueError, OverflowError, error) as failure:
        if isinstance(failure, MalformedMessage):
            raise
        raise MalformedMessage(f"{cls.__name__} v{cls.__version__}: {failure}") from None
    return entity, cursor.position - offset


class _Rows:
    """The number of items and tagged fields read so far."""

    __slots__ = ("_count", "_max")

    def __init__(self, rows_max: int) -> None:
        self._count = 0
        self._max = rows_max

    def add(self, count: int) -> None:
        self._count += count
        if self._count > self._max:
            raise too_many_rows(self._count, self._max)


class _Cursor:
    """A position in a buffer that cannot move past its end."""

    __slots__ = ("buffer", "position", "rows")

    def __init__(self, buffer: memoryview, position: int, rows: _Rows | None) -> None:
        self.buffer = buffer
        self.position = position
        #: The limit of rows for the whole message, if there is one.
        self.rows = rows

    def count_rows(self, count: int) -> None:
        if self.rows is not None:
            self.rows.add(count)

    @property
    def bytes_left(self) -> int:
        return len(self.buffer) - self.position

    def take(self, size: int) -> memoryview:
        if not 0 <= size <= self.bytes_left:
            raise MalformedMessage(f"{size} bytes wanted at {self.position}, {self.bytes_left} left")
        taken = self.buffer[self.position : self.position + size]
        self.position += size
        return taken

    def uvarint(self) -> int:
        try:
            value, self.position = read_uvarint(self.buffer, self.position)
        except IndexError:
            raise MalformedMessage(f"the message ends inside a varint at {self.position}") from None
        return value

    def length(self, *, is_flexible: bool, legacy: Struct) -> int:
        """A length or count; negative for null."""
        if is_flexible:
            return self.uvarint() - 1
        length: int = legacy.unpack(self.take(legacy.size))[0]
        return length


_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")


def _read_struct(cursor: _Cursor, cls: EntityClass) -> Any:
    values = {field.name: _read_field(cursor, field) for field in body_fields(cls)}
    if cls.__flexible__:
        values.update(_read_tagged(cursor, cls))
    return cls(**values)


def _read_tagged(cursor: _Cursor, cls: EntityClass) -> dict[str, Any]:
    known = {field.tag: field for field in tagged_fields(cls)}
    values = {field.name: field.default for field in known.values()}
    count = cursor.uvarint()
    if count > _TAGGED_FIELDS_MAX:
        raise MalformedMessage(f"{count} tagged fields, at most {_TAGGED_FIELDS_MAX} are read")
    cursor.count_rows(count)
    for _ in range(count):
        tag = cursor.uvarint()
        content = _Cursor(cursor.take(cursor.uvarint()), 0, cursor.rows)
        field = known.get(tag)
        if field is None:
            continue
        # A tagged field is null if it is absent, so its content is never in the nullable form.
        values[field.name] = _read_field(content, field._replace(is_nullable=False))
        if content.bytes_left:
            raise MalformedMessage(f"{content.bytes_left} bytes too many in tagged field {field.name}")
    return values


def _read_field(cursor: _Cursor, field: FieldLayout) -> Any:
    if not field.is_array:
        return _read_value(cursor, field)
    count = cursor.length(is_flexible=field.is_flexible, legacy=_INT32)
    if count < 0:
        return _null(field)
    if count > ARRAY_ITEMS_MAX or count * item_size_min(field) > cursor.bytes_left:
        raise MalformedMessage(f"{field.name} claims {count} items in {cursor.bytes_left} bytes")
    cursor.count_rows(count)
    item = field._replace(is_array=False, is_nullable=False)
    return tuple([_read_value(cursor, item) for _ in range(count)])


def _read_value(cursor: _Cursor, field: FieldLayout) -> Any:
    if field.struct is not None:
        if field.is_nullable and cursor.take(1)[0] == 0xFF:
            return None
        return _read_struct(cursor, field.struct)
    fixed = FIXED_FORMATS.get(field.kind)
    if fixed is not None:
        unpacker = Struct(">" + fixed)
        return _converted(field, unpacker.unpack(cursor.take(unpacker.size))[0])
    is_text = field.kind == "string"
    length = cursor.length(is_flexible=field.is_flexible, legacy=_INT16 if is_text else _INT32)
    if length < 0:
        return _null(field)
    content = bytes(cursor.take(length))
    return content.decode() if is_text else content


def _null(field: FieldLayout) -> None:
    if not field.is_nullable:
        raise MalformedMessage(f"{field.name} is null")


def _converted(field: FieldLayout, value: Any) -> Any:
    """A fixed-size value in kio's Python type."""
    if field.kind == "uuid":
        return UUID(bytes=value) if any(value) else None
    if field.kind.startswith("timedelta"):
        # A client sends the maximum for "no limit".
        return timedelta(milliseconds=min(max(value, -_LONGEST_MS), _LONGEST_MS))
    if field.kind == "datetime_i64":
        return None if field.is_nullable and value == -1 else EPOCH + timedelta(milliseconds=value)
    if field.kind == "error_code":
        from kio.schema.errors import ErrorCode

        try:
            return ErrorCode(value)
        except ValueError:
            return ErrorCode.unknown_server_error
    return value
