"""A real broker for the tests of groups."""

from collections.abc import Iterator

import pytest

from tests.running_broker import RunningBroker


@pytest.fixture(scope="session")
def group_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker whose groups settle quickly; each test uses a group and topics of its own."""
    broker = RunningBroker(
        tmp_path_factory.mktemp("groups"), 0,
        "group.initial.rebalance.delay.ms=100", "group.consumer.heartbeat.interval.ms=100",
        "group.consumer.min.heartbeat.interval.ms=50",
    )  # fmt: skip
    yield broker.address
    assert broker.stop() == 0
