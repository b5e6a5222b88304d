"""A ZooKeeper for tests: one for all that do it no harm, and one of a test's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.runtime.local_zookeeper import LocalZookeeper, Program, find_program, free_ports


@pytest.fixture(scope="session")
def program() -> Program:
    return find_program()


@pytest.fixture(scope="session")
def shared_zookeeper(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalZookeeper]:
    """One server for all tests that do it no harm."""
    server = LocalZookeeper(program, tmp_path_factory.mktemp("zookeeper"), free_ports(1)[0], durable=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def zookeeper(program: Program, tmp_path: Path) -> Iterator[LocalZookeeper]:
    """A server that the test may stop, pause and start again."""
    server = LocalZookeeper(program, tmp_path / "zookeeper", free_ports(1)[0], durable=False)
    server.start()
    yield server
    server.stop()
