"""Retention, through the core: by time and size, settings changed at run time, and the deletion of files."""

import os
from pathlib import Path
from typing import Any

import pytest

OFFSET_OUT_OF_RANGE, MESSAGE_TOO_LARGE, INVALID_TIMESTAMP = 1, 10, 32
CHECK_MS = 300_000
TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
VALUE = bytes(100_000)
HOUR_MS = 3_600_000


def alter(client: Any, kind: int, name: str, op: int = SET, **settings: str) -> None:
    """Change settings at run time; underscores for dots."""
    configs = [
        {"name": key.replace("_", "."), "config_operation": op, "value": value if op == SET else None}
        for key, value in settings.items()
    ]
    resources = [{"resource_type": kind, "resource_name": name, "configs": configs}]
    [row] = client.ask(44, resources=resources).responses
    assert row.error_code.value == 0, row.error_message


def start_of(client: Any, topic: str = "t") -> int:
    """The log's start, as a fetch that is out of range tells it."""
    offset: int = client.fetch(topic, 0).log_start_offset
    return offset


def check(driver: Any) -> None:
    driver.advance(CHECK_MS + 16)


def fill(client: Any, batch: Any, count: int = 30, topic: str = "t", **fields: Any) -> None:
    """Batches of a tenth of a megabyte: with segments of one MiB, ten in each."""
    for _ in range(count):
        assert client.produce(topic, batch(VALUE, **fields)).error_code.value == 0


def bases(driver: Any) -> list[int]:
    found: list[int] = driver.replica("t").log.bases
    return found


def names(tmp_path: Path, pattern: str) -> list[str]:
    return sorted(path.name for path in (tmp_path / "data-0" / "t-0").glob(pattern))


# --- the rules ----------------------------------------------------------------------------------------------


def test_by_time_of_the_newest_record_of_a_segment(driver: Any, client: Any, batch: Any) -> None:
    client.create("t", segment_bytes="1048576", retention_ms=str(HOUR_MS))
    fill(client, batch, 10, timestamp_ms=driver.now_ms - HOUR_MS)
    fill(client, batch, 12, timestamp_ms=driver.now_ms)
    assert bases(driver) == [0, 10, 20]
    check(driver)
    assert bases(driver) == [10, 20] and start_of(client) == 10
    driver.advance(HOUR_MS - 2 * CHECK_MS)
    assert bases(driver) == [10, 20]
    driver.advance(2 * CHECK_MS)
    assert bases(driver) == [22], "the active segment goes too, when all of it is too old"
    assert client.produce("t", batch(b"v")).base_offset == 22


@pytest.mark.parametrize("retention", ["-1", str(HOUR_MS)], ids=["for-ever", "future"])
def test_unlimited_time_and_timestamps_in_the_future_delete_nothing(
    driver: Any, client: Any, batch: Any, retention: str
) -> None:
    client.create(
        "t", segment_bytes="1048576", retention_ms=retention, message_timestamp_after_max_ms=str(2**62)
    )
    ahead = 0 if retention == "-1" else 5 * HOUR_MS
    fill(client, batch, 20, timestamp_ms=driver.now_ms + ahead)
    driver.advance(4 * HOUR_MS)
    assert start_of(client) == 0
    if ahead:
        driver.advance(3 * HOUR_MS)
        assert start_of(client) == 20


def test_log_append_time_is_measured_from_the_append(driver: Any, client: Any, batch: Any) -> None:
    client.create("t", message_timestamp_type="LogAppendTime", retention_ms=str(HOUR_MS))
    client.produce("t", batch(b"old", timestamp_ms=1))
    check(driver)
    assert start_of(client) == 0
    driver.advance(HOUR_MS)
    assert start_of(client) == 1


