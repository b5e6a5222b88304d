"""Both versions pack the same strings into the same bytes, and Arrow reads them."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.records import packed
from ottla.records.pieces import integers

compiled = pytest.importorskip("ottla.records.packed_compiled", reason="numba is not here")
pa = pytest.importorskip("pyarrow")

strings = st.lists(st.none() | st.binary(max_size=40), max_size=40)


@pytest.fixture(scope="module", params=["pure", "compiled", "compiled with bounds checks"])
def pack(request: pytest.FixtureRequest) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "compiled with bounds checks":
            measure, fill = compiled.compile_with(boundscheck=True)
            patch.setattr(compiled, "measure", measure)
            patch.setattr(compiled, "fill", fill)
        yield packed.pack if request.param == "pure" else compiled.pack


def part(things: list[bytes | None], gap: bytes) -> packed.Part:
    """The strings with bytes in between, as in a batch."""
    data, starts, ends = gap, [], []
    for thing in things:
        starts.append(len(data))
        ends.append(len(data) - 1 if thing is None else len(data) + len(thing))
        data += (thing or b"") + gap
    return memoryview(data), integers(starts), integers(ends)


def arrow(found: packed.Packed) -> Any:
    buffers = [None if each is None else pa.py_buffer(each) for each in found[2:]]
    array = pa.Array.from_buffers(pa.binary(), found.rows, buffers, found.nulls)
    array.validate(full=True)
    return array


@given(parts=st.lists(strings, max_size=5), gap=st.binary(min_size=1, max_size=5))
def test_what_was_packed_is_there(pack: Any, parts: list[list[bytes | None]], gap: bytes) -> None:
    found = pack([part(things, gap) for things in parts])
    together = [thing for things in parts for thing in things]
    assert arrow(found).to_pylist() == together
    assert (found.rows, found.nulls) == (len(together), together.count(None))
    assert (found.validity is None) == (None not in together)


@given(parts=st.lists(strings, max_size=5))
def test_the_twins_write_the_same_bytes(parts: list[list[bytes | None]]) -> None:
    given_ = [part(things, b"|") for things in parts]
    one, other = packed.pack(given_), compiled.pack(given_)
    for ours, theirs in zip(one[2:], other[2:], strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or memoryview(ours).tobytes() == memoryview(theirs).tobytes()


def test_more_than_32_bits_can_tell_is_refused(pack: Any) -> None:
    # The same megabyte, again and again.
    megabyte = bytes(1 << 20)
    again = (megabyte, integers([0] * 16), integers([1 << 20] * 16))
    with pytest.raises(packed.TooManyBytes, match="poll fewer records"):
        pack([again] * 128)
