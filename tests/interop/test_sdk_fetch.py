"""What consumers of the SDK read from Apache Kafka: `tests/client/consumer/read_behaviour.py`, against its broker."""

from collections.abc import Iterator

import pytest

from tests.client.consumer.read_behaviour import *  # noqa: F403
from tests.interop.kafka_directory import running
from tests.interop.programs import Java


@pytest.fixture(scope="module")
def address(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    del java  # only asks whether it is here
    with running("4", tmp_path_factory.mktemp("kafka")) as process:
        yield process.address
