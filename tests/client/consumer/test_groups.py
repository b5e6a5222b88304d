"""Groups of consumers of the SDK on ottla: the behaviours of `group_behaviour.py`."""

from collections.abc import Iterator

import pytest

from tests.client.consumer.group_behaviour import *  # noqa: F403
from tests.running_broker import RunningBroker


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker whose groups settle quickly."""
    broker = RunningBroker(
        tmp_path_factory.mktemp("groups"), 0,
        "group.initial.rebalance.delay.ms=100", "group.consumer.heartbeat.interval.ms=100",
        "group.consumer.min.heartbeat.interval.ms=50",
    )  # fmt: skip
    yield broker.address
    assert broker.stop() == 0


@pytest.fixture
def name(topic_name: str) -> str:
    return topic_name
