"""A running broker for each claim: as a process of its own, or embedded in this one where a test must look inside."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.server.embedded import Broker
from tests.crash.broker_process import BrokerProcess, Wire


@pytest.fixture
def broker(tmp_path: Path, free_port: int) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", free_port) as process:
        yield process


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[Wire]:
    """A bare connection to `broker`."""
    with Wire(broker.address) as connection:
        yield connection


@pytest.fixture
def embed() -> Iterator[Callable[..., Broker]]:
    """Start a broker in this process; settings with underscores instead of dots."""
    running: list[Broker] = []
    directory = tempfile.mkdtemp(prefix="ottla-seeds-")

    def start(**settings: str) -> Broker:
        config = {name.replace("_", "."): value for name, value in settings.items()}
        running.append(Broker(f"{directory}/{len(running)}", config=config))
        return running[-1]

    yield start
    for each in running:
        each.close()
    shutil.rmtree(directory)
