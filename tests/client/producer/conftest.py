"""The broker for the shared tests of the producer: ottla."""

import pytest


@pytest.fixture
def address(ottla_address: str) -> str:
    return ottla_address