def test_by_size_while_at_least_retention_bytes_are_left(driver: Any, client: Any, batch: Any) -> None:
    client.create("t", segment_bytes="1048576", retention_ms="-1")
    fill(client, batch, 35)
    log = driver.replica("t").log
    assert bases(driver) == [0, 10, 20, 30]
    without_two = log.size - sum(segment.size for segment in log.segments[:2])
    alter(client, TOPIC, "t", retention_bytes=str(without_two + 1))
    check(driver)
    assert bases(driver) == [10, 20, 30]
    alter(client, TOPIC, "t", retention_bytes=str(without_two))
    check(driver)
    assert bases(driver) == [20, 30]


@pytest.mark.parametrize(
    ("policy", "kept"), [("compact", True), ("compact,delete", False), ("delete", False)]
)
def test_age_and_size_apply_to_topics_with_cleanup_policy_delete(
    driver: Any, client: Any, batch: Any, policy: str, kept: bool
) -> None:
    client.create(
        "t", cleanup_policy=policy, segment_bytes="1048576", retention_ms="1000", retention_bytes="1000",
        min_cleanable_dirty_ratio="1",
    )  # fmt: skip
    for number in range(20):
        client.produce("t", batch(VALUE, key=b"%d" % number, timestamp_ms=driver.now_ms))
    check(driver)
    assert (start_of(client) == 0) is kept


# --- settings changed at run time ---------------------------------------------------------------------------


def test_retention_of_a_topic_changed_at_run_time(driver: Any, client: Any, batch: Any) -> None:
    client.create("t")
    client.produce("t", batch(b"v", timestamp_ms=driver.now_ms))
    driver.advance(HOUR_MS)
    assert start_of(client) == 0
    alter(client, TOPIC, "t", retention_ms="60000")
    check(driver)
    assert start_of(client) == 1
    alter(client, TOPIC, "t", DELETE, retention_ms="")
    client.produce("t", batch(b"v", timestamp_ms=driver.now_ms))
    driver.advance(HOUR_MS)
    assert start_of(client) == 1


@pytest.mark.parametrize("broker", ["1", ""], ids=["one-broker", "all-brokers"])
def test_retention_of_a_broker_changed_at_run_time_reaches_logs_that_are_open(
    driver: Any, client: Any, batch: Any, broker: str
) -> None:
    for topic in ("t", "own"):
        client.create(topic, **({"retention_ms": str(24 * HOUR_MS)} if topic == "own" else {}))
        client.produce(topic, batch(b"v", timestamp_ms=driver.now_ms))
    alter(client, BROKER, broker, log_retention_ms="60000")
    check(driver)
    assert (start_of(client), start_of(client, "own")) == (1, 0)


def test_size_of_segments_changed_at_run_time(driver: Any, client: Any, batch: Any) -> None:
    client.create("t", segment_bytes="10485760")
    fill(client, batch, 15)
    assert bases(driver) == [0]
    alter(client, TOPIC, "t", segment_bytes="1048576")
    fill(client, batch, 11)
    assert bases(driver) == [0, 15, 25]
    alter(client, TOPIC, "t", DELETE, segment_bytes="")
    alter(client, BROKER, "", log_segment_bytes="2097152")
    fill(client, batch, 20)
    assert bases(driver) == [0, 15, 25, 45]


def test_age_of_segments_changed_at_run_time(driver: Any, client: Any, batch: Any) -> None:
    client.create("t")
    client.produce("t", batch(b"v", timestamp_ms=driver.now_ms))
    driver.advance(60_000)
    client.produce("t", batch(b"v", timestamp_ms=driver.now_ms))
    assert bases(driver) == [0]
    alter(client, TOPIC, "t", segment_ms="30000")
    client.produce("t", batch(b"v", timestamp_ms=driver.now_ms))
    assert bases(driver) == [0, 2]


