"""Shared JSON conversions: text ↔ Python values, and the simple types.

Numbers with a fraction are `Decimal`s between text and column, so that no digit is lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Final

from ottla.spark.values.errors import BadValue, wrong
from ottla.spark.values.numbers import double_of

Fit = Callable[[Any, str], Any]

_DECODER: Final = json.JSONDecoder(parse_float=Decimal)
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
_STRICT: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def read_as(fit: Fit, text: bytes | str) -> Any:
    """Parse JSON and convert it. Any input gives a value or a `BadValue`."""
    try:
        value = parsed(text)
    except RecursionError:
        raise BadValue("not JSON that can be read: it is nested too deep") from None
    except (ValueError, ArithmeticError) as error:
        raise BadValue(f"not JSON: {str(error) or type(error).__name__}") from None
    try:
        return fit(value, "")
    except RecursionError:
        raise BadValue("does not fit: it is nested too deep") from None


def parsed(text: bytes | str) -> Any:
    """As `json.loads`, without creating a decoder for each text."""
    if not isinstance(text, str):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    return _DECODER.decode(text)


def text_of(value: Any, *, strict: bool = False) -> str:
    """Write JSON with all digits of decimals. `strict` rejects NaN and infinity, which JSON lacks."""
    encoder = _STRICT if strict else _ENCODER
    try:
        return encoder.encode(value)
    except TypeError:
        # The json module writes decimals only as floats or strings, so they are written here.
        return "".join(_parts(value, encoder))


def _parts(value: Any, encoder: json.JSONEncoder) -> Iterator[str]:
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ValueError(f"{value} is not a JSON number")
        yield str(value)
    elif isinstance(value, dict):
        yield "{"
        for place, (key, each) in enumerate(value.items()):
            if not isinstance(key, str):
                raise TypeError(f"the object key {key!r} is not a string")
            yield f"{',' if place else ''}{encoder.encode(key)}:"
            yield from _parts(each, encoder)
        yield "}"
    elif isinstance(value, (list, tuple)):
        yield "["
        for place, each in enumerate(value):
            if place:
                yield ","
            yield from _parts(each, encoder)
        yield "]"
    else:
        yield encoder.encode(value)


def boolean(value: Any, path: str) -> Any:
    if not isinstance(value, bool):
        raise wrong(path, "a boolean", value)
    return value


def number(to_float: Callable[[Any], float] = double_of) -> Fit:
    def one(value: Any, path: str) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
            raise wrong(path, "a number", value)
        try:
            return to_float(value)
        except OverflowError:
            raise wrong(path, "a number within its column's range", value) from None

    return one


def unicode_text(value: str, path: str) -> str:
    """JSON can contain lone surrogates, which no column can hold."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise wrong(path, "a string of Unicode characters", value) from None
    return value
