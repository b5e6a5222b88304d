"""Where groups and transactional ids belong, and what is kept of them."""

import tracemalloc

import pytest

from ottla.ports.coordination import partition_of


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
