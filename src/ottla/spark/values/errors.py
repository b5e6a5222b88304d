"""Errors of values, in three kinds.

- `BadValue`: one row is bad. The row can be skipped.
- `SchemaError`: a schema cannot be used. If it belongs to one row (a record of another version), the reader
  raises `BadValue` instead.
- `RegistryError`: the registry cannot be reached or refuses the request. Every row would fail, so it ends the
  task in every mode. Spark may retry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class BadValue(ValueError):
    """A value cannot be decoded or encoded. The message can always be encoded as UTF-8."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason.encode(errors="replace").decode())


class SchemaError(ValueError):
    """A schema cannot be used. The message names the part and what to do."""


class RegistryError(OSError):
    """The registry cannot be reached, or refuses the request."""


class UnknownSchema(RegistryError):
    """The registry has no such schema, subject or version."""


def at(path: str, name: str) -> str:
    """The path of a field in messages."""
    return f"{path}.{name}" if path else name


def wrong(path: str, wanted: str, value: object) -> BadValue:
    """The error for a value that its schema does not allow."""
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
    """The pairs of a map: a dict, or a list of pairs from Arrow."""
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, list) and all(isinstance(each, tuple) and len(each) == 2 for each in value):
        return value
    raise wrong(path, "a map", value)
