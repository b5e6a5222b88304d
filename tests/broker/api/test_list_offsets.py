import struct
from typing import Any

import pytest
from crc32c import crc32c

from ottla.log import log_reader

UNKNOWN_TOPIC_OR_PARTITION, UNSUPPORTED_VERSION, INVALID_REQUEST, UNKNOWN_LEADER_EPOCH = 3, 35, 42, 75
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


def offset_of(
    client: Any, timestamp: int, partition: int = 0, version: int | None = None, topic: str = "t"
) -> Any:
    rows = [{"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": -1}]
    answer = client.ask(2, version, replica_id=-1, topics=[{"name": topic, "partitions": rows}])
    return answer.topics[0].partitions[0]


@pytest.fixture(autouse=True)
def topic(client: Any, batch: Any) -> None:
    """Partition 0: offsets 0 to 4 at 1000, 1001, 2000, 2001, 1500; partition 1 is empty."""
    client.create("t", 2)
    client.produce("t", batch(b"a", b"b", timestamp_ms=1000))
    client.produce("t", batch(b"c", b"d", timestamp_ms=2000))
    client.produce("t", batch(b"e", timestamp_ms=1500))


def test_the_ends(client: Any) -> None:
    for version in range(1, 12):
        assert offset_of(client, EARLIEST, version=version).offset == 0
        assert offset_of(client, LATEST, version=version).offset == 5
    client.ask(21, topics=[{"name": "t", "partitions": [{"partition_index": 0, "offset": 2}]}])
    assert offset_of(client, EARLIEST).offset == 2
    assert offset_of(client, EARLIEST_LOCAL).offset == 2
    assert offset_of(client, LATEST).timestamp == -1


@pytest.mark.parametrize(
    ("asked", "offset", "timestamp"),
    [(0, 0, 1000), (1000, 0, 1000), (1001, 1, 1001), (1002, 2, 2000), (1500, 2, 2000), (2001, 3, 2001)],
)
def test_a_time_gives_the_first_record_that_is_not_older(
    client: Any, asked: int, offset: int, timestamp: int
) -> None:
    row = offset_of(client, asked)
    assert (row.error_code.value, row.offset, row.timestamp) == (0, offset, timestamp)


@pytest.mark.parametrize("codec", range(5))
def test_a_time_inside_a_compressed_batch(client: Any, batch: Any, codec: int) -> None:
    client.create("z")
    client.produce("z", batch(*[b"x" * 50] * 20, timestamp_ms=1000, codec=codec))
    assert offset_of(client, 1007, topic="z").offset == 7


def test_a_time_after_the_last_record(client: Any) -> None:
    row = offset_of(client, 2002)
    assert (row.error_code.value, row.offset, row.timestamp) == (0, -1, -1)


def test_the_newest_timestamp(client: Any) -> None:
    row = offset_of(client, MAX_TIMESTAMP)
    assert (row.error_code.value, row.offset, row.timestamp) == (0, 3, 2001)


def test_an_empty_partition(client: Any) -> None:
    for timestamp, offset in ((EARLIEST, 0), (LATEST, 0), (MAX_TIMESTAMP, -1), (0, -1), (EARLIEST_LOCAL, 0)):
        row = offset_of(client, timestamp, 1)
        assert (row.error_code.value, row.offset) == (0, offset)


def test_special_times_that_the_version_does_not_know(client: Any) -> None:
    for timestamp, version in (
        (MAX_TIMESTAMP, 6),
        (EARLIEST_LOCAL, 7),
        (LATEST_TIERED, 8),
        (-6, 10),
        (-7, 11),
    ):
        assert offset_of(client, timestamp, version=version).error_code.value == UNSUPPORTED_VERSION
    assert offset_of(client, LATEST_TIERED, version=9).offset == -1


def test_what_is_not_there(client: Any) -> None:
    assert offset_of(client, LATEST, 2).error_code.value == UNKNOWN_TOPIC_OR_PARTITION
    assert offset_of(client, LATEST, topic="u").error_code.value == UNKNOWN_TOPIC_OR_PARTITION


def test_a_leader_epoch_that_is_not_ours(client: Any) -> None:
    rows = [{"partition_index": 0, "timestamp": LATEST, "current_leader_epoch": epoch} for epoch in (0,)]
    answer = client.ask(2, replica_id=-1, topics=[{"name": "t", "partitions": rows}])
    assert answer.topics[0].partitions[0].error_code.value == 0
    rows[0]["current_leader_epoch"] = 3
    answer = client.ask(2, replica_id=-1, topics=[{"name": "t", "partitions": rows}])
    assert answer.topics[0].partitions[0].error_code.value == UNKNOWN_LEADER_EPOCH


def test_a_partition_asked_for_twice(client: Any) -> None:
    rows = [{"partition_index": 0, "timestamp": time} for time in (EARLIEST, LATEST)]
    answer = client.ask(2, replica_id=-1, topics=[{"name": "t", "partitions": rows}])
    assert [row.error_code.value for row in answer.topics[0].partitions] == [0, INVALID_REQUEST]


def test_only_what_a_consumer_may_see(drive: Any, batch: Any, producing: Any) -> None:
    """B5: under the durable policy the end is the end of what is synced."""
    driver = drive(log_flush_policy="durable")
    client, other = driver.connect(), driver.connect()
    client.create("t")
    client.produce("t", batch(b"a", timestamp_ms=1000))
    driver.are_syncs_held = True
    other.send(0, 9, **producing("t", batch(b"b", timestamp_ms=2000)))
    assert offset_of(client, LATEST).offset == 1
    assert offset_of(client, 1500).offset == -1
    driver.sync()
    driver.turn()
    assert offset_of(client, LATEST).offset == 2
    assert offset_of(client, 1500).offset == 1


def test_headers_that_promise_more_than_their_records_hold_are_believed(
    client: Any, batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log full of them must not be decoded from end to end by one small request."""
    lie = bytearray(batch(b"x", timestamp_ms=1000))
    struct.pack_into(">q", lie, 35, 5000)
    struct.pack_into(">I", lie, 17, crc32c(bytes(lie[21:])))
    for _ in range(50):
        assert client.produce("t", bytes(lie)).error_code.value == 0
    decoded: list[int] = []
    decode = log_reader.iter_batch

    def counted(found: bytes, *bounds: int, **more: int) -> Any:
        decoded.append(len(found))
        return decode(found, *bounds, **more)

    monkeypatch.setattr(log_reader, "iter_batch", counted)
    row = offset_of(client, 4000)
    assert (row.offset, row.timestamp) == (5, 5000)
    assert len(decoded) == 1
