"""Guards: compiled code that checks the array counts of a message before kio's native reader runs.

The native reader allocates memory by the count of an array, and the process aborts if that fails. A guard
refuses a count that does not fit into the bytes left, and null for an array that cannot be null. It reads no
values and stops at the last relevant count, so it costs a fraction of the decoding.

With a limit on rows, the guard also adds up the counts and refuses a message with more rows.

A guard must find each count at the position where the native reader reads it. The native reader ignores the
declared size of a known tagged field. So a guard does not follow tagged sections: a non-empty one with counts
in it or after it raises NeedsTolerantReader. Reading past the end raises IndexError or struct.error. In both
cases the caller uses the tolerant reader.
"""

from collections.abc import Callable
from functools import cache
from struct import Struct
from typing import Any, Final, TypeAlias

from ottla.wire.layout import (
    FIXED_FORMATS,
    FIXED_SIZES,
    EntityClass,
    FieldLayout,
    body_fields,
    item_size_min,
    layout,
    tagged_fields,
)

Buffer: TypeAlias = bytes | memoryview
Reader: TypeAlias = Callable[[Buffer, int], tuple[Any, int]]

ARRAY_ITEMS_MAX: Final = 1_000_000


class MalformedMessage(ValueError):
    """The bytes are not a message of this class."""


class TooManyRows(MalformedMessage):
    """The message has more items, in all arrays together, than allowed."""


class NeedsTolerantReader(Exception):
    """The guard cannot check this message; it may be valid."""


@cache
def has_arrays(cls: EntityClass) -> bool:
    """Whether messages of this class contain a count."""
    return any(_has_count(field) for field in layout(cls))


def guarded(cls: EntityClass, native: Reader, rows_max: int | None = None) -> Reader:
    """A reader that checks the counts and then calls the native reader of the same class."""
    if not has_arrays(cls):
        return native
    source = _Source(rows_max)
    source.walk_struct(cls, tail="True")
    return source.compile(f"read_{cls.__name__}_v{cls.__version__}", native)


