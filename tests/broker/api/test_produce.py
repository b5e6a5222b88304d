import struct
from typing import Any

import pytest
from crc32c import crc32c

from ottla.records.record import decode_batches

CORRUPT_MESSAGE, UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT, MESSAGE_TOO_LARGE = 2, 3, 7, 10
INVALID_REQUIRED_ACKS, INVALID_TIMESTAMP, NO_TRANSACTIONAL_ID, INVALID_RECORD = 21, 32, 53, 87
OUT_OF_ORDER_SEQUENCE_NUMBER, DUPLICATE_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH = 45, 46, 47
KAFKA_STORAGE_ERROR, UNSUPPORTED_COMPRESSION_TYPE, UNKNOWN_TOPIC_ID = 56, 76, 100


def resealed(batch: bytes, **fields: int) -> bytes:
    """The batch with header fields changed and a CRC that fits."""
    places = {
        "magic": (16, ">b"), "attributes": (21, ">h"), "last_offset_delta": (23, ">i"),
        "max_timestamp": (35, ">q"), "record_count": (57, ">i"), "leader_epoch": (12, ">i"),
    }  # fmt: skip
    changed = bytearray(batch)
    for name, value in fields.items():
        struct.pack_into(places[name][1], changed, places[name][0], value)
    struct.pack_into(">I", changed, 17, crc32c(changed[21:]))
    return bytes(changed)


def old_message(value: bytes) -> bytes:
    """A message of magic 1, as clients wrote them before batches."""
    covered = (
        struct.pack(">bbq", 1, 0, 1_600_000_000_000)
        + struct.pack(">i", -1)
        + struct.pack(">i", len(value))
        + value
    )
    return struct.pack(">qiI", 0, len(covered) + 4, 0) + covered


@pytest.fixture(autouse=True)
def topic(client: Any) -> bytes:
    topic_id: bytes = client.create("t", 2)
    return topic_id


@pytest.mark.parametrize("acks", [1, -1])
def test_offsets_follow_each_other_in_each_partition_apart(client: Any, batch: Any, acks: int) -> None:
    assert client.produce("t", batch(b"a", b"b"), acks=acks).base_offset == 0
    assert client.produce("t", batch(b"c"), acks=acks).base_offset == 2
    assert client.produce("t", batch(b"d"), 1, acks=acks).base_offset == 0


def test_a_produce_without_acks_is_written_and_not_answered(
    client: Any, batch: Any, producing: Any, values: Any
) -> None:
    client.send(0, 9, is_answered=False, **producing("t", batch(b"quiet"), acks=0))
    assert client.answers == []
    assert values(client.fetch("t", 0)) == [b"quiet"]
    assert client.closed_because is None


def test_a_failed_produce_without_acks_closes_the_connection(client: Any, batch: Any, producing: Any) -> None:
    client.send(0, 9, is_answered=False, **producing("nowhere", batch(b"x"), acks=0))
    assert "acks=0" in client.closed_because


def test_any_leader_epoch_is_accepted_and_overwritten(client: Any, batch: Any) -> None:
    for epoch in (-1, 0, 7, 2**31 - 1):
        assert client.produce("t", resealed(batch(b"x"), leader_epoch=epoch)).error_code.value == 0
    records = client.fetch("t", 0).records
    at = 0
    while at < len(records):
        assert struct.unpack_from(">i", records, at + 12) == (0,)
        at += 12 + struct.unpack_from(">i", records, at + 8)[0]


