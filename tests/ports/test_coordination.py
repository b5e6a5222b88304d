"""Where groups and transactional ids belong, and what is kept of them."""

import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ottla.ports.coordination import java_hash, partition_of


@pytest.mark.parametrize(
    ("group_id", "java_hash"),
    [
        ("", 0), ("a", 97), ("hello", 99162322), ("billing", -109829509),
        # Two units of UTF-16; and the one number that has no positive counterpart.
        ("\N{GRINNING FACE}", 1772899), ("polygenelubricants", 0),
    ],
)  # fmt: skip
def test_a_name_belongs_where_java_has_it(group_id: str, java_hash: int) -> None:
    for count in (1, 7, 50):
        assert partition_of(group_id, count) == abs(java_hash) % count


@given(st.text(st.characters(), max_size=300) | st.text("\0ab\uffff\U0010ffff", max_size=300))
@example("x" * 8191)
@example("\U0010ffff" * 4095)
@example("\ud800" * 33)
def test_the_hash_of_any_name_is_that_of_a_loop_over_its_characters(name: str) -> None:
    number = 0
    units = name.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        number = (31 * number + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    assert java_hash(name) == number


def test_strangers_with_long_names_cost_no_memory() -> None:
    names = [f"{at}" * 1000 for at in range(100, 110)]
    # The masks for names of this length are made once.
    partition_of("0" + names[0], 50)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number, name in enumerate(names):
            partition_of(f"{number}{name}", 50)
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()
