from typing import Any

import pytest

UNSUPPORTED_VERSION = 35
TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32


def listed(client: Any, *types: int, version: int = 1) -> list[tuple[int, str]]:
    answer = client.ask(74, version, resource_types=types)
    assert answer.error_code.value == 0
    return [(row.resource_type, row.resource_name) for row in answer.config_resources]


@pytest.fixture(autouse=True)
def topics(client: Any) -> None:
    client.create("a")
    client.create("b", retention_ms="1000")


def test_each_type_and_all(client: Any) -> None:
    assert listed(client, TOPIC) == [(TOPIC, "a"), (TOPIC, "b")]
    assert listed(client, BROKER) == [(BROKER, "1")]
    assert listed(client, BROKER_LOGGER, CLIENT_METRICS, GROUP) == []
    assert (
        listed(client) == listed(client, BROKER, TOPIC, TOPIC) == [(TOPIC, "a"), (TOPIC, "b"), (BROKER, "1")]
    )


def test_version_0_lists_client_metrics_of_which_there_are_none(client: Any) -> None:
    answer = client.ask(74, 0)
    assert (answer.error_code.value, answer.config_resources) == (0, ())


def test_types_that_do_not_exist(client: Any) -> None:
    for kind in (0, 1, 3, 127, -1):
        answer = client.ask(74, 1, resource_types=[TOPIC, kind])
        assert (answer.error_code.value, answer.config_resources) == (UNSUPPORTED_VERSION, ())
