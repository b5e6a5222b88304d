from typing import Any

import pytest

from ottla.ports.disk import DiskError

KAFKA_STORAGE_ERROR = 56


def describe(client: Any, topics: Any = None) -> Any:
    answer = client.ask(35, topics=topics)
    assert answer.error_code.value == 0
    [directory] = answer.results
    return directory


def sizes(directory: Any) -> dict[tuple[str, int], int]:
    found = {}
    for topic in directory.topics:
        for row in topic.partitions:
            assert (row.offset_lag, row.is_future_key) == (0, False)
            found[topic.name, row.partition_index] = row.partition_size
    return found


@pytest.fixture(autouse=True)
def topics(client: Any) -> None:
    client.create("t", 2)
    client.create("u", 1)


def test_every_partition_with_the_size_of_its_segments(client: Any, batch: Any, driver: Any) -> None:
    first, second = batch(b"one"), batch(b"two" * 100)
    client.produce("t", first, 1)
    client.produce("t", second, 1)
    client.produce("u", first)
    directory = describe(client)
    assert directory.log_dir == driver.broker.directories.all[0].path
    assert sizes(directory) == {("t", 0): 0, ("t", 1): len(first) + len(second), ("u", 0): len(first)}


def test_the_room_on_the_device(client: Any, driver: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(driver.disk, "free_bytes", lambda _path: (1000, 300))
    directory = describe(client)
    assert (directory.total_bytes, directory.usable_bytes, directory.is_cordoned) == (1000, 300, False)


def test_only_what_is_asked_for(client: Any) -> None:
    asked = [
        {"topic": "t", "partitions": [1, 1, 7]},
        {"topic": "t", "partitions": [0, 1]},
        {"topic": "nowhere", "partitions": [0]},
        {"topic": "u", "partitions": [3]},
    ]
    directory = describe(client, asked)
    assert [topic.name for topic in directory.topics] == ["t"]
    assert [row.partition_index for row in directory.topics[0].partitions] == [1, 0]
    assert describe(client, []).topics == ()


def test_a_log_that_nobody_needed_is_not_made(client: Any, driver: Any) -> None:
    driver.replica("u")._log = None
    assert ("u", 0) not in sizes(describe(client))
    assert not driver.replica("u").opened


def test_an_offline_directory(client: Any, driver: Any) -> None:
    driver.broker.go_offline(driver.broker.directories.all[0], "a sync failed")
    directory = describe(client)
    assert (directory.error_code.value, directory.topics) == (KAFKA_STORAGE_ERROR, ())


def test_a_device_that_does_not_answer(client: Any, driver: Any, monkeypatch: Any) -> None:
    def fail(path: str) -> tuple[int, int]:
        raise DiskError(f"{path}: input/output error")

    monkeypatch.setattr(driver.disk, "free_bytes", fail)
    directory = describe(client)
    assert (directory.error_code.value, directory.total_bytes) == (KAFKA_STORAGE_ERROR, -1)
