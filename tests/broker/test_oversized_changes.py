"""A change that is larger than an append of the store is refused alone; large requests are split."""

from typing import Any

import pytest

from ottla.metadata import records as r
from ottla.metadata.appends import encoded_bytes
from ottla.model.errors import ErrorCode
from ottla.model.limits import CONFIG_LIST_BYTES_MAX, CONFIG_VALUE_BYTES_MAX
from ottla.ports.store import APPEND_BYTES_MAX, SUPERSEDED
from tests.broker.conftest import Client, Driver

CREATE_TOPICS, DESCRIBE_CONFIGS, ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 19, 32, 33, 44
#: As long as a list may be.
PAIRS = ",".join(f"{number}:1" for number in range(100_000))[:CONFIG_LIST_BYTES_MAX].rpartition(",")[0]
THROTTLED = [
    {"name": f"{role}.replication.throttled.replicas", "value": PAIRS} for role in ("leader", "follower")
]


def topic(name: str, configs: Any = ()) -> dict[str, Any]:
    return {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": configs}


def test_an_oversized_topic_is_refused_alone_in_its_request(driver: Driver, client: Client) -> None:
    """Two settings of a legal length each are more than one append together."""
    answer = client.ask(
        CREATE_TOPICS, topics=[topic("before"), topic("large", THROTTLED), topic("after")], timeout=5_000
    )
    rows = {row.name: row for row in answer.topics}
    assert {name: row.error_code for name, row in rows.items()} == {
        "before": 0,
        "large": ErrorCode.POLICY_VIOLATION,
        "after": 0,
    }
    assert str(APPEND_BYTES_MAX) in rows["large"].error_message
    assert "several requests" in rows["large"].error_message
    assert sorted(driver.broker.image.topics) == ["after", "before"]
    assert "large" not in driver.broker.proposed.topics


def test_an_oversized_change_harms_no_other_client(driver: Driver, client: Client) -> None:
    driver.are_proposals_held = True
    other = driver.connect()
    client.send(CREATE_TOPICS, topics=[topic("large", THROTTLED)], timeout=5_000)
    other.send(CREATE_TOPICS, topics=[topic("innocent")], timeout=5_000)
    assert [row.error_code for row in client.answers.pop().topics] == [ErrorCode.POLICY_VIOLATION]
    for _kind, records, _done in driver.held_proposals:
        assert encoded_bytes(records) <= APPEND_BYTES_MAX
    driver.commit()
    driver.turn()
    assert [row.error_code for row in other.answers.pop().topics] == [0]


def test_topics_that_fit_one_by_one_are_split_over_appends(driver: Driver, client: Client) -> None:
    driver.are_proposals_held = True
    asked = [topic(f"t{number}", THROTTLED[:1]) for number in range(4)]
    client.send(CREATE_TOPICS, topics=asked, timeout=5_000)
    assert len(driver.held_proposals) == 4
    driver.commit()
    driver.turn()
    assert [row.error_code for row in client.answers.pop().topics] == [0] * 4
    assert len(driver.broker.image.topics) == 4


def test_of_a_request_that_was_split_each_topic_tells_its_own_outcome(driver: Driver, client: Client) -> None:
    driver.are_proposals_held = True
    asked = [topic(f"t{number}", THROTTLED[:1]) for number in range(3)]
    client.send(CREATE_TOPICS, topics=asked, timeout=5_000)
    _kind, records, done = driver.held_proposals.pop(0)
    driver.broker.committed(records, driver.now_ms)
    done(None)
    driver.advance(6_000)
    assert [row.error_code for row in client.answers.pop().topics] == [0, 7, 7]


def test_ten_thousand_partitions_are_one_change(driver: Driver, client: Client) -> None:
    driver.are_proposals_held = True
    client.send(CREATE_TOPICS, topics=[{**topic("wide"), "num_partitions": 10_000}], timeout=5_000)
    [(_kind, records, _done)] = driver.held_proposals
    assert any(isinstance(record, r.NewPartitions) for record in records)


@pytest.mark.parametrize("key", [ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS])
def test_an_oversized_resource_is_refused_alone(client: Client, key: int) -> None:
    client.create("large")
    client.create("small")
    short = [{"name": "retention.ms", "value": "1000"}]
    resources = [
        {
            "resource_type": 2,
            "resource_name": name,
            "configs": [{**each, "config_operation": 0} for each in configs],
        }
        for name, configs in (("large", THROTTLED), ("small", short))
    ]
    rows = client.ask(key, resources=resources).responses
    assert [row.error_code for row in rows] == [ErrorCode.POLICY_VIOLATION, 0]


def test_a_value_that_no_answer_could_carry_is_refused(client: Client) -> None:
    configs = [{"name": "compression.type", "value": "x" * (CONFIG_VALUE_BYTES_MAX + 1)}]
    [row] = client.ask(CREATE_TOPICS, topics=[topic("t", configs)], timeout=5_000).topics
    assert row.error_code == ErrorCode.INVALID_CONFIG
    assert str(CONFIG_VALUE_BYTES_MAX) in row.error_message
    configs = [{"name": THROTTLED[0]["name"], "value": PAIRS + ",1:1" * 10}]
    [row] = client.ask(CREATE_TOPICS, topics=[topic("t", configs)], timeout=5_000).topics
    assert row.error_code == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize("version", range(1, 5))
def test_a_long_list_is_described_in_every_version(client: Client, version: int) -> None:
    """Before version 4 strings are too short for it: the value is left out, and the connection stays."""
    client.ask(CREATE_TOPICS, topics=[topic("t", THROTTLED[:1])], timeout=5_000)
    [row] = client.ask(
        DESCRIBE_CONFIGS, version, include_synonyms=True,
        resources=[{"resource_type": 2, "resource_name": "t", "configuration_keys": [THROTTLED[0]["name"]]}],
    ).results  # fmt: skip
    [config] = row.configs
    assert config.value == (PAIRS if version >= 4 else None)


def test_a_change_behind_one_that_failed_says_so_for_itself(driver: Driver, client: Client) -> None:
    """What the performers answer to those that were decided on top of a change that could not be written."""
    driver.are_proposals_held = True
    client.send(CREATE_TOPICS, topics=[topic("behind")], timeout=5_000)
    driver.commit(SUPERSEDED)
    driver.turn()
    [row] = client.answers.pop().topics
    assert (row.error_code, row.error_message) == (ErrorCode.KAFKA_STORAGE_ERROR, SUPERSEDED)
