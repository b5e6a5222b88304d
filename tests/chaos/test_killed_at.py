"""The steps of a transaction at which `make test` does not kill the broker, as tests/crash/test_transactions.py does at the others."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.crash import test_transactions
from tests.crash.test_transactions import Copying, cases, copying

__all__ = ["copying"]


@pytest.mark.parametrize(("make", "outcome", "step"), cases(later=True))
def test_killed_at(copying: Copying, make: Callable[..., Any], outcome: str, step: str) -> None:
    test_transactions.test_killed_at(copying, make, outcome, step)
