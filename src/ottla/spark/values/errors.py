"""What goes wrong with values, in three kinds that must not be mixed up.

`BadValue` is one row's fault: the row can be set aside and the next one read. `SchemaError` says that a schema is of no use here; where it
belongs to one row (a record written with a strange version) the reader turns it into a `BadValue`. `RegistryError` is the world's: the
registry is out of reach or refuses us, every row would fail, so it ends the task in every mode, and Spark may try again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class BadValue(ValueError):
    """This value cannot be decoded or encoded; the text says why. What of the value it shows can always be written down, as UTF-8."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason.encode(errors="replace").decode())


class SchemaError(ValueError):
    """This schema cannot be used; the text says what in it, and what to do."""


class RegistryError(OSError):
    """The registry cannot be asked, or refuses to answer."""


class UnknownSchema(RegistryError):
    """The registry answers that it has no such schema, subject or version."""


def at(path: str, name: str) -> str:
    """The path of a field within the field at `path`, as messages show it."""
    return f"{path}.{name}" if path else name


def wrong(path: str, wanted: str, value: object) -> BadValue:
    """What to raise where a value is not what its schema wants."""
    try:
        shown = repr(value)
    except ValueError:
        shown = "of too many digits"
    got = (
        "null"
        if value is None
        else f"{type(value).__name__} {shown if len(shown) < 60 else shown[:56] + '…'}"
    )
    return BadValue(f"does not fit: {path or 'the value'} must be {wanted}, not {got}")


def pairs(value: object, path: str) -> Iterable[tuple[Any, Any]]:
    """The pairs of a map, which is a dict, or a list of pairs as Arrow gives it."""
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, list) and all(isinstance(each, tuple) and len(each) == 2 for each in value):
        return value
    raise wrong(path, "a map", value)
