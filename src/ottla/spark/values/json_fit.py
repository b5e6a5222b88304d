"""Converts JSON values to column values of a schema, and rows to JSON, by nested functions."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ottla.spark.values.errors import BadValue, at, pairs, wrong
from ottla.spark.values.json_leaves import Fit, boolean, number, parsed, text_of, unicode_text
from ottla.spark.values.numbers import whole_of

if TYPE_CHECKING:
    from ottla.spark.values.json_schema import Node

_number = number()


def fitting(node: Node) -> Fit:
    """Convert from `json.loads` to the column type of this node. Null is always allowed."""
    inner = _reading(node)
    return lambda value, path: None if value is None else inner(value, path)


def _reading(node: Node) -> Fit:
    match node.kind:
        case "object":
            fields = [(name, fitting(each)) for name, each in node.fields.items()]

            def of_object(value: Any, path: str) -> Any:
                if not isinstance(value, dict):
                    raise wrong(path, "an object", value)
                return {name: fit(value.get(name), at(path, name)) for name, fit in fields}

            return of_object
        case "map":
            assert node.inner is not None
            values = fitting(node.inner)

            def of_map(value: Any, path: str) -> Any:
                if not isinstance(value, dict):
                    raise wrong(path, "an object", value)
                return {key: values(each, f"{path}{{{key}}}") for key, each in value.items()}

            return of_map
        case "array":
            assert node.inner is not None
            items = fitting(node.inner)

            def of_array(value: Any, path: str) -> Any:
                if not isinstance(value, list):
                    raise wrong(path, "an array", value)
                return [items(each, f"{path}[{place}]") for place, each in enumerate(value)]

            return of_array
        case "string":
            return _text
        case "integer":
            return _integer
        case "number":
            return _number
        case "boolean":
            return boolean
        case _:
            return lambda value, path: unicode_text(text_of(value), path)


def _text(value: Any, path: str) -> Any:
    if not isinstance(value, str):
        raise wrong(path, "a string", value)
    return unicode_text(value, path)


def _integer(value: Any, path: str) -> Any:
    # In JSON Schema, 1.0 is an integer.
    value = whole_of(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        raise wrong(path, "an integer of 64 bits", value)
    return value


def writing(node: Node, *, columns: bool) -> Fit:
    """Convert a row for `json.dumps`.

    A null that the schema forbids is omitted, unless the field is required.
    """

    def of(node: Node) -> Fit:
        inner = _writing(node)

        def one(value: Any, path: str) -> Any:
            if value is None:
                if node.nullable:
                    return None
                raise wrong(path, f"of type {node.kind}", value)
            return inner(value, path)

        return one

    def _writing(node: Node) -> Fit:
        match node.kind:
            case "object":
                return _object(node, [(name, of(each), each.nullable) for name, each in node.fields.items()])
            case "map":
                assert node.inner is not None
                values = of(node.inner)
                return lambda value, path: {
                    key: values(each, f"{path}{{{key}}}") for key, each in pairs(value, path)
                }
            case "array":
                assert node.inner is not None
                items = of(node.inner)
                return lambda value, path: [
                    items(each, f"{path}[{place}]") for place, each in enumerate(_listed(value, path))
                ]
            case "string":
                return _text_of
            case "integer":
                return _integer
            case "number":
                return _number_of
            case "boolean":
                return boolean
            case _:
                return _any_of if columns else lambda value, _path: value

    return of(node)


def _number_of(value: Any, path: str) -> Any:
    """Integers and decimals keep their digits, if they are within the range of a double."""
    read = _number(value, path)
    return value if isinstance(value, (int, Decimal)) else read


def _listed(value: Any, path: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise wrong(path, "an array", value)
    return value


def _object(node: Node, fields: list[tuple[str, Fit, bool]]) -> Fit:
    names = node.fields.keys()

    def one(value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            raise wrong(path, "an object", value)
        out = {}
        for name, fit, nullable in fields:
            given = value.get(name)
            if given is not None or (nullable and name in value):
                out[name] = fit(given, at(path, name))
            elif name in node.required:
                raise BadValue(f"does not fit: {at(path, name)} is missing, and the schema requires it")
        if not value.keys() <= names:
            unknown = ", ".join(sorted(map(str, value.keys() - names)))
            raise BadValue(f"does not fit: {path or 'the schema'} has no field {unknown}")
        return out

    return one


def _text_of(value: Any, path: str) -> Any:
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, (Decimal, timedelta)):
        return str(value)
    return _text(value, path)


def _any_of(value: Any, path: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return parsed(value)
    except (ValueError, ArithmeticError):
        raise wrong(path, "JSON text", value) from None
