"""The simulator finds bugs that need bad luck; and in the same weather, without a bug, it finds nothing."""

import pytest

from testkit.sim.cluster import run_cluster
from tests.sim.deliberate_bugs import FOUND_LATER, WITHOUT_BUGS, Bug, find


@pytest.mark.parametrize("bug", FOUND_LATER, ids=lambda bug: bug.patch.__name__)
def test_it_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    find(bug, monkeypatch)


@pytest.mark.parametrize("weather", WITHOUT_BUGS)
def test_without_a_bug_nothing_is_found(weather: str) -> None:
    options = WITHOUT_BUGS[weather]
    # Those with transactions take longer.
    for seed in range(1, 3 if options.transactions else 6):
        run_cluster(seed, options)
