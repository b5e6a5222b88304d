"""How many topics and partitions there may be, and that a partition's directory has a name that a file system takes."""

from typing import Any

import pytest

from ottla.controller import topics as deciding
from ottla.log.names import partition_dir
from ottla.metadata import records as r
from ottla.model.limits import (
    FILE_NAME_BYTES_MAX,
    PARTITIONS_PER_REQUEST_MAX,
    PARTITIONS_PER_TOPIC_MAX,
    TOPIC_NAME_LENGTH_MAX,
)

INVALID_PARTITIONS, POLICY_VIOLATION, KAFKA_STORAGE_ERROR = 37, 44, 56
CREATE_TOPICS, CREATE_PARTITIONS, METADATA = 19, 37, 3
ELSEWHERE = 99
LONGEST = "n" * TOPIC_NAME_LENGTH_MAX
TOPIC_ID = b"t" * 16


def test_the_last_partition_of_the_longest_name_has_a_directory() -> None:
    assert len(partition_dir(LONGEST, PARTITIONS_PER_TOPIC_MAX - 1)) <= FILE_NAME_BYTES_MAX


def has_topic(driver: Any, partitions: int, *, last_here: bool = False) -> None:
    """A topic of the longest name in the metadata log, on another broker, as a log may have it that is older than the limit."""
    replicas = [(ELSEWHERE,)] * partitions
    if last_here:
        replicas[-1] = (1,)
    driver.broker.committed(
        [r.Topic(LONGEST, TOPIC_ID), r.NewPartitions(TOPIC_ID, 0, tuple(replicas))], driver.now_ms
    )
    driver.broker.proposed = driver.broker.image


def widen(client: Any, *topics: tuple[str, int]) -> list[int]:
    rows = [{"name": name, "count": count, "assignments": None} for name, count in topics]
    answer = client.ask(CREATE_PARTITIONS, topics=rows, timeout=1000, validate_only=True)
    return [row.error_code.value for row in answer.results]


def test_a_topic_is_not_widened_beyond_the_limit(client: Any, driver: Any) -> None:
    """However many requests it takes: partition 100000 of a name of 249 characters could have no directory."""
    has_topic(driver, PARTITIONS_PER_TOPIC_MAX - PARTITIONS_PER_REQUEST_MAX + 1)
    assert widen(client, (LONGEST, PARTITIONS_PER_TOPIC_MAX)) == [0]
    assert widen(client, (LONGEST, PARTITIONS_PER_TOPIC_MAX + 1)) == [INVALID_PARTITIONS]


def test_a_partition_that_can_have_no_directory_harms_no_other(client: Any, driver: Any, batch: Any) -> None:
    """It is in a metadata log from before the limit. Once it took the whole log directory offline."""
    has_topic(driver, 110_001, last_here=True)
    client.create("other")
    assert client.produce(LONGEST, batch(b"v"), partition=110_000).error_code.value == KAFKA_STORAGE_ERROR
    assert [each.offline for each in driver.broker.directories.all] == [None]
    assert client.produce("other", batch(b"v")).error_code.value == 0


def test_the_topics_of_one_request_are_widened_by_a_bounded_number_together(client: Any) -> None:
    client.create("a")
    client.create("b")
    limit = PARTITIONS_PER_REQUEST_MAX
    assert widen(client, ("a", limit), ("b", 100)) == [0, POLICY_VIOLATION]
    assert widen(client, ("a", limit), ("b", 2)) == [0, 0]


def create(client: Any, name: str, **more: Any) -> tuple[int, str]:
    topic = {"name": name, "num_partitions": 2, "replication_factor": 1, **more}
    [row] = client.ask(CREATE_TOPICS, topics=[topic], timeout=1000).topics
    return row.error_code.value, row.error_message or ""


def test_topics_of_a_cluster(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "TOPICS_MAX", 2)
    assert create(client, "a")[0] == create(client, "b")[0] == 0
    code, message = create(client, "c")
    assert code == POLICY_VIOLATION
    assert "the cluster has 2 topics" in message
    # Nor by being asked for.
    [topic] = client.ask(METADATA, topics=[{"name": "d"}], allow_auto_topic_creation=True).topics
    assert topic.error_code.value == POLICY_VIOLATION


def test_replicas_per_broker(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "REPLICAS_PER_BROKER_MAX", 5)
    assert create(client, "a")[0] == create(client, "b")[0] == 0
    by_hand = {"num_partitions": -1, "replication_factor": -1}
    two = [{"partition_index": number, "broker_ids": [1]} for number in range(2)]
    assert create(client, "c")[0] == POLICY_VIOLATION
    assert create(client, "c", **by_hand, assignments=two)[0] == POLICY_VIOLATION
    assert widen(client, ("a", 4)) == [POLICY_VIOLATION]
    assert widen(client, ("a", 3), ("b", 3)) == [0, POLICY_VIOLATION]
    assert create(client, "c", **by_hand, assignments=two[:1])[0] == 0