def broken_batches(batch: Any) -> dict[str, tuple[bytes, int]]:
    good = batch(b"a", b"b")
    return {
        "wrong CRC": (good[:-1] + bytes([good[-1] ^ 1]), CORRUPT_MESSAGE),
        "shorter than a header": (good[:40], CORRUPT_MESSAGE),
        "cut": (good[:-3], CORRUPT_MESSAGE),
        "no bytes": (b"", INVALID_RECORD),
        "count too large": (resealed(good, record_count=3), INVALID_RECORD),
        "count zero": (resealed(good, record_count=0, last_offset_delta=-1), INVALID_RECORD),
        "last offset delta too large": (resealed(good, last_offset_delta=9), INVALID_RECORD),
        "control batch": (resealed(good, attributes=0x20), INVALID_RECORD),
        "unknown attribute": (resealed(good, attributes=0x100), INVALID_RECORD),
        "unknown codec": (resealed(good, attributes=5), UNSUPPORTED_COMPRESSION_TYPE),
        "two batches": (good + good, INVALID_RECORD),
        "magic 1 in the header": (resealed(good, magic=1), INVALID_RECORD),
        "messages of magic 1": (b"".join(old_message(b"x" * 40) for _ in range(3)), INVALID_RECORD),
        "a short message of magic 1": (old_message(b"x"), INVALID_RECORD),
        "magic 3": (resealed(good, magic=3), INVALID_RECORD),
        "transactional": (batch(b"a", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True), NO_TRANSACTIONAL_ID),
        "a producer id without sequence": (batch(b"a", producer_id=1, producer_epoch=0), INVALID_RECORD),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(broken_batches(lambda *_, **__: bytes(61))))
def test_a_batch_that_cannot_be_accepted_is_refused_and_changes_nothing(
    client: Any, batch: Any, name: str
) -> None:
    broken, code = broken_batches(batch)[name]
    row = client.produce("t", broken)
    assert row.error_code.value == code
    assert row.base_offset == -1
    assert row.error_message
    assert client.produce("t", batch(b"good")).base_offset == 0


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_other_acks_are_refused(client: Any, batch: Any, acks: int) -> None:
    assert client.produce("t", batch(b"x"), acks=acks).error_code.value == INVALID_REQUIRED_ACKS


def test_zstd_needs_version_7(client: Any, batch: Any) -> None:
    zstd = batch(b"x" * 100, codec=4)
    assert client.produce("t", zstd, version=6).error_code.value == UNSUPPORTED_COMPRESSION_TYPE
    assert client.produce("t", zstd, version=7).error_code.value == 0


def test_max_message_bytes_is_the_limit_of_a_batch(client: Any, batch: Any) -> None:
    client.create("small", max_message_bytes="200")
    by_size = {len(each): each for each in (batch(bytes(size)) for size in range(150))}
    assert client.produce("small", by_size[200]).error_code.value == 0
    row = client.produce("small", by_size[201])
    assert row.error_code.value == MESSAGE_TOO_LARGE
    assert "max.message.bytes" in row.error_message


def test_timestamps_too_far_ahead_are_refused(client: Any, batch: Any) -> None:
    now_ms = client.driver.now_ms
    hour_ms = 3_600_000
    assert client.produce("t", batch(b"x", timestamp_ms=now_ms + hour_ms - 1)).error_code.value == 0
    assert (
        client.produce("t", batch(b"x", timestamp_ms=now_ms + hour_ms + 1)).error_code.value
        == INVALID_TIMESTAMP
    )


def test_timestamps_too_far_behind_are_refused_where_a_bound_is_set(client: Any, batch: Any) -> None:
    client.create("fresh", message_timestamp_before_max_ms="1000")
    now_ms = client.driver.now_ms
    assert client.produce("fresh", batch(b"x", timestamp_ms=now_ms - 1000)).error_code.value == 0
    assert (
        client.produce("fresh", batch(b"x", timestamp_ms=now_ms - 1001)).error_code.value == INVALID_TIMESTAMP
    )
    assert client.produce("t", batch(b"x", timestamp_ms=5)).error_code.value == 0


def test_log_append_time_is_the_brokers(client: Any, batch: Any) -> None:
    client.create("stamped", message_timestamp_type="LogAppendTime")
    row = client.produce("stamped", batch(b"a", b"b", timestamp_ms=5))
    now_ms = client.driver.now_ms
    assert round(row.log_append_time.timestamp() * 1000) == now_ms
    assert [r.timestamp_ms for r in decode_batches(client.fetch("stamped", 0).records)] == [now_ms, now_ms]
    assert client.produce("t", batch(b"a")).log_append_time is None


