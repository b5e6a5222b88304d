import logging

import pytest

from ottla.client.complaints import SILENCE_S, Complaints


def test_the_first_is_told_at_once_and_the_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(logging.getLogger("ottla.client"))
    for now_s in (0.0, 1.0, SILENCE_S - 1, SILENCE_S, SILENCE_S + 1):
        complaints.warn("a", "a is away", now_s)
    complaints.warn("b", "b is away", 1.0)
    complaints.settled("a")
    complaints.warn("a", "a is away", SILENCE_S + 2)
    assert [record.getMessage() for record in caplog.records] == [
        "a is away",
        "a is away (and 2 more times since it was last logged)",
        "b is away",
        "a is away",
    ]


def test_it_does_not_remember_without_end() -> None:
    complaints = Complaints(logging.getLogger("ottla.client"))
    for kind in range(3_000):
        complaints.warn(kind, "x", 0.0)
    assert len(complaints._logged) <= 1_000
