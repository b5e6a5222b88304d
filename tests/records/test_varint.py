"""Varints: round trips, the encodings of the specification, and the bounds on bytes and bits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.records.errors import CorruptRecords
from ottla.records.varint import VARINTS, read_varint, read_varlong, zigzag


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_varlong_round_trip(number: int) -> None:
    encoded = VARINTS[number]
    raw, position = read_varlong(b"\xff" + encoded + b"\xff", 1)
    assert (zigzag(raw), position) == (number, 1 + len(encoded))
    assert len(encoded) <= 10


@given(st.integers(-(1 << 31), (1 << 31) - 1))
def test_varint_round_trip(number: int) -> None:
    encoded = VARINTS[number]
    raw, position = read_varint(encoded, 0)
    assert (zigzag(raw), position) == (number, len(encoded))
    assert len(encoded) <= 5


@pytest.mark.parametrize(
    ("number", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (8192, "808001"),
        ((1 << 31) - 1, "feffffff0f"),
        (-(1 << 31), "ffffffff0f"),
        ((1 << 63) - 1, "feffffffffffffffff01"),
        (-(1 << 63), "ffffffffffffffffff01"),
    ],
)
def test_known_encodings(number: int, encoded: str) -> None:
    assert VARINTS[number].hex() == encoded


def test_numbers_beyond_64_bits_are_refused() -> None:
    for number in (1 << 63, -(1 << 63) - 1):
        with pytest.raises(ValueError, match="64 bits"):
            VARINTS[number]


def test_large_numbers_are_not_kept() -> None:
    assert VARINTS[1 << 40] == VARINTS[1 << 40]
    assert 1 << 40 not in VARINTS
    assert VARINTS[77] is VARINTS[77]


@pytest.mark.parametrize("encoded", ["", "80", "8080808080", "808080808001", "ffffffff1f", "ffffffff7f"])
def test_bad_varints_are_refused(encoded: str) -> None:
    with pytest.raises(CorruptRecords):
        read_varint(bytes.fromhex(encoded), 0)


@pytest.mark.parametrize("encoded", ["", "80" * 9, "80" * 10, "80" * 10 + "01", "ff" * 9 + "02"])
def test_bad_varlongs_are_refused(encoded: str) -> None:
    with pytest.raises(CorruptRecords):
        read_varlong(bytes.fromhex(encoded), 0)
