"""An upper bound that is counted again when it reaches a limit: nobody holds more than the limit, and what is given back is found."""

import pytest

from ottla.groups.budget import Budget, Usage
from ottla.model import limits


class Counted:
    """What is really held, and how often that was counted."""

    def __init__(self) -> None:
        self.usage = Usage()
        self.times = 0

    def __call__(self) -> Usage:
        self.times += 1
        return self.usage


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.setattr(limits, "MEMBERS_MAX", 10)
    monkeypatch.setattr(limits, "GROUP_STATE_BYTES_MAX", 1000)
    return Counted()


def test_what_is_admitted_is_counted_once_at_first(counted: Counted) -> None:
    budget = Budget(counted)
    assert all(budget.reserve(Usage(members=1), 0) for _ in range(10))
    assert counted.times == 1


def test_at_the_limit_it_counts_once_a_second(counted: Counted) -> None:
    budget = Budget(counted)
    for _ in range(10):
        assert budget.reserve(Usage(members=1), 0)
    counted.usage = Usage(members=10)
    assert not any(budget.reserve(Usage(members=1), now_ms) for now_ms in range(0, 5000, 10))
    assert counted.times == 5
    counted.usage = Usage(members=3)
    assert not budget.reserve(Usage(members=1), 4999)
    assert [budget.reserve(Usage(members=1), 6000) for _ in range(8)] == [True] * 7 + [False]


def test_a_request_that_is_refused_takes_nothing(counted: Counted) -> None:
    budget = Budget(counted)
    assert not budget.reserve(Usage(size=2000), 0)
    assert budget.reserve(Usage(size=1000), 0)


def test_what_was_assigned_later_counts(counted: Counted) -> None:
    budget = Budget(counted)
    assert budget.reserve(Usage(members=1, size=10), 0)
    budget.add(990)
    assert not budget.reserve(Usage(size=1), 10)


def test_groups_that_are_loaded_are_counted(counted: Counted) -> None:
    budget = Budget(counted)
    assert budget.reserve(Usage(members=1), 0)
    budget.add_loaded(Usage(members=10))
    assert not budget.reserve(Usage(members=1), 1)
