import struct
from typing import Any

import pytest

from ottla.ports.disk import DiskError

OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR = 1, 3, 56
FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, UNKNOWN_TOPIC_ID = 74, 75, 100


@pytest.fixture(autouse=True)
def topic(client: Any) -> bytes:
    topic_id: bytes = client.create("t", 3)
    return topic_id


def sizes(records: bytes | None) -> list[int]:
    """The size of each batch in what was fetched; the last may be cut."""
    found, at, records = [], 0, records or b""
    while at < len(records):
        size = 12 + struct.unpack_from(">i", records, at + 8)[0]
        found.append(min(size, len(records) - at))
        at += size
    return found


# --- what is read -------------------------------------------------------------------------------------------------


def test_a_fetch_in_the_middle_of_a_batch_returns_the_whole_batch(
    client: Any, batch: Any, values: Any
) -> None:
    client.produce("t", batch(b"0", b"1", b"2"))
    client.produce("t", batch(b"3", b"4"))
    for offset, expected in enumerate([b"01234", b"01234", b"01234", b"34", b"34"]):
        row = client.fetch("t", offset)
        assert b"".join(values(row)) == expected
        assert row.high_watermark == 5
    assert values(client.fetch("t", 5)) == []


def test_offsets_out_of_range(client: Any, batch: Any) -> None:
    client.produce("t", batch(b"0", b"1"))
    for offset in (-1, 3, 2**62):
        row = client.fetch("t", offset)
        assert row.error_code.value == OFFSET_OUT_OF_RANGE
        assert not row.records
    client.ask(21, topics=[{"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}])
    assert client.fetch("t", 0).error_code.value == OFFSET_OUT_OF_RANGE
    assert client.fetch("t", 1).error_code.value == 0


def test_leader_epochs_that_are_not_ours(client: Any) -> None:
    assert client.fetch("t", 0, leader_epoch=0).error_code.value == 0
    assert client.fetch("t", 0, leader_epoch=5).error_code.value == UNKNOWN_LEADER_EPOCH


def test_unknown_topics_partitions_and_ids(client: Any) -> None:
    assert client.fetch("nowhere", 0).error_code.value == UNKNOWN_TOPIC_OR_PARTITION
    assert client.fetch("t", 0, 9).error_code.value == UNKNOWN_TOPIC_OR_PARTITION
    partition = {"partition": 0, "partition_max_bytes": 100}
    for topic_id in (bytes(16), b"0123456789abcdef"):
        answer = client.ask(
            1, 13, max_wait=500, min_bytes=1, topics=[{"topic_id": topic_id, "partitions": [partition]}]
        )
        [row] = answer.responses[0].partitions
        assert row.error_code.value == UNKNOWN_TOPIC_ID


def test_a_topic_fetched_by_id(client: Any, batch: Any, values: Any, topic: bytes) -> None:
    client.produce("t", batch(b"x"))
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    answer = client.ask(1, topics=[{"topic_id": topic, "partitions": [partition]}])
    assert answer.responses[0].topic_id.bytes == topic
    assert values(answer.responses[0].partitions[0]) == [b"x"]


# --- how much is read ---------------------------------------------------------------------------------------------


def test_the_first_batch_comes_whole_however_small_the_limits(
    client: Any, batch: Any, fetching: Any, values: Any
) -> None:
    for partition in range(2):
        for letter in (b"a", b"b"):
            client.produce("t", batch(letter * 500), partition)
    offsets = {("t", 0): 0, ("t", 1): 0}
    answer = client.ask(1, 12, **fetching(offsets, partition_max_bytes=1, max_bytes=1))
    first, second = answer.responses[0].partitions
    assert values(first) == [b"a" * 500]
    assert not second.records


def test_partition_max_bytes_cuts_each_partition_after_the_first_batch(
    client: Any, batch: Any, fetching: Any
) -> None:
    size = len(batch(bytes(500)))
    for partition in range(2):
        for _ in range(3):
            client.produce("t", batch(bytes(500)), partition)
    offsets = {("t", 0): 0, ("t", 1): 0}
    answer = client.ask(1, 12, **fetching(offsets, partition_max_bytes=size + 100))
    assert [sizes(row.records) for row in answer.responses[0].partitions] == [[size, 100], [size, 100]]


def test_max_bytes_cuts_the_whole_answer(client: Any, batch: Any, fetching: Any) -> None:
    size = len(batch(bytes(500)))
    for partition in range(3):
        client.produce("t", batch(bytes(500)), partition)
    offsets = {("t", partition): 0 for partition in range(3)}
    for max_bytes, expected in ((size + 10, [[size], [], []]), (2 * size, [[size], [size], []])):
        answer = client.ask(1, 12, **fetching(offsets, max_bytes=max_bytes))
        assert [sizes(row.records) for row in answer.responses[0].partitions] == expected


def test_the_brokers_own_limit_holds_too(drive: Any, batch: Any) -> None:
    client = drive(fetch_max_bytes="1024").connect()
    client.create("t")
    for _ in range(20):
        client.produce("t", batch(bytes(500)))
    assert sum(sizes(client.fetch("t", 0).records)) == 1024


def test_reading_goes_on_across_segments(client: Any, batch: Any, values: Any) -> None:
    client.create("rolled", segment_bytes="1048576", max_message_bytes="2000000")
    for number in range(30):
        client.produce("rolled", batch(b"%03d" % number + bytes(100_000)))
    assert len(client.driver.replica("rolled").log.segments) > 2
    seen: list[bytes] = []
    while len(seen) < 30:
        seen += [value[:3] for value in values(client.fetch("rolled", len(seen))) if value is not None]
    assert seen == [b"%03d" % number for number in range(30)]


# --- waiting (A4) -------------------------------------------------------------------------------------------------


def test_a_fetch_waits_for_data_and_is_answered_when_it_comes(
    client: Any, driver: Any, batch: Any, fetching: Any, values: Any
) -> None:
    reader = driver.connect()
    reader.send(1, 12, **fetching({("t", 0): 0}, max_wait=10_000))
    assert reader.answers == []
    driver.advance(100)
    client.produce("t", batch(b"x"))
    [answer] = reader.answers
    assert values(answer.responses[0].partitions[0]) == [b"x"]
    assert driver.replica("t").watchers == {}


def test_a_fetch_waits_for_min_bytes(
    client: Any, driver: Any, batch: Any, fetching: Any, values: Any
) -> None:
    reader = driver.connect()
    size = len(batch(b"x"))
    reader.send(1, 12, **fetching({("t", 0): 0, ("t", 1): 0}, max_wait=10_000, min_bytes=2 * size + 1))
    client.produce("t", batch(b"x"))
    client.produce("t", batch(b"x"), 1)
    assert reader.answers == []
    client.produce("t", batch(b"x"))
    [answer] = reader.answers
    assert [len(values(row)) for row in answer.responses[0].partitions] == [2, 1]


def test_a_fetch_is_answered_with_what_there_is_when_time_is_up(
    client: Any, driver: Any, batch: Any, fetching: Any, values: Any
) -> None:
    reader = driver.connect()
    reader.send(1, 12, **fetching({("t", 0): 0, ("t", 1): 0}, max_wait=1000, min_bytes=1 << 20))
    client.produce("t", batch(b"x"))
    driver.advance(999)
    assert reader.answers == []
    driver.advance(20)
    [answer] = reader.answers
    assert [values(row) for row in answer.responses[0].partitions] == [[b"x"], []]
    assert driver.replica("t").watchers == {}


@pytest.mark.parametrize("more", [{"max_wait": 0}, {"min_bytes": 0}])
def test_a_fetch_that_may_not_wait_does_not(client: Any, fetching: Any, more: Any) -> None:
    answer = client.ask(1, 12, **fetching({("t", 0): 0}, **more))
    assert answer.responses[0].partitions[0].error_code.value == 0


def test_an_error_in_one_partition_does_not_wait(client: Any, fetching: Any) -> None:
    answer = client.ask(1, 12, **fetching({("t", 0): 0, ("t", 9): 0}))
    assert [row.error_code.value for row in answer.responses[0].partitions] == [0, UNKNOWN_TOPIC_OR_PARTITION]


def test_a_waiting_fetch_learns_of_the_topics_end(
    client: Any, driver: Any, fetching: Any, topic: bytes
) -> None:
    reader, reader_by_id = driver.connect(), driver.connect()
    reader.send(1, 12, **fetching({("t", 0): 0}, max_wait=10_000))
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    reader_by_id.send(
        1, 13, max_wait=10_000, min_bytes=1, topics=[{"topic_id": topic, "partitions": [partition]}]
    )
    client.ask(20, topics=[{"name": "t"}])
    [answer], [answer_by_id] = reader.answers, reader_by_id.answers
    assert answer.responses[0].partitions[0].error_code.value == UNKNOWN_TOPIC_OR_PARTITION
    assert answer_by_id.responses[0].partitions[0].error_code.value == UNKNOWN_TOPIC_ID


def test_a_waiting_fetch_learns_that_its_records_were_deleted(
    client: Any, driver: Any, batch: Any, fetching: Any
) -> None:
    client.produce("t", batch(b"a", b"b"))
    reader = driver.connect()
    reader.send(1, 12, **fetching({("t", 0): 0}, max_wait=10_000, min_bytes=1 << 20))
    assert reader.answers == []
    client.ask(21, topics=[{"name": "t", "partitions": [{"partition_index": 0, "offset": 2}]}])
    [answer] = reader.answers
    assert answer.responses[0].partitions[0].error_code.value == OFFSET_OUT_OF_RANGE


def test_many_waiting_fetches_are_woken_by_one_produce(
    client: Any, driver: Any, batch: Any, fetching: Any, values: Any
) -> None:
    readers = [driver.connect() for _ in range(400)]
    for reader in readers:
        reader.send(1, 12, **fetching({("t", 0): 0}, max_wait=10_000))
    client.produce("t", batch(b"x"))
    assert all(values(reader.answers[0].responses[0].partitions[0]) == [b"x"] for reader in readers)
    assert driver.replica("t").watchers == {}


def test_a_connection_that_goes_leaves_no_watcher_and_no_deadline(driver: Any, fetching: Any) -> None:
    quiet = driver.broker.next_deadline_ms
    reader = driver.connect()
    reader.send(1, 12, **fetching({("t", 0): 0, ("t", 1): 0}, max_wait=10))
    assert len(driver.replica("t").watchers) == 1
    assert driver.broker.next_deadline_ms < quiet
    reader.disconnect()
    assert driver.replica("t").watchers == {} == driver.replica("t", 1).watchers
    assert driver.broker.next_deadline_ms == quiet
    assert not driver.broker.fetch_sessions.woken


def test_nobody_waits_for_more_than_he_may_get(client: Any, batch: Any, fetching: Any) -> None:
    for _ in range(5):
        client.produce("t", batch(b"x" * 1000))
    answer = client.ask(1, 12, **fetching({("t", 0): 0}, max_wait=500, min_bytes=1 << 20, max_bytes=3000))
    assert len(answer.responses[0].partitions[0].records) == 3000


def test_a_disk_that_cannot_be_read_is_an_error_of_that_partition(
    client: Any, driver: Any, batch: Any, fetching: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for one who waits: another whose time is up at the same moment is answered all the same."""
    for _ in range(3):
        client.produce("t", batch(b"x" * 1000))
    other = driver.connect()
    client.send(1, 12, **fetching({("t", 0): 0}, max_wait=500, min_bytes=1 << 20, partition_max_bytes=100))
    other.send(1, 12, **fetching({("t", 0): 3}, max_wait=500))

    def refuse(*_arguments: Any) -> bytes:
        raise DiskError("Input/output error")

    monkeypatch.setattr(driver.disk, "read", refuse)
    driver.advance(1000)
    codes = [each.answers.pop().responses[0].partitions[0].error_code.value for each in (client, other)]
    assert codes == [KAFKA_STORAGE_ERROR, 0]
