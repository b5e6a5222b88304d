"""Lengths in bytes of UTF-8, and truncation without half a character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.model.limits import NAME_LENGTH_MAX, STRING_BYTES_MAX
from ottla.model.strings import cut, is_longer, is_name

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)


@given(TEXT, st.integers(0, 60))
def test_a_length_is_that_in_bytes(text: str, limit: int) -> None:
    assert is_longer(text, limit) == (len(text.encode()) > limit)


@given(TEXT, st.integers(0, 60))
def test_what_is_cut_is_the_longest_beginning_that_fits(text: str, limit: int) -> None:
    short = cut(text, limit)
    assert text.startswith(short) and len(short.encode()) <= limit
    assert short == text or len(text[: len(short) + 1].encode()) > limit


def test_nothing_has_no_length() -> None:
    assert not is_longer(None, 0)


@pytest.mark.parametrize("character", ["x", "é", "\U0010ffff"])
def test_the_longest_name_fits_16_bits(character: str) -> None:
    name = character * NAME_LENGTH_MAX
    assert is_name(name) and not is_name(name + character)
    assert not is_longer(name, STRING_BYTES_MAX)


def test_half_a_surrogate_pair_is_replaced() -> None:
    assert is_longer("\ud800" * 10, 5) and cut("\ud800" * 10, 5) == "?????"