def test_jitter_changed_at_run_time(driver: Any, client: Any, batch: Any) -> None:
    """As large as the age: at half the age about half of the segments roll."""
    client.create("t", 30)
    for jitter in (None, str(HOUR_MS)):
        if jitter is not None:
            alter(client, TOPIC, "t", segment_ms=str(HOUR_MS), segment_jitter_ms=jitter)
            driver.advance(HOUR_MS // 2)
        for partition in range(30):
            client.produce("t", batch(b"v", timestamp_ms=driver.now_ms), partition)
    assert 0 < sum(len(driver.replica("t", number).log.bases) - 1 for number in range(30)) < 30


def test_size_of_indexes_changed_at_run_time_applies_from_the_next_segment(
    driver: Any, client: Any, batch: Any
) -> None:
    client.create("t", index_interval_bytes="1", segment_ms="1000")
    alter(client, TOPIC, "t", segment_index_bytes="40")
    for _ in range(20):
        client.produce("t", batch(b"v", timestamp_ms=driver.now_ms))
    assert bases(driver) == [0]
    driver.advance(2000)
    for _ in range(20):
        client.produce("t", batch(b"v", timestamp_ms=driver.now_ms))
    assert len(bases(driver)) > 3
    assert all(segment.index.count <= 5 for segment in driver.replica("t").log.segments[1:])


def test_limits_on_records_changed_at_run_time(driver: Any, client: Any, batch: Any) -> None:
    client.create("t")
    assert client.produce("t", batch(VALUE)).error_code.value == 0
    alter(client, TOPIC, "t", max_message_bytes="1000")
    assert client.produce("t", batch(VALUE)).error_code.value == MESSAGE_TOO_LARGE
    alter(client, TOPIC, "t", DELETE, max_message_bytes="")
    alter(client, BROKER, "", message_max_bytes="2000")
    assert client.produce("t", batch(VALUE)).error_code.value == MESSAGE_TOO_LARGE
    early = batch(b"v", timestamp_ms=driver.now_ms + 10_000)
    assert client.produce("t", early).error_code.value == 0
    alter(client, TOPIC, "t", message_timestamp_after_max_ms="5000")
    assert client.produce("t", early).error_code.value == INVALID_TIMESTAMP
    alter(client, TOPIC, "t", message_timestamp_before_max_ms="5000")
    late = batch(b"v", timestamp_ms=driver.now_ms - 10_000)
    assert client.produce("t", late).error_code.value == INVALID_TIMESTAMP
    alter(client, TOPIC, "t", message_timestamp_type="LogAppendTime")
    assert client.produce("t", late).log_append_time is not None


def test_flushing_changed_at_run_time(driver: Any, client: Any, batch: Any) -> None:
    client.create("t")
    log = driver.replica("t").log
    client.produce("t", batch(b"v"))
    assert log.flushed_offset == 0
    alter(client, TOPIC, "t", flush_messages="3")
    client.produce("t", batch(b"v"))
    assert log.flushed_offset == 0
    client.produce("t", batch(b"v"))
    assert log.flushed_offset == 3
    alter(client, TOPIC, "t", flush_messages="1000000", flush_ms="2000")
    client.produce("t", batch(b"v"))
    driver.advance(1000)
    assert log.flushed_offset == 3
    driver.advance(3000)
    assert log.flushed_offset == 4


def test_the_interval_between_checks_is_the_brokers(drive: Any, batch: Any) -> None:
    driver = drive(log_retention_check_interval_ms="1000")
    client = driver.connect()
    client.create("t", retention_ms="1")
    client.produce("t", batch(b"v", timestamp_ms=driver.now_ms))
    driver.advance(900)
    assert start_of(client) == 0
    driver.advance(200)
    assert start_of(client) == 1


# --- the files, and who still reads them --------------------------------------------------------------------


@pytest.fixture
def old(driver: Any, client: Any, batch: Any) -> None:
    """Three segments of which two are about to go, by their age."""
    client.create("t", segment_bytes="1048576", retention_ms="1000", file_delete_delay_ms="60000")
    fill(client, batch, 20, timestamp_ms=driver.now_ms)
    fill(client, batch, 5, timestamp_ms=driver.now_ms + HOUR_MS // 2)


def deleted_descriptors(tmp_path: Path) -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if str(tmp_path) in target and "deleted" in target:
            found.append(target)
    return found


@pytest.mark.usefixtures("old")
def test_files_are_renamed_at_once_and_deleted_after_the_delay(
    driver: Any, client: Any, tmp_path: Path
) -> None:
    before = names(tmp_path, "0*")
    driver.advance(CHECK_MS + 8)
    assert bases(driver) == [20]
    gone = names(tmp_path, "*.deleted")
    assert [name for name in gone if name.endswith(".log.deleted")] == [
        f"{base:020}.log.deleted" for base in (0, 10)
    ]
    assert names(tmp_path, "*.log") == [f"{20:020}.log"] and set(before) > set(names(tmp_path, "*.log"))
    driver.advance(59_000)
    assert names(tmp_path, "*.deleted") == gone
    alter(client, TOPIC, "t", file_delete_delay_ms="1")
    driver.advance(2000)
    assert names(tmp_path, "*.deleted") == []
    assert not deleted_descriptors(tmp_path)


@pytest.mark.usefixtures("old")
def test_the_delay_changed_at_run_time(driver: Any, client: Any, tmp_path: Path) -> None:
    alter(client, TOPIC, "t", file_delete_delay_ms="0")
    driver.advance(CHECK_MS + 16)
    assert bases(driver) == [20] and names(tmp_path, "*.deleted") == []


@pytest.mark.usefixtures("old")
def test_a_response_being_sent_still_reads_a_deleted_file(driver: Any, client: Any, tmp_path: Path) -> None:
    log = driver.replica("t").log
    file, position, size = log.slice(3, 20, 1 << 20, whole_first=True)
    wanted = driver.disk.read(file, position, size)
    descriptor = driver.disk.pin(file)
    driver.advance(CHECK_MS + 60_016)
    assert bases(driver) == [20] and names(tmp_path, "*.deleted") == []
    assert os.pread(descriptor, size, position) == wanted and len(wanted) == size
    assert len(deleted_descriptors(tmp_path)) == 1
    driver.disk.unpin(file)
    assert not deleted_descriptors(tmp_path)


@pytest.mark.usefixtures("old")
def test_a_consumer_below_the_new_start_gets_offset_out_of_range(
    driver: Any, client: Any, values: Any
) -> None:
    check(driver)
    for offset in (0, 19):
        row = client.fetch("t", offset)
        assert (row.error_code.value, row.log_start_offset) == (OFFSET_OUT_OF_RANGE, 20)
    assert values(client.fetch("t", 20))[0] == VALUE


@pytest.mark.usefixtures("old")
def test_a_fetch_that_waits_below_the_new_start_is_answered(driver: Any, client: Any, fetching: Any) -> None:
    """It waits for more than there is; what it waits for will not come."""
    reader = driver.connect()
    reader.send(
        1, 12, **fetching({("t", 0): 3}, max_wait=10 * CHECK_MS, min_bytes=1 << 24, max_bytes=1 << 25)
    )
    assert not reader.answers
    check(driver)
    [answer] = reader.answers
    assert answer.responses[0].partitions[0].error_code.value == OFFSET_OUT_OF_RANGE


def test_files_of_a_truncated_log_are_not_deleted_with_a_dropped_segment(
    driver: Any, client: Any, batch: Any
) -> None:
    """Issue 8, bug 10, another way to it: segments are renamed once the new start is durable, and by then
    their names may be in use again."""
    client.create("t", file_delete_delay_ms="0")
    client.produce("t", batch(b"a"))
    replica = driver.replica("t")
    log = replica.log
    log.roll(driver.now_ms)
    driver.broker.log_maintenance.remove_segments(replica, log.drop_segments(1))
    dropped = log.begin_at(0, driver.now_ms)
    driver.broker.log_maintenance.truncated(replica, dropped, lambda: None)
    driver.turn()
    driver.advance(10)
    assert log.active.file.path.rpartition("/")[2] in driver.disk.list(log.directory)