@pytest.mark.parametrize("codec", range(5))
def test_a_compacted_topic_takes_no_record_without_a_key(client: Any, batch: Any, codec: int) -> None:
    client.create("compacted", cleanup_policy="compact")
    row = client.produce("compacted", batch(b"x", b"y", key=None, codec=codec))
    assert row.error_code.value == INVALID_RECORD
    assert client.produce("compacted", batch(b"x", None, codec=codec)).base_offset == 0


def test_unknown_topics_and_partitions(client: Any, batch: Any) -> None:
    assert client.produce("nowhere", batch(b"x")).error_code.value == UNKNOWN_TOPIC_OR_PARTITION
    for partition in (2, -1):
        assert client.produce("t", batch(b"x"), partition).error_code.value == UNKNOWN_TOPIC_OR_PARTITION
    for topic_id in (bytes(16), b"0123456789abcdef"):
        rows = [{"index": 0, "records": batch(b"x")}]
        topics = [{"topic_id": topic_id, "partition_data": rows}]
        [answer] = client.ask(0, 13, acks=-1, timeout=1000, topic_data=topics).responses
        assert answer.partition_responses[0].error_code.value == UNKNOWN_TOPIC_ID
        assert (answer.topic_id.bytes if answer.topic_id else bytes(16)) == topic_id


def test_one_bad_partition_does_not_spoil_the_others(client: Any, batch: Any, values: Any) -> None:
    rows = [{"index": 0, "records": b"junk"}, {"index": 1, "records": batch(b"good")}]
    topics = [{"name": "t", "partition_data": rows}, {"name": "no", "partition_data": rows[1:]}]
    answer = client.ask(0, 9, acks=-1, timeout=1000, topic_data=topics)
    codes = [[row.error_code.value for row in topic.partition_responses] for topic in answer.responses]
    assert codes == [[CORRUPT_MESSAGE, 0], [UNKNOWN_TOPIC_OR_PARTITION]]
    assert values(client.fetch("t", 0, 1)) == [b"good"]


# --- idempotent producers ---------------------------------------------------------------------------------------


def numbered(batch: Any, sequence: int, *values: bytes, epoch: int = 0) -> bytes:
    numbered_batch: bytes = batch(*values, producer_id=7, producer_epoch=epoch, base_sequence=sequence)
    return numbered_batch


def test_a_repeated_batch_is_answered_with_its_first_offset_and_kept_once(
    client: Any, batch: Any, values: Any
) -> None:
    batches = [numbered(batch, 2 * n, b"%d" % n, b"+") for n in range(5)]
    assert [client.produce("t", each).base_offset for each in batches] == [0, 2, 4, 6, 8]
    assert [client.produce("t", each).base_offset for each in batches] == [0, 2, 4, 6, 8]
    assert len(values(client.fetch("t", 0))) == 10


def test_a_repetition_older_than_five_batches_and_a_gap_are_refused(client: Any, batch: Any) -> None:
    for sequence in range(7):
        client.produce("t", numbered(batch, sequence, b"x"))
    assert client.produce("t", numbered(batch, 0, b"x")).error_code.value == DUPLICATE_SEQUENCE_NUMBER
    assert client.produce("t", numbered(batch, 8, b"x")).error_code.value == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert client.produce("t", numbered(batch, 7, b"x")).base_offset == 7


def test_an_older_epoch_is_fenced(client: Any, batch: Any) -> None:
    client.produce("t", numbered(batch, 0, b"x", epoch=1))
    assert client.produce("t", numbered(batch, 1, b"x", epoch=0)).error_code.value == INVALID_PRODUCER_EPOCH
    assert client.produce("t", numbered(batch, 0, b"x", epoch=2)).base_offset == 1


