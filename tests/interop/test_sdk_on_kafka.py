"""The behaviour of the SDK on Apache Kafka: the tests of `tests/sdk/test_behaviour.py`, with another server."""

from collections.abc import Iterator

import pytest

from bench.kafka import fetch
from bench.process import free_port
from tests.sdk.conftest import make_topic
from tests.sdk.test_behaviour import *  # noqa: F403 (every test of it is one of this file)

__all__ = ["make_topic"]


@pytest.fixture(scope="session")
def server(java: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.min.heartbeat.interval.ms": "200",
        "group.consumer.heartbeat.interval.ms": "200",
    }
    kafka = fetch().start(tmp_path_factory.mktemp("kafka"), port=free_port(), settings=settings)
    try:
        kafka.wait_ready()
        yield kafka.address
    finally:
        kafka.stop()
