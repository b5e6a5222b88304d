from typing import Any

import pytest

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, POLICY_VIOLATION = 1, 3, 44


@pytest.fixture(autouse=True)
def topic(client: Any, batch: Any) -> None:
    client.create("t", 2)
    for number in range(5):
        client.produce("t", batch(b"%d" % number, b"+"))


def delete(client: Any, offset: int, partition: int = 0, topic: str = "t") -> tuple[int, int]:
    rows = [{"partition_index": partition, "offset": offset}]
    row = client.ask(21, topics=[{"name": topic, "partitions": rows}], timeout=1000).topics[0].partitions[0]
    return row.error_code.value, row.low_watermark


def test_the_start_moves_up_and_never_down(client: Any) -> None:
    assert delete(client, 3) == (0, 3)
    assert client.fetch("t", 3).log_start_offset == 3
    assert delete(client, 1) == (0, 3)
    assert delete(client, -1) == (0, 10)
    assert client.fetch("t", 10).high_watermark == 10


def test_a_fetch_in_the_middle_of_a_batch_that_is_deleted_in_part(client: Any, values: Any) -> None:
    delete(client, 3)
    assert values(client.fetch("t", 3)) == [b"1", b"+", b"2", b"+", b"3", b"+", b"4", b"+"]


@pytest.mark.parametrize("offset", [11, -2, 2**62])
def test_offsets_that_are_not_there(client: Any, offset: int) -> None:
    assert delete(client, offset) == (OFFSET_OUT_OF_RANGE, -1)
    assert client.fetch("t", 0).error_code.value == 0


def test_unknown_partitions_and_compacted_topics(client: Any) -> None:
    assert delete(client, 0, 7) == (UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert delete(client, 0, 0, "u") == (UNKNOWN_TOPIC_OR_PARTITION, -1)
    client.create("c", cleanup_policy="compact")
    assert delete(client, 0, 0, "c") == (POLICY_VIOLATION, -1)
    client.create("d", cleanup_policy="compact,delete")
    assert delete(client, 0, 0, "d") == (0, 0)


def test_whole_segments_go(client: Any, driver: Any, batch: Any, tmp_path: Any) -> None:
    client.create("rolled", segment_bytes="1048576", file_delete_delay_ms="1000")
    for _ in range(30):
        client.produce("rolled", batch(bytes(100_000)))
    directory = tmp_path / "data-0" / "rolled-0"
    before = len(list(directory.glob("*.log")))
    assert before == 3
    assert delete(client, 25, 0, "rolled") == (0, 25)
    driver.advance(2000)
    assert len(list(directory.glob("*.log"))) == 1
    assert list(directory.glob("*.deleted")) == []
    assert client.fetch("rolled", 25).error_code.value == 0
