"""`reading.py` against ottla."""

import pytest

from tests.client.consumer.reading import *  # noqa: F403


@pytest.fixture
def address(ottla_address: str) -> str:
    return ottla_address
