"""Groups of consumers of the SDK on Apache Kafka: the behaviours of `tests/client/consumer/group_behaviour.py`, with another broker."""

from collections.abc import Iterator

import pytest

from bench.kafka import fetch
from bench.process import free_port
from tests.client.consumer.group_behaviour import *  # noqa: F403 (every test of it is one of this file)


@pytest.fixture(scope="session")
def address(java: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker of Apache Kafka whose groups settle quickly."""
    settings = {
        "group.initial.rebalance.delay.ms": "100",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "100",
        "group.consumer.regex.refresh.interval.ms": "10000",
    }
    kafka = fetch().start(tmp_path_factory.mktemp("kafka"), port=free_port(), settings=settings)
    try:
        kafka.wait_ready()
        yield kafka.address
    finally:
        kafka.stop()


@pytest.fixture
def name(topic: str) -> str:
    return f"groups-{topic}"
