"""Checks Python values against an Avro schema, and converts them so that fastavro need not guess types.

`fitting(avro)` compiles a schema with decoded defaults (`avro_defaults`) into nested functions (value, path)
→ value. Records are dicts, matched by field name. A missing field gets its default, or null if that is
allowed. An unknown field is rejected, because it would be lost silently. Union values name their branch, as
fastavro's (type, value).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, Final
from uuid import UUID

from ottla.spark.values.avro_tree import Avro, branches, kind_of, logical_of
from ottla.spark.values.errors import BadValue, at, pairs, wrong
from ottla.spark.values.numbers import double_of, single_of

Fit = Callable[[Any, str], Any]

_RANGES: Final = {"int": (-(1 << 31), (1 << 31) - 1), "long": (-(1 << 63), (1 << 63) - 1)}
_LAST: Final = {"double": 1, "float": 2}


def fitting(avro: Avro) -> Fit:
    made: dict[str, Fit] = {}
    started: set[str] = set()

    def fit(node: Any) -> Fit:
        if isinstance(node, str) and node in avro.named:
            # Looked up at call time: a record may be recursive.
            name = node
            if name not in started:
                started.add(name)
                made[name] = fit(avro.named[name])

            def later(value: Any, path: str) -> Any:
                return made[name](value, path)

            return made.get(name, later)
        match kind_of(node):
            case "union":
                return _union(avro, node, [fit(each) for each in node])
            case "record":
                return _record(node, [fit(each["type"]) for each in node["fields"]])
            case "array":
                return _array(fit(node["items"]))
            case "map":
                return _map(fit(node["values"]))
            case _:
                return _LOGICAL.get(logical_of(node) or "", _PLAIN[kind_of(node)])(node)

    return fit(avro.root)


def _union(avro: Avro, node: list[Any], fits: list[Fit]) -> Fit:
    has_null = "null" in node
    choices = [(_called(avro, each), fits[node.index(each)]) for each in branches(node)]
    members = {f"member{place}": choice for place, choice in enumerate(choices)}
    # Integers fit floats, and floats fit narrower floats with fewer digits: these branches come last.
    tried = sorted(choices, key=lambda choice: _LAST.get(choice[0], 0))

    def one(value: Any, path: str) -> Any:
        if value is None:
            if has_null:
                return None
            raise wrong(path, "something", value)
        if len(choices) == 1:
            return choices[0][0], choices[0][1](value, path)
        # Spark's form of a union: a struct with one member set.
        if isinstance(value, dict) and value and value.keys() <= members.keys():
            taken = [(members[name], inner) for name, inner in value.items() if inner is not None]
            if not taken and has_null:
                return None
            if len(taken) != 1:
                raise wrong(path, f"a union with one of {', '.join(members)} set", value)
            (called, fit), inner = taken[0]
            return called, fit(inner, path)
        for called, fit in tried:
            try:
                return called, fit(value, path)
            except BadValue:
                continue
        raise wrong(path, f"one of {', '.join(called for called, _ in choices)}", value)

    return one


def _called(avro: Avro, branch: Any) -> str:
    node = avro.resolve(branch)
    return str(node["name"]) if isinstance(node, dict) and "name" in node else kind_of(node)


def _record(node: Any, fits: list[Fit]) -> Fit:
    fields = [
        (each["name"], fit, each.get("default", _missing(each["type"])))
        for each, fit in zip(node["fields"], fits, strict=True)
    ]
    names = frozenset(name for name, *_ in fields)

    def one(value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            raise wrong(path, f"a record {node['name']}", value)
        out = {}
        for name, fit, default in fields:
            given = value.get(name, default)
            if given is _NO_DEFAULT:
                raise BadValue(f"does not fit: {at(path, name)} is missing, and has no default in the schema")
            out[name] = fit(given, at(path, name))
        if not value.keys() <= names:
            unknown = ", ".join(sorted(map(str, value.keys() - names)))
            raise BadValue(f"does not fit: {path or 'the schema'} has no field {unknown}")
        return out

    return one


_NO_DEFAULT: Final = object()


def _missing(type_: Any) -> Any:
    """The value of a missing field without a default: null, if that is allowed."""
    return None if kind_of(type_) == "union" and "null" in type_ else _NO_DEFAULT


def _array(fit: Fit) -> Fit:
    def one(value: Any, path: str) -> Any:
        if not isinstance(value, (list, tuple)):
            raise wrong(path, "an array", value)
        return [fit(each, f"{path}[{place}]") for place, each in enumerate(value)]

    return one


def _map(fit: Fit) -> Fit:
    def one(value: Any, path: str) -> Any:
        out = {key: fit(each, f"{path}{{{key}}}") for key, each in pairs(value, path)}
        if not all(isinstance(key, str) for key in out):
            raise wrong(path, "a map with string keys", value)
        return out

    return one


def _exact(wanted: str, *types: type) -> Callable[[Any], Fit]:
    def make(node: Any) -> Fit:
        def one(value: Any, path: str) -> Any:
            if not isinstance(value, types):
                raise wrong(path, wanted, value)
            return value

        return one

    return make


def _integer(node: Any) -> Fit:
    kind = kind_of(node)
    low, high = _RANGES[kind]

    def one(value: Any, path: str) -> Any:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise wrong(path, f"{'an int' if kind == 'int' else 'a long'}", value)
        return value

    return one


def _floating(node: Any) -> Fit:
    to_float = single_of if kind_of(node) == "float" else double_of

    def one(value: Any, path: str) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise wrong(path, f"a {kind_of(node)}", value)
        try:
            return to_float(value)
        except OverflowError:
            raise wrong(path, f"a {kind_of(node)}", value) from None

    return one


def _fixed(node: Any) -> Fit:
    def one(value: Any, path: str) -> Any:
        if not isinstance(value, (bytes, bytearray)) or len(value) != node["size"]:
            raise wrong(path, f"{node['size']} bytes", value)
        return value

    return one


def _enum(node: Any) -> Fit:
    symbols = frozenset(node["symbols"])

    def one(value: Any, path: str) -> Any:
        if not isinstance(value, str) or value not in symbols:
            raise wrong(path, f"one of {', '.join(node['symbols'])}", value)
        return value

    return one


def _decimal(node: Any) -> Fit:
    precision, scale = node["precision"], node.get("scale", 0)
    exact = Context(prec=precision, traps=[Inexact, InvalidOperation])
    unit = Decimal(1).scaleb(-scale)

    def one(value: Any, path: str) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            value = Decimal(value)
        if not isinstance(value, Decimal):
            raise wrong(path, f"a decimal({precision}, {scale})", value)
        try:
            return value.quantize(unit, context=exact)
        except (Inexact, InvalidOperation):
            raise wrong(path, f"a decimal({precision}, {scale})", value) from None

    return one


def _date(_node: Any) -> Fit:
    def one(value: Any, path: str) -> Any:
        if not isinstance(value, date) or isinstance(value, datetime):
            raise wrong(path, "a date", value)
        return value

    return one


def _timestamp(zoned: bool) -> Callable[[Any], Fit]:
    wanted = "a timestamp with a time zone" if zoned else "a timestamp without a time zone"

    def make(_node: Any) -> Fit:
        def one(value: Any, path: str) -> Any:
            if not isinstance(value, datetime) or (value.tzinfo is not None) is not zoned:
                raise wrong(path, wanted, value)
            return value

        return one

    return make


def _time(node: Any) -> Fit:
    whole = _integer(node)

    def one(value: Any, path: str) -> Any:
        return value if isinstance(value, time) else whole(value, path)

    return one


def _uuid(_node: Any) -> Fit:
    def one(value: Any, path: str) -> Any:
        try:
            return value if isinstance(value, UUID) else UUID(value)
        except (ValueError, TypeError, AttributeError):
            raise wrong(path, "a UUID", value) from None

    return one


def _null(_node: Any) -> Fit:
    def one(value: Any, path: str) -> Any:
        if value is not None:
            raise wrong(path, "null", value)

    return one


_PLAIN: Final[dict[str, Callable[[Any], Fit]]] = {
    "null": _null,
    "boolean": _exact("a boolean", bool),
    "int": _integer,
    "long": _integer,
    "float": _floating,
    "double": _floating,
    "bytes": _exact("bytes", bytes, bytearray),
    "string": _exact("a string", str),
    "fixed": _fixed,
    "enum": _enum,
}
_LOGICAL: Final[dict[str, Callable[[Any], Fit]]] = {
    "bytes-decimal": _decimal,
    "fixed-decimal": _decimal,
    "int-date": _date,
    "long-timestamp-millis": _timestamp(zoned=True),
    "long-timestamp-micros": _timestamp(zoned=True),
    "long-local-timestamp-millis": _timestamp(zoned=False),
    "long-local-timestamp-micros": _timestamp(zoned=False),
    "int-time-millis": _time,
    "long-time-micros": _time,
    "string-uuid": _uuid,
}