def read_uvarint(buffer: Buffer, offset: int) -> tuple[int, int]:
    """The unsigned varint at `offset`, and the offset after it."""
    value = 0
    for shift in range(0, 35, 7):
        byte = buffer[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
    raise MalformedMessage("a varint of more than 5 bytes")


def _has_count(field: FieldLayout) -> bool:
    return field.is_array or (field.struct is not None and has_arrays(field.struct))


def _after_long_bytes(buffer: Buffer, offset: int) -> int:
    """The offset after a compact byte string whose length takes more than one byte."""
    length, offset = read_uvarint(buffer, offset)
    return offset + max(length - 1, 0)


def _compact_count(buffer: Buffer, offset: int, field: FieldLayout, item_bytes_min: int) -> tuple[int, int]:
    """A compact array's count plus one, and the offset after it."""
    count, offset = read_uvarint(buffer, offset)
    _check_count(count - 1, len(buffer) - offset, field, item_bytes_min)
    return count, offset


def _legacy_count(buffer: Buffer, offset: int, field: FieldLayout, item_bytes_min: int) -> int:
    count: int = _UNPACK_INT32(buffer, offset)[0]
    _check_count(count, len(buffer) - offset - 4, field, item_bytes_min)
    return count


def _check_count(count: int, bytes_left: int, field: FieldLayout, item_bytes_min: int) -> None:
    if count > ARRAY_ITEMS_MAX or count * item_bytes_min > bytes_left:
        raise MalformedMessage(f"{field.name} claims {count} items in {bytes_left} bytes")
    if count < 0 and not field.is_nullable:
        raise MalformedMessage(f"{field.name} is null")


def _give_up() -> None:
    raise NeedsTolerantReader


def too_many_rows(rows: int, rows_max: int) -> TooManyRows:
    return TooManyRows(f"the request has {rows} rows or more, at most {rows_max} are allowed")


def _refuse_rows(rows: int, rows_max: int) -> None:
    raise too_many_rows(rows, rows_max)


_UNPACK_INT32: Final = Struct(">i").unpack_from


class _Source:
    """Generates the body of one guarded reader.

    In it, `b` is the buffer and `o` the offset, which lags `_skip` constant bytes behind. Counts below 128
    (compact) or 256 (legacy) are read inline and not checked: memory for so few items is harmless.
    """

    def __init__(self, rows_max: int | None = None) -> None:
        self._rows_max = rows_max
        self._lines: list[str] = []
        self._indent = 1
        self._skip = 0
        self._globals: dict[str, Any] = {
            "after_long_bytes": _after_long_bytes,
            "compact_count": _compact_count,
            "legacy_count": _legacy_count,
            "give_up": _give_up,
            "int32": _UNPACK_INT32,
            "refuse_rows": _refuse_rows,
        }

    def compile(self, name: str, native: Reader) -> Reader:
        begin = "    o = start" if self._rows_max is None else "    o, rows = start, 0"
        lines = [f"def {name}(b, start):", begin, *self._lines, "    return native(b, start)"]
        namespace = self._globals | {"native": native}
        exec("\n".join(lines), namespace)
        reader: Reader = namespace[name]
        return reader

    def walk_struct(self, cls: EntityClass, tail: str) -> None:
        """`tail` is the condition under which nothing after this struct is relevant (empty: always relevant)."""
        body = body_fields(cls)
        counted = [index for index, field in enumerate(body) if _has_count(field)]
        if any(_has_count(field) for field in tagged_fields(cls)):
            counted.append(len(body))
        last = counted[-1] if counted else -1
        for index, field in enumerate(body):
            self._walk_field(field, tail if index == last else "")
            if index == last and self._end_if(tail):
                return
        if cls.__flexible__:
            self._line(f"if b[{self._here()}]: give_up()")
            self._skip += 1

    def _walk_field(self, field: FieldLayout, tail: str) -> None:
        if field.is_array:
            self._walk_array(field, tail)
        elif field.fixed_format is not None:
            self._skip += FIXED_SIZES[field.fixed_format]
        elif field.struct is None:
            self._walk_bytes(field)
        elif not field.is_nullable:
            self.walk_struct(field.struct, tail)
        else:
            self._skip += 1
            self._move()
            self._line("if b[o - 1] != 255:")
            self._walk_block(field.struct, tail)

    def _walk_bytes(self, field: FieldLayout) -> None:
        here = self._here()
        if field.is_flexible:
            self._line(f"n = b[{here}]")
            self._line(f"o = {here} + (n or 1) if n < 128 else after_long_bytes(b, {here})")
            self._skip = 0
            return
        if field.kind == "string":
            self._line(f"n = b[{here}] << 8 | b[{self._here(1)}]")
            self._line("if n < 32768: o += n")
            self._skip += 2
        else:
            self._line(f"n = int32(b, {here})[0]")
            self._line("if n > 0: o += n")
            self._skip += 4

    def _walk_array(self, field: FieldLayout, tail: str) -> None:
        count = self._read_count(field)
        if not (field.struct is not None and has_arrays(field.struct)) and self._end_if(tail):
            return
        item_bytes = _fixed_item_bytes(field)
        if item_bytes is not None:
            self._move()
            if field.struct is not None and field.struct.__flexible__:
                # Skip all items at once, unless one of them has tagged fields.
                self._line(
                    f"if {count} > 0 and any(b[o + {item_bytes - 1}:o + {count} * {item_bytes}:{item_bytes}]): give_up()"
                )
            self._line(f"if {count} > 0: o += {count} * {item_bytes}")
            return
        self._move()
        self._line(f"while {count} > 0:")
        self._indent += 1
        self._line(f"{count} -= 1")
        self._indent -= 1
        item_tail = f"{count} == 0" if tail == "True" else f"{tail} and {count} == 0" if tail else ""
        if field.struct is not None:
            self._walk_block(field.struct, item_tail)
        else:
            self._indent += 1
            self._walk_bytes(field)
            self._move()
            self._indent -= 1

    def _read_count(self, field: FieldLayout) -> str:
        """Reads a count into a new variable (negative for null) and moves past it."""
        count, constant = f"n{len(self._lines)}", f"field{len(self._lines)}"
        self._globals[constant] = field
        arguments = f"{constant}, {item_size_min(field)}"
        if field.is_flexible:
            self._skip += 1
            self._move()
            self._line(f"{count} = b[o - 1]")
            checked = f"{count} > 127" if field.is_nullable else f"not 0 < {count} < 128"
            self._line(f"if {checked}: {count}, o = compact_count(b, o - 1, {arguments})")
            self._line(f"{count} -= 1")
        else:
            self._skip += 4
            self._move()
            self._line(f"if b[o - 4] or b[o - 3] or b[o - 2]: {count} = legacy_count(b, o - 4, {arguments})")
            self._line(f"else: {count} = b[o - 1]")
        if self._rows_max is not None:
            self._line(f"if {count} > 0:")
            self._line(f"    rows += {count}")
            self._line(f"    if rows > {self._rows_max}: refuse_rows(rows, {self._rows_max})")
        return count

    def _walk_block(self, struct: EntityClass, tail: str) -> None:
        self._indent += 1
        self.walk_struct(struct, tail)
        self._move()
        self._indent -= 1

    def _end_if(self, tail: str) -> bool:
        """Calls the native reader if nothing that follows is relevant; returns whether that is always so."""
        if tail:
            self._line(f"if {tail}: return native(b, start)" if tail != "True" else "return native(b, start)")
        if tail == "True":
            self._skip = 0
        return tail == "True"

    def _here(self, ahead: int = 0) -> str:
        return f"o + {self._skip + ahead}" if self._skip + ahead else "o"

    def _move(self) -> None:
        if self._skip:
            self._line(f"o += {self._skip}")
            self._skip = 0

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._indent + text)


def _fixed_item_bytes(field: FieldLayout) -> int | None:
    """The size of each item of an array, with an empty tagged section, if it is constant."""
    if field.struct is None:
        fixed = FIXED_FORMATS.get(field.kind)
        return None if fixed is None else FIXED_SIZES[fixed]
    formats = [item.fixed_format for item in body_fields(field.struct)]
    if None in formats:
        return None
    return sum(FIXED_SIZES[str(fixed)] for fixed in formats) + (1 if field.struct.__flexible__ else 0)
