"""The server that the shared tests of the producer speak to here: ottla's own."""

import pytest


@pytest.fixture
def address(ottla_address: str) -> str:
    return ottla_address
