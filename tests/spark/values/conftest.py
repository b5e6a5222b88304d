"""A schema registry over real HTTP, one per test."""

from collections.abc import Iterator

import pytest

from tests.spark.values.registry_server import RegistryServer, serving


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with serving(RegistryServer()) as server:
        yield server
