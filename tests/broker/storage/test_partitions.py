"""Replicas of new partitions are created in slices, one per turn."""

from typing import Any

import pytest

CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 19, 20, 37


@pytest.fixture
def slice_sizes(driver: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of partitions in each slice that the broker created replicas for."""
    found: list[int] = []
    add_replicas = driver.broker.partitions.add_replicas

    def counted(name: str, topic_id: bytes, partitions: Any) -> Any:
        found.append(len(partitions))
        return add_replicas(name, topic_id, partitions)

    monkeypatch.setattr(driver.broker.partitions, "add_replicas", counted)
    return found


def test_the_partitions_of_a_new_topic(driver: Any, client: Any, slice_sizes: list[int]) -> None:
    client.create("t", 50)
    assert slice_sizes == [50]
    assert len(driver.broker.partitions.by_name["t"].replicas) == 50


def test_partitions_that_are_added(driver: Any, client: Any, batch: Any, slice_sizes: list[int]) -> None:
    client.create("t", 2)
    client.ask(
        CREATE_PARTITIONS, 3, timeout=9_000, validate_only=False,
        topics=[{"name": "t", "count": 30, "assignments": None}],
    )  # fmt: skip
    assert slice_sizes == [2, 28]
    row = client.produce("t", batch(b"x"), partition=29)
    assert row.error_code == 0


def settle_once(driver: Any) -> bool:
    """One turn of the event loop; True if the broker wants another at once."""
    more = driver.broker.settle(driver.now_ms)
    outbox, driver.broker.outbox = driver.broker.outbox, []
    for effect in outbox:
        driver._perform(effect)
    return bool(more or outbox)


@pytest.fixture
def committed(driver: Any, client: Any) -> Any:
    """A topic of 1,100 partitions whose creation is committed, and nothing else has happened yet."""
    driver.are_proposals_held = True
    topics = [{"name": "wide", "num_partitions": 1100, "replication_factor": 1}]
    client.send(CREATE_TOPICS, topics=topics)
    driver.are_proposals_held = False
    driver.commit()
    return driver.broker.partitions.by_name["wide"]


def test_the_replicas_of_a_wide_topic_are_created_in_slices(driver: Any, client: Any, committed: Any) -> None:
    turns = [len(committed.replicas)]
    while not client.answers:
        assert settle_once(driver), "the broker wants no further turn, and the topic is not there"
        turns.append(len(committed.replicas))
    assert turns == [500, 1000, 1100]
    assert client.answers[0].topics[0].error_code.value == 0
    assert [replica.number for replica in committed.replicas.values()] == list(range(1100))
    assert all(replica.leading is not None for replica in committed.replicas.values())


def test_a_topic_that_is_deleted_before_all_its_replicas_are_there(driver: Any, committed: Any) -> None:
    [row] = driver.connect().ask(DELETE_TOPICS, topics=[{"name": "wide"}], timeout=9_000).responses
    assert row.error_code == 0
    assert not driver.broker.partitions.new
    assert "wide" not in driver.broker.partitions.by_name


def test_partitions_are_added_before_all_replicas_are_there(driver: Any, committed: Any, batch: Any) -> None:
    other = driver.connect()
    [row] = other.ask(
        CREATE_PARTITIONS, 3, timeout=9_000, validate_only=False,
        topics=[{"name": "wide", "count": 1110, "assignments": None}],
    ).results  # fmt: skip
    assert row.error_code == 0
    assert sorted(committed.replicas) == list(range(1110))
    assert other.produce("wide", batch(b"x"), partition=1109).error_code == 0