# --- waiting for the disk -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [1, -1])
def test_under_the_durable_policy_the_answer_waits_for_the_sync(
    drive: Any, batch: Any, producing: Any, values: Any, acks: int
) -> None:
    driver = drive(log_flush_policy="durable")
    client = driver.connect()
    client.create("t")
    driver.are_syncs_held = True
    client.send(0, 9, **producing("t", batch(b"x"), acks=acks))
    assert client.answers == []
    # B5: what is not synced is not seen.
    assert values(driver.connect().fetch("t", 0)) == []
    driver.sync()
    driver.turn()
    [answer] = client.answers
    assert answer.responses[0].partition_responses[0].error_code.value == 0
    assert values(driver.connect().fetch("t", 0)) == [b"x"]


def test_a_repetition_that_is_not_synced_yet_waits_too(drive: Any, batch: Any, producing: Any) -> None:
    driver = drive(log_flush_policy="durable")
    client = driver.connect()
    client.create("t")
    driver.are_syncs_held = True
    for _ in range(2):
        client.send(0, 9, **producing("t", numbered(batch, 0, b"x")))
    assert client.answers == []
    driver.sync()
    driver.turn()
    assert [a.responses[0].partition_responses[0].base_offset for a in client.answers] == [0, 0]


def test_a_produce_that_waits_too_long_times_out(drive: Any, batch: Any, producing: Any) -> None:
    driver = drive(log_flush_policy="durable")
    client = driver.connect()
    client.create("t")
    driver.are_syncs_held = True
    client.send(0, 9, **producing("t", batch(b"x")) | {"timeout": 100})
    driver.advance(99)
    assert client.answers == []
    driver.advance(20)
    [answer] = client.answers
    assert answer.responses[0].partition_responses[0].error_code.value == REQUEST_TIMED_OUT
    driver.sync()
    driver.turn()
    assert len(client.answers) == 1


def test_a_produce_that_waits_learns_of_the_topics_end(drive: Any, batch: Any, producing: Any) -> None:
    driver = drive(log_flush_policy="durable")
    client = driver.connect()
    client.create("t")
    driver.are_syncs_held = True
    client.send(0, 9, **producing("t", batch(b"x")))
    driver.connect().ask(20, topics=[{"name": "t"}])
    [answer] = client.answers
    assert answer.responses[0].partition_responses[0].error_code.value == UNKNOWN_TOPIC_OR_PARTITION
    driver.sync()


def test_after_a_failed_sync_nothing_is_acknowledged_any_more(drive: Any, batch: Any, producing: Any) -> None:
    """R11: a second fsync may succeed although the first lost the data."""
    driver = drive(log_flush_policy="durable")
    client = driver.connect()
    client.create("t")
    driver.are_syncs_held = True
    client.send(0, 9, **producing("t", batch(b"x")))
    driver.held_syncs.clear()
    driver.broker.sync_failed(driver.replica("t").log.directory, "input/output error")
    driver.turn()
    [answer] = client.answers
    assert answer.responses[0].partition_responses[0].error_code.value == KAFKA_STORAGE_ERROR
    client.answers.clear()
    assert client.produce("t", batch(b"y")).error_code.value == KAFKA_STORAGE_ERROR
    assert client.fetch("t", 0).error_code.value == KAFKA_STORAGE_ERROR
    assert any("offline" in text for text in driver.said)


def test_a_connection_that_goes_leaves_no_deadline_behind(drive: Any, batch: Any, producing: Any) -> None:
    driver = drive(log_flush_policy="durable")
    client = driver.connect()
    client.create("t")
    quiet = driver.broker.next_deadline_ms
    driver.are_syncs_held = True
    client.send(0, 9, **producing("t", batch(b"x")) | {"timeout": 10})
    assert driver.broker.next_deadline_ms < quiet
    client.disconnect()
    assert driver.broker.next_deadline_ms == quiet
    driver.sync()
    driver.turn()
