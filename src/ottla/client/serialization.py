"""Serializers of the producer and deserializers of the consumer.

Each is a callable of `(topic, thing)`, or one of the names in `NAMES`. None means bytes. A value of `None` is
a tombstone: serializers are not called for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

from ottla.client.errors import SettingError

Serializer: TypeAlias = Callable[[str, Any], bytes]
Deserializer: TypeAlias = Callable[[str, bytes], Any]
Name: TypeAlias = Literal["bytes", "str", "json", "int"]

Function = TypeVar("Function", bound=Callable[[str, Any], Any])

INT_BYTES = 8


def _str_out(_topic: str, text: str) -> bytes:
    return text.encode()


def _str_in(_topic: str, data: bytes) -> str:
    return data.decode()


def _json_out(_topic: str, thing: Any) -> bytes:
    return json.dumps(thing, ensure_ascii=False, separators=(",", ":")).encode()


def _json_in(_topic: str, data: bytes) -> Any:
    return json.loads(data)


def _int_out(_topic: str, number: int) -> bytes:
    """Eight bytes, big-endian, as Kafka's LongSerializer."""
    return number.to_bytes(INT_BYTES, "big", signed=True)


def _int_in(_topic: str, data: bytes) -> int:
    if len(data) not in (4, INT_BYTES):
        raise ValueError(f"a whole number takes 4 or 8 bytes, not {len(data)}")
    return int.from_bytes(data, "big", signed=True)


SERIALIZERS: dict[str, Serializer] = {"str": _str_out, "json": _json_out, "int": _int_out}
DESERIALIZERS: dict[str, Deserializer] = {"str": _str_in, "json": _json_in, "int": _int_in}
NAMES: tuple[str, ...] = ("bytes", *SERIALIZERS)


def serializer_of(given: Name | Serializer | None, setting: str) -> Serializer | None:
    """The serializer of that name, or the callable; None for bytes. `setting` is its name for errors."""
    return _chosen(given, SERIALIZERS, setting)


def deserializer_of(given: Name | Deserializer | None, setting: str) -> Deserializer | None:
    return _chosen(given, DESERIALIZERS, setting)


def _chosen(given: str | Function | None, named: dict[str, Function], setting: str) -> Function | None:
    if given is None or given == "bytes":
        return None
    if isinstance(given, str):
        if given not in named:
            raise SettingError(f"{setting} must be one of {', '.join(NAMES)} or a callable, not {given!r}")
        return named[given]
    if not callable(given):
        raise SettingError(
            f"{setting} must be one of {', '.join(NAMES)} or a callable (topic, thing), not {given!r}"
        )
    return given
