from typing import Any

import pytest

UNKNOWN_TOPIC_OR_PARTITION, INVALID_CONFIG, INVALID_REQUEST, KAFKA_STORAGE_ERROR = 3, 40, 42, 56
TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8
BROKER_ID_NOT_REGISTERED = 102


def resource(name: str = "t", kind: int = TOPIC, **configs: str | None) -> dict[str, Any]:
    return {
        "resource_type": kind, "resource_name": name,
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }  # fmt: skip


def alter(client: Any, *resources: dict[str, Any], **more: Any) -> list[tuple[int, str | None]]:
    rows = client.ask(33, resources=resources, **more).responses
    return [(row.error_code.value, row.error_message) for row in rows]


def settings(client: Any, name: str = "t", kind: int = TOPIC) -> dict[str, str]:
    return dict(client.driver.broker.image.configs.get((kind, name), {}))


@pytest.fixture(autouse=True)
def topic(client: Any) -> None:
    client.create("t", retention_ms="5000", cleanup_policy="compact")


def test_all_settings_are_replaced(client: Any, driver: Any) -> None:
    assert alter(client, resource(retention_ms="7000", segment_bytes="2000000")) == [(0, None)]
    assert settings(client) == {"retention.ms": "7000", "segment.bytes": "2000000"}
    assert driver.replica("t").config.segment_bytes == 2_000_000
    assert alter(client, resource()) == [(0, None)]
    assert settings(client) == {}


def test_what_stays_the_same_is_not_written_again(client: Any, driver: Any) -> None:
    end = driver.broker.image.end
    assert alter(client, resource(retention_ms="5000", cleanup_policy="compact")) == [(0, None)]
    assert driver.broker.image.end == end


def test_validate_only_changes_nothing(client: Any) -> None:
    assert alter(client, resource(retention_ms="1"), validate_only=True) == [(0, None)]
    [(code, message)] = alter(client, resource(retention_ms="x"), validate_only=True)
    assert code == INVALID_CONFIG and message and "retention.ms" in message
    assert settings(client) == {"retention.ms": "5000", "cleanup.policy": "compact"}


def test_a_resource_is_changed_as_a_whole_or_not_at_all(client: Any) -> None:
    client.create("u")
    rows = alter(client, resource(retention_ms="1", no_such="1"), resource("u", retention_ms="2"))
    assert [code for code, _message in rows] == [INVALID_CONFIG, 0]
    assert settings(client)["retention.ms"] == "5000"
    assert settings(client, "u") == {"retention.ms": "2"}


def test_a_setting_without_a_value_is_refused(client: Any) -> None:
    [(code, message)] = alter(client, resource(retention_ms=None))
    assert code == INVALID_REQUEST and message and "retention.ms" in message


def test_nothing_may_be_named_twice(client: Any) -> None:
    twice = resource(retention_ms="1")
    twice["configs"] *= 2
    assert [code for code, _ in alter(client, twice)] == [INVALID_REQUEST]
    once = resource(retention_ms="1")
    assert [code for code, _ in alter(client, once, once)] == [INVALID_REQUEST] * 2
    assert settings(client)["retention.ms"] == "5000"


def test_resources_that_are_not_there(client: Any) -> None:
    for asked, expected in (
        (resource("u"), UNKNOWN_TOPIC_OR_PARTITION),
        (resource("2", BROKER), BROKER_ID_NOT_REGISTERED),
        (resource("1", BROKER_LOGGER), INVALID_REQUEST),
    ):
        assert [code for code, _ in alter(client, asked)] == [expected]


def test_a_brokers_settings(client: Any, driver: Any) -> None:
    assert alter(client, resource("", BROKER, log_retention_ms="9000", message_max_bytes="2000")) == [
        (0, None)
    ]
    assert driver.broker.config.message_max_bytes == 2000
    assert alter(client, resource("", BROKER, log_retention_ms="8000")) == [(0, None)]
    assert driver.broker.config.message_max_bytes > 2000
    assert settings(client, "", BROKER) == {"log.retention.ms": "8000"}
    [(code, message)] = alter(client, resource("1", BROKER, log_dirs="/elsewhere"))
    assert code in (INVALID_CONFIG, INVALID_REQUEST) and message and "log.dirs" in message


def test_a_change_that_cannot_be_written_is_no_change(client: Any, driver: Any) -> None:
    driver.are_proposals_held = True
    client.send(33, resources=[resource(retention_ms="1")])
    driver.commit("no space left on device")
    driver.turn()
    [[row]] = [answer.responses for answer in client.answers]
    assert row.error_code.value == KAFKA_STORAGE_ERROR
    assert settings(client)["retention.ms"] == "5000"
