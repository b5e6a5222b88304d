"""JSON without a registry: converts text to columns of Spark types, with a reason for bad values.

Spark's `from_json` silently turns values that do not fit into null. `from_json_value` reports the reason, so
that bad rows can be separated. Fields are matched by name: unknown ones are dropped, missing ones are null. A
type is compiled into nested functions (value, path) → value, as in `json_fit`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, Final

from pyspark.sql import types as spark

from ottla.spark.values.errors import SchemaError, at, wrong
from ottla.spark.values.json_leaves import Fit, boolean, number, read_as, text_of, unicode_text
from ottla.spark.values.numbers import single_of

_WHOLE: Final[dict[type[spark.DataType], int]] = {
    spark.ByteType: 8,
    spark.ShortType: 16,
    spark.IntegerType: 32,
    spark.LongType: 64,
}


def json_reader(of: spark.DataType) -> Callable[[bytes | str], Any]:
    """The function that converts JSON text to a column value of this type."""
    fit = _fitting(of, "")

    return lambda text: read_as(fit, text)


def _fitting(of: spark.DataType, path: str) -> Fit:
    inner = _some(of, path)
    return lambda value, path: None if value is None else inner(value, path)


def _some(of: spark.DataType, path: str) -> Fit:
    if isinstance(of, spark.StructType):
        return _struct([(each.name, _fitting(each.dataType, at(path, each.name))) for each in of.fields])
    if isinstance(of, spark.ArrayType):
        return _array(_fitting(of.elementType, f"{path}[]"))
    if isinstance(of, spark.MapType) and isinstance(of.keyType, spark.StringType):
        return _map(_fitting(of.valueType, f"{path}{{}}"))
    if isinstance(of, spark.DecimalType):
        return _decimal(of.precision, of.scale)
    if type(of) in _WHOLE:
        return _integer(_WHOLE[type(of)])
    found = _PLAIN.get(type(of))
    if found is None:
        raise SchemaError(f"{path or 'the schema'}: JSON cannot be read as {of.simpleString()}")
    return found


def _struct(fields: list[tuple[str, Fit]]) -> Fit:
    def one(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise wrong(path, "an object", value)
        return {name: fit(value.get(name), at(path, name)) for name, fit in fields}

    return one


def _array(fit: Fit) -> Fit:
    def one(value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise wrong(path, "an array", value)
        return [fit(each, f"{path}[{place}]") for place, each in enumerate(value)]

    return one


def _map(fit: Fit) -> Fit:
    def one(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise wrong(path, "an object", value)
        return {key: fit(each, f"{path}{{{key}}}") for key, each in value.items()}

    return one


def _integer(bits: int) -> Fit:
    def one(value: Any, path: str) -> Any:
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not -1 << bits - 1 <= value < 1 << bits - 1
        ):
            raise wrong(path, f"an integer of {bits} bits", value)
        return value

    return one


def _decimal(precision: int, scale: int) -> Fit:
    exact = Context(prec=precision, traps=[Inexact, InvalidOperation])
    unit = Decimal(1).scaleb(-scale)

    def one(value: Any, path: str) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
            raise wrong(path, f"a decimal({precision}, {scale})", value)
        try:
            return Decimal(value).quantize(unit, context=exact)
        except (Inexact, InvalidOperation):
            raise wrong(path, f"a decimal({precision}, {scale})", value) from None

    return one


def _text(value: Any, path: str) -> Any:
    """As in Spark's `from_json`, a value that is not a string becomes its JSON text."""
    return unicode_text(value if isinstance(value, str) else text_of(value), path)


def _binary(value: Any, path: str) -> Any:
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, TypeError):
        raise wrong(path, "bytes in base64", value) from None


def _date(value: Any, path: str) -> Any:
    try:
        return date.fromisoformat(value)
    except (ValueError, TypeError):
        raise wrong(path, "a date, as in 2024-02-29", value) from None


def _time(zoned: bool) -> Fit:
    wanted = "a time with its zone, as in 2024-02-29T12:30:00Z" if zoned else "a time without a zone"

    def one(value: Any, path: str) -> Any:
        try:
            read = datetime.fromisoformat(value)
        except (ValueError, TypeError):
            raise wrong(path, wanted, value) from None
        if (read.tzinfo is not None) is not zoned:
            raise wrong(path, wanted, value)
        return read

    return one


_PLAIN: Final[dict[type[spark.DataType], Fit]] = {
    spark.BooleanType: boolean,
    spark.FloatType: number(single_of),
    spark.DoubleType: number(),
    spark.StringType: _text,
    spark.BinaryType: _binary,
    spark.DateType: _date,
    spark.TimestampType: _time(zoned=True),
    spark.TimestampNTZType: _time(zoned=False),
}
