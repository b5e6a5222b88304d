"""A directory for many small files, in memory if possible; and the seed of this run."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from testkit.fuzz.__main__ import scratch as make_scratch


@pytest.fixture
def scratch() -> Iterator[Path]:
    with make_scratch() as directory:
        yield directory


@pytest.fixture
def seed() -> int:
    """Other requests in every run; pytest-randomly seeds it, so `make test SEED=…` repeats them."""
    return random.randrange(1 << 32)
