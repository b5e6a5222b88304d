"""Random messages of any kio class, each as kio's instance and as the dict that the encoders take."""

import random
import string
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from ottla.wire.layout import EPOCH, FieldLayout, default_instance, layout
from ottla.wire.schema import request_class, response_class, version_range

API_KEYS = [key for key in range(200) if version_range(key) is not None]
ERROR_CODES = list(ErrorCode)
TEXT = string.ascii_letters + "é日🜁"
# On both sides of the lengths where another byte is needed, or a table ends.
LENGTHS = (0, 1, 2, 3, 30, 126, 127, 128, 1022, 1023, 1024)
COUNTS = (0, 1, 2, 3, 31, 32, 130)


class MessageMaker:
    """The same seed produces the same messages."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def message(self, cls: Any) -> tuple[Any, dict[str, Any]]:
        values: dict[str, Any] = {}
        plain: dict[str, Any] = {}
        for field in layout(cls):
            value, plain_value = self._field(field)
            if field.tag is not None and (value is None or self.random.random() < 0.4):
                value = field.default
            else:
                plain[field.name] = plain_value
            values[field.name] = value
        return cls(**values), plain

    def _field(self, field: FieldLayout) -> tuple[Any, Any]:
        may_be_null = (field.is_nullable or field.kind == "uuid") and field.tag is None
        if may_be_null and self.random.random() < 0.2:
            return (None, None) if field.is_nullable or not field.is_array else ((), [])
        if not field.is_array:
            return self._value(field)
        count = self.random.choice((0, 1, 1, 2)) if field.struct is not None else self.random.choice(COUNTS)
        items = [self._value(field) for _ in range(count)]
        return tuple(value for value, _ in items), [plain for _, plain in items]

    def _value(self, field: FieldLayout) -> tuple[Any, Any]:
        kind = field.kind
        if field.struct is not None:
            return self.message(field.struct)
        if kind.startswith(("int", "uint")):
            bits = int(kind.removeprefix("u").removeprefix("int"))
            number = self._number(bits, is_signed=kind.startswith("int"))
            return number, number
        if kind == "error_code":
            code = self.random.choice(ERROR_CODES)
            return code, code.value
        if kind.startswith("timedelta"):
            number = self._number(32 if kind == "timedelta_i32" else 44, is_signed=True)
            return timedelta(milliseconds=number), number
        if kind == "datetime_i64":
            number = self.random.randrange(2**32) * 1000
            return EPOCH + timedelta(milliseconds=number), number
        if kind == "uuid":
            raw = self.random.randbytes(16)
            return UUID(bytes=raw), raw
        if kind == "string":
            text = "".join(self.random.choices(TEXT, k=self.random.choice(LENGTHS)))
            return text, text
        plain: Any = {
            "bool": self.random.random() < 0.5,
            "float64": self.random.uniform(-1e9, 1e9),
        }.get(kind)
        if plain is None:
            plain = self.random.randbytes(self.random.choice(LENGTHS))
        return plain, plain

    def _number(self, bits: int, *, is_signed: bool) -> int:
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
        return self.random.choice((0, 1, low, high, self.random.randint(low, high)))


def message_classes(api_key: int) -> list[Any]:
    """The request and response class of every version of an API."""
    versions = version_range(api_key)
    assert versions is not None
    return [
        class_of(api_key, version)
        for version in range(versions[0], versions[1] + 1)
        for class_of in (request_class, response_class)
    ]


@pytest.fixture(params=API_KEYS)
def api_key(request: pytest.FixtureRequest) -> int:
    key: int = request.param
    return key


@pytest.fixture
def classes(api_key: int) -> list[Any]:
    return message_classes(api_key)


@pytest.fixture
def every_class() -> list[Any]:
    return [cls for key in API_KEYS for cls in message_classes(key)]


@pytest.fixture
def maker(api_key: int) -> MessageMaker:
    return MessageMaker(seed=api_key)


@pytest.fixture
def defaults() -> Callable[[Any], Any]:
    return default_instance
