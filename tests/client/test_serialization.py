from typing import Any

import pytest

from ottla.client.errors import SettingError
from ottla.client.serialization import deserializer_of, serializer_of


@pytest.mark.parametrize(
    ("name", "thing", "data"),
    [
        ("str", "žluť", "žluť".encode()),
        ("json", {"a": [1, None, "é"]}, '{"a":[1,null,"é"]}'.encode()),
        ("int", -2, b"\xff" * 7 + b"\xfe"),
        ("int", (1 << 63) - 1, b"\x7f" + b"\xff" * 7),
    ],
)
def test_there_and_back(name: Any, thing: Any, data: bytes) -> None:
    out, back = serializer_of(name, "value_serializer"), deserializer_of(name, "value_deserializer")
    assert out is not None and back is not None
    assert out("topic", thing) == data
    assert back("topic", data) == thing


def test_numbers_of_four_bytes_are_read_too() -> None:
    back = deserializer_of("int", "key_deserializer")
    assert back is not None and back("topic", b"\xff\xff\xff\xfe") == -2
    with pytest.raises(ValueError, match="4 or 8 bytes, not 3"):
        back("topic", b"abc")


@pytest.mark.parametrize("given", [None, "bytes"])
def test_bytes_stay_as_they_are(given: Any) -> None:
    assert serializer_of(given, "key_serializer") is None
    assert deserializer_of(given, "key_deserializer") is None


@pytest.mark.parametrize("given", ["avro", 7])
def test_what_is_neither_a_name_nor_a_callable_is_refused(given: Any) -> None:
    with pytest.raises(
        SettingError, match="key_serializer must be one of bytes, str, json, int or a callable"
    ):
        serializer_of(given, "key_serializer")
