"""The tests of `read_behaviour.py` on ottla."""

import pytest

from tests.client.consumer.read_behaviour import *  # noqa: F403


@pytest.fixture
def address(ottla_address: str) -> str:
    return ottla_address
