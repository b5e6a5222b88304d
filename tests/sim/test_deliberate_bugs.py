"""The simulator can fail: a bug that shows in nearly every run is found."""

import pytest

from tests.sim.deliberate_bugs import FOUND_AT_ONCE, Bug, find


@pytest.mark.parametrize("bug", FOUND_AT_ONCE, ids=lambda bug: bug.patch.__name__)
def test_it_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    find(bug, monkeypatch)
