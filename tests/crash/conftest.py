"""Seeded randomness that can be repeated: the seed is printed, and pytest shows what a failed test printed."""

import random
from collections.abc import Callable

import pytest


@pytest.fixture
def seed() -> Callable[[], int]:
    """Draw a seed. pytest-randomly seeds `random` from the run's own seed, which `make test SEED=…` sets."""

    def draw() -> int:
        drawn = random.randrange(1 << 32)
        print(f"seed {drawn}")
        return drawn

    return draw
