"""The behaviour of the SDK on Apache Kafka: the tests of `tests/sdk/test_behaviour.py`, with another server."""

import pytest

from tests.sdk.conftest import make_topic
from tests.sdk.test_behaviour import *  # noqa: F403 (every test of it is one of this file)

__all__ = ["make_topic"]


@pytest.fixture(scope="session")
def server(kafka: str) -> str:
    return kafka
