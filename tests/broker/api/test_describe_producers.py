from typing import Any

import pytest

UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC = 3, 17


def describe(client: Any, topic: str, *partitions: int) -> list[Any]:
    [answered] = client.ask(61, topics=[{"name": topic, "partition_indexes": partitions}]).topics
    assert answered.name == topic
    rows = list(answered.partitions)
    assert [row.partition_index for row in rows] == list(partitions)
    return rows


@pytest.fixture(autouse=True)
def topic(client: Any) -> None:
    client.create("t", 2)


def test_the_producers_of_each_partition(client: Any, driver: Any, batch: Any) -> None:
    client.produce("t", batch(b"without an id"))
    for sequence in (0, 3):
        driver.advance(10)
        client.produce("t", batch(*[b"x"] * 3, producer_id=7, producer_epoch=2, base_sequence=sequence))
    written_ms = driver.now_ms
    driver.advance(10)
    client.produce("t", batch(b"y", producer_id=8, producer_epoch=0, base_sequence=0))
    first, second = describe(client, "t", 0, 1)
    rows = {row.producer_id: row for row in first.active_producers}
    assert rows.keys() == {7, 8}
    seven = rows[7]
    assert (seven.producer_epoch, seven.last_sequence, seven.last_timestamp) == (2, 5, written_ms)
    assert (seven.coordinator_epoch, seven.current_txn_start_offset) == (-1, -1)
    assert (second.error_code.value, second.active_producers) == (0, ())


def test_a_log_that_nobody_needed_is_not_made(client: Any, driver: Any) -> None:
    driver.replica("t", 1)._log = None
    [row] = describe(client, "t", 1)
    assert (row.error_code.value, row.active_producers) == (0, ())
    assert not driver.replica("t", 1).opened


def test_what_is_not_there(client: Any) -> None:
    good, bad = describe(client, "t", 0, 2)
    assert (good.error_code.value, bad.error_code.value) == (0, UNKNOWN_TOPIC_OR_PARTITION)
    [row] = describe(client, "u", 0)
    assert row.error_code.value == UNKNOWN_TOPIC_OR_PARTITION
    assert "'u'" in row.error_message
    [row] = describe(client, "not a name", 0)
    assert row.error_code.value == INVALID_TOPIC
