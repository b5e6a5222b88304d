import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.spark.values.errors import BadValue
from ottla.spark.values.wire_format import header, message_indexes, message_indexes_of, schema_id_of


@given(st.integers(0, 2**32 - 1), st.binary())
def test_the_id_comes_back(schema_id: int, payload: bytes) -> None:
    assert schema_id_of(header(schema_id) + payload) == schema_id


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=5).map(tuple), st.binary())
def test_message_indexes_come_back(indexes: tuple[int, ...], payload: bytes) -> None:
    frame = header(7) + message_indexes(indexes) + payload
    found, start = message_indexes_of(frame)
    assert found == indexes and frame[start:] == payload


def test_the_bytes_are_confluents() -> None:
    assert header(258) == b"\x00\x00\x00\x01\x02"
    assert message_indexes([0]) == b"\x00", "the first message is one byte, not two"
    assert message_indexes([1, 0]) == b"\x04\x02\x00"
    assert message_indexes_of(header(1) + b"\x02\x00")[0] == (0,), "the long form of the first message"


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "truncated: 0 bytes"),
        (b"\x00\x00\x00\x00", "truncated: 4 bytes"),
        (b'{"a":1}', "the first byte is 123, not the magic byte 0"),
        (b"\x01\x00\x00\x00\x01", "the first byte is 1,"),
    ],
)
def test_what_is_no_frame_is_told(frame: bytes, reason: str) -> None:
    with pytest.raises(BadValue, match=reason):
        schema_id_of(frame)


@pytest.mark.parametrize(
    "indexes", [b"", b"\x04\x02", b"\x80", b"\xff" * 11, b"\x01", b"\x02\x01", b"\xfe\xff\x01"]
)
def test_bad_message_indexes_are_told(indexes: bytes) -> None:
    with pytest.raises(BadValue, match=r"truncated|not a Protobuf value"):
        message_indexes_of(header(1) + indexes)
