"""Groups of consumers of the SDK on ottla: the behaviours of `group_behaviour.py`."""

import pytest

from tests.client.consumer.group_behaviour import *  # noqa: F403 (every test of it is one of this file)


@pytest.fixture
def address(group_address: str) -> str:
    return group_address


@pytest.fixture
def name(topic_name: str) -> str:
    return topic_name
