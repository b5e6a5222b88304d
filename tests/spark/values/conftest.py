"""A schema registry over real HTTP, for each test its own."""

from collections.abc import Iterator

import pytest

from tests.spark.values.registry_server import RegistryServer, serving


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with serving(RegistryServer()) as server:
        yield server
