import pytest

from ottla.model.names import collides, topic_name_problem


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "__consumer_offsets", "...", "x" * 249])
def test_names_that_are_allowed(name: str) -> None:
    assert topic_name_problem(name) is None


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ä", "a\n", "a\0", "٣"])
def test_names_that_are_not(name: str) -> None:
    assert topic_name_problem(name)


def test_names_collide_when_they_differ_in_dots_and_underscores_alone() -> None:
    assert collides("a.b_c") == collides("a_b.c") != collides("a-b.c")
