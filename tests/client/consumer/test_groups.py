"""Groups of SDK consumers on ottla: the tests of `group_behaviour.py`."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.client.consumer.group_behaviour import *  # noqa: F403 (every test of it is one of this file)
from tests.client.consumer.group_behaviour import create, fill, member, take, until


@pytest.fixture
def address(group_address: str) -> str:
    return group_address


@pytest.fixture
def name(topic_name: str) -> str:
    return topic_name


def test_a_broker_that_is_away_does_not_hold_the_end(start_broker: Callable[..., Any], name: str) -> None:
    broker = start_broker(0, "group.initial.rebalance.delay.ms=0")
    create(broker.address, name, 1)
    fill(broker.address, name, 5, 1)
    consumer = member(broker.address, name)
    consumer.subscribe([name])
    take(consumer, 5)
    broker.kill()
    before = time.monotonic()
    consumer.close(1)
    assert time.monotonic() - before < 10


def test_a_group_outlives_its_broker(start_broker: Callable[..., Any], name: str) -> None:
    broker = start_broker(0, "group.initial.rebalance.delay.ms=0")
    create(broker.address, name, 1)
    fill(broker.address, name, 5, 1)
    with member(broker.address, name) as consumer:
        consumer.subscribe([name])
        take(consumer, 5)
        consumer.commit()
        broker.stop()
        assert consumer.poll(200) == {}
        start_broker(broker.port, "group.initial.rebalance.delay.ms=0")
        fill(broker.address, name, 5, 1)
        assert [record.offset for record in take(consumer, 5)] == [5, 6, 7, 8, 9]
        until(lambda: consumer.group_metadata().generation_id > 0, consumer)
        consumer.commit()
