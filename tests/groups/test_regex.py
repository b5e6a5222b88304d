"""Patterns of topic names: RE2's syntax, whole names, and no pattern that takes long."""

import time

import pytest

from ottla.groups.regex import PATTERN_LENGTH_MAX, BadPattern, compiled

#: The longest names that topics may have, and those that backtracking engines fear.
LONG = ["a" * 249, "a" * 248 + "b", "ab" * 124, "x" * 249]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("t.*", {"t1", "t2", "topic.a"}),
        ("^t[0-9]$", {"t1", "t2"}),
        ("t", set()),
        ("(?i)T1", {"t1"}),
        ("topic\\.a|u", {"topic.a", "u"}),
        ("", set()),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, expected: set[str]) -> None:
    program = compiled(pattern)
    assert {name for name in ["t1", "t2", "topic.a", "u", "at1"] if program.fullmatch(name)} == expected


@pytest.mark.parametrize(
    "pattern",
    ["(", "[a", "a{2,1}", "*", "(?=a)b", "(a)\\1", "(?<!x)y", "a" * (PATTERN_LENGTH_MAX + 1), "((a{100}){100}){100}",
     "\\C{1000}" * 9, "\ud800"],
)  # fmt: skip
def test_what_is_no_pattern_or_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        compiled(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(a|aa)+$", "(a*)*c", "(.*)*x", "((a*)*)*d", "(a|b|ab)*(a|b|ab)*(a|b|ab)*c" * 20, ".*a.*a.*a.*a.*b" * 30,
     "(.?){999}b", "([ab]{1,99}a){1,9}c", ".*[ab]{0,200}.{200}z"],
)  # fmt: skip
def test_no_pattern_takes_long(pattern: str) -> None:
    """A backtracking engine would need years for some of these; here the worst names take time that is known beforehand, with room
    for a busy machine."""
    try:
        program = compiled(pattern)
    except BadPattern:
        return
    begin = time.process_time()
    for name in LONG * 20:
        program.fullmatch(name)
    characters = 20 * sum(map(len, LONG))
    assert time.process_time() - begin < 100e-9 * program.programsize * characters
    # And none of these is slow at all: a thousand of the names.
    begin = time.process_time()
    for name in LONG * 250:
        program.fullmatch(name)
    assert time.process_time() - begin < 2.0
