"""Fetch and ListOffsets for those who read committed records only: where they stop, what they are told was aborted."""

import io
from functools import partial
from typing import Any

import pytest
from kio.serial import entity_writer

from ottla.broker.api.shared.api_table import APIS
from ottla.wire.decode import decode_response

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
VERSIONS = range(APIS[1].oldest, APIS[1].newest + 1)


class Writer:
    """Writes transactions behind the Produce API, so that no coordinator is needed."""

    def __init__(self, driver: Any, batch: Any, topic: str = "t") -> None:
        self.driver, self.topic = driver, topic
        # Markers have the broker's time; records of another year would make each segment roll.
        self.batch = partial(batch, timestamp_ms=driver.now_ms)
        self.sequences: dict[int, int] = {}

    def write(self, producer: int, *values: bytes) -> None:
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + len(values)
        data = self.batch(
            *values, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        replica = self.driver.replica(self.topic)
        replica.log.append(data, replica.leader_epoch, self.driver.now_ms)
        self._written(replica)

    def end(self, producer: int, *, commit: bool) -> None:
        replica = self.driver.replica(self.topic)
        replica.log.append_marker(producer, 0, 0, commit, replica.leader_epoch, self.driver.now_ms)
        self._written(replica)

    def _written(self, replica: Any) -> None:
        self.driver.broker.appended(replica, replica.log, self.driver.now_ms)
        self.driver.turn()


@pytest.fixture
def topic_id(client: Any) -> bytes:
    found: bytes = client.create("t")
    return found


@pytest.fixture
def writer(driver: Any, batch: Any, topic_id: bytes) -> Writer:
    return Writer(driver, batch)


def both(topic_id: bytes, version: int, level: int, offset: int = 0, **more: Any) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    return {
        "replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 24, "isolation_level": level,
        "session_epoch": -1, "topics": [{"topic": "t", "topic_id": topic_id, "partitions": [partition]}],
        **more,
    }  # fmt: skip


def told(row: Any) -> list[tuple[int, int]] | None:
    found = row.aborted_transactions
    return None if found is None else [(each.producer_id, each.first_offset) for each in found]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transactions", [0, 1, 200])
def test_every_version_is_what_kio_writes(
    client: Any, driver: Any, topic_id: bytes, writer: Writer, version: int, transactions: int
) -> None:
    """The answer's bytes, taken apart by kio and written again, with a list of none, one, or more than a byte counts."""
    for at in range(transactions):
        writer.write(at, b"x")
        writer.end(at, commit=False)
    client.produce("t", writer.batch(b"plain"))
    writer.write(1000, b"open")
    sent: list[bytes] = []
    take = client.sent
    client.sent = lambda data: (sent.append(data), take(data))
    for level in (READ_UNCOMMITTED, READ_COMMITTED):
        answer = client.ask(1, version, **both(topic_id, version, level))
        row = answer.responses[0].partitions[0]
        end = 2 * transactions + 1
        assert (row.error_code.value, row.high_watermark, row.last_stable_offset) == (0, end + 1, end)
        expected = [(at, 2 * at) for at in range(transactions)] if level == READ_COMMITTED else None
        assert told(row) == expected
        buffer = io.BytesIO()
        entity_writer(type(answer))(buffer, answer)
        head = 9 if version >= 12 else 8
        body = sent.pop()[head:]
        assert body == buffer.getvalue()
        assert decode_response(1, version, body, 0) == answer


def test_readers_of_committed_records_stop_where_a_transaction_is_open(
    client: Any, topic_id: bytes, writer: Writer, values: Any
) -> None:
    client.produce("t", writer.batch(b"0"))
    writer.write(1, b"1")
    client.produce("t", writer.batch(b"2"))
    for level, expected, listed in (
        (READ_UNCOMMITTED, [b"0", b"1", b"2"], None),
        (READ_COMMITTED, [b"0"], []),
    ):
        row = client.fetch("t", 0, isolation_level=level)
        assert (values(row), told(row)) == (expected, listed)
        assert (row.high_watermark, row.last_stable_offset) == (3, 1)
    row = client.fetch("t", 2, isolation_level=READ_COMMITTED)
    assert (row.error_code.value, values(row), told(row)) == (0, [], [])
    writer.end(1, commit=False)
    row = client.fetch("t", 2, isolation_level=READ_COMMITTED)
    assert (values(row), told(row), row.last_stable_offset) == ([b"2"], [(1, 1)], 4)


def test_errors_have_no_list(client: Any, topic_id: bytes) -> None:
    for topic, offset in (("nowhere", 0), ("t", 99)):
        row = client.fetch(topic, offset, isolation_level=READ_COMMITTED)
        assert row.error_code.value and (told(row), row.last_stable_offset) == (None, -1)


# --- waiting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_a_waiting_reader_sleeps_through_open_transactions_and_is_woken_by_the_marker(
    driver: Any, topic_id: bytes, writer: Writer, fetching: Any, values: Any, commit: bool
) -> None:
    reader = driver.connect()
    writer.write(1, b"a")
    reader.send(1, 12, **fetching({("t", 0): 0}, max_wait=10_000, isolation_level=READ_COMMITTED))
    [waiting] = [watcher.session for watcher in driver.replica("t").watchers]
    looks = []
    collect = type(waiting).collect
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(waiting), "collect", lambda self: (looks.append(self), collect(self))[1])
        for _ in range(20):
            writer.write(1, b"a")
            writer.write(2, b"b")
        # However much arrives behind an open transaction.
        writer.end(2, commit=True)
        assert looks == [] and reader.answers == []
        writer.end(1, commit=commit)
        assert looks == [waiting]
    [answer] = reader.answers
    row = answer.responses[0].partitions[0]
    assert len(values(row)) == 41
    assert told(row) == ([] if commit else [(1, 0)])
    assert driver.replica("t").watchers == {}


def test_a_waiting_reader_is_woken_by_what_concerns_it_besides(
    client: Any, driver: Any, topic_id: bytes, writer: Writer, fetching: Any
) -> None:
    for _ in range(2):
        client.produce("t", writer.batch(b"0"))
    writer.write(1, b"a")
    wanted = {"max_wait": 10_000, "min_bytes": 1 << 20, "isolation_level": READ_COMMITTED}
    for end in ("deleted", "gone"):
        reader = driver.connect()
        offset = 0 if end == "deleted" else 1
        reader.send(1, 12, **fetching({("t", 0): offset}, **wanted))
        assert reader.answers == []
        if end == "deleted":
            client.ask(21, topics=[{"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}])
        else:
            client.ask(20, topics=[{"name": "t"}])
        [answer] = reader.answers
        assert answer.responses[0].partitions[0].error_code.value == (1 if end == "deleted" else 3)


def test_under_the_durable_policy_a_marker_counts_when_it_is_synced(
    drive: Any, batch: Any, fetching: Any, values: Any
) -> None:
    driver = drive(log_flush_policy="durable")
    client = driver.connect()
    client.create("t")
    writer = Writer(driver, batch)
    writer.write(1, b"a")
    driver.are_syncs_held = True
    writer.end(1, commit=True)
    row = client.fetch("t", 0, isolation_level=READ_COMMITTED)
    assert (values(row), row.high_watermark, row.last_stable_offset) == ([], 1, 0)
    client.send(1, 12, **fetching({("t", 0): 0}, max_wait=10_000, isolation_level=READ_COMMITTED))
    assert client.answers == []
    driver.sync()
    driver.turn()
    [answer] = client.answers
    assert values(answer.responses[0].partitions[0]) == [b"a"]


def test_a_session_of_a_reader_of_committed_records(
    client: Any, driver: Any, topic_id: bytes, writer: Writer, fetching: Any, values: Any
) -> None:
    """It stays quiet while nothing is stable, and does not look at the partition again and again."""
    level = {"isolation_level": READ_COMMITTED}
    first = client.ask(1, 12, **fetching({("t", 0): 0}, max_wait=0, session_epoch=0, **level))
    writer.write(1, b"a")
    more = {"session_id": first.session_id, "max_wait": 0, **level}
    answer = client.ask(1, 12, **fetching({}, session_epoch=1, **more))
    # The high watermark moved, which is news.
    assert [row.high_watermark for topic in answer.responses for row in topic.partitions] == [1]
    for epoch in (2, 3):
        assert client.ask(1, 12, **fetching({}, session_epoch=epoch, **more)).responses == ()
    [partition] = driver.replica("t").watchers
    assert partition.session.dirty == {}
    writer.end(1, commit=False)
    answer = client.ask(1, 12, **fetching({}, session_epoch=4, **more))
    [row] = answer.responses[0].partitions
    assert (told(row), values(row)) == ([(1, 0)], [b"a"])


def test_a_session_that_changes_its_level(
    client: Any, topic_id: bytes, writer: Writer, fetching: Any, values: Any
) -> None:
    writer.write(1, b"a")
    first = client.ask(
        1, 12, **fetching({("t", 0): 0}, max_wait=0, session_epoch=0, isolation_level=READ_COMMITTED)
    )
    more = {"session_id": first.session_id, "max_wait": 0}
    client.ask(1, 12, **fetching({}, session_epoch=1, isolation_level=READ_COMMITTED, **more))
    answer = client.ask(1, 12, **fetching({}, session_epoch=2, isolation_level=READ_UNCOMMITTED, **more))
    assert values(answer.responses[0].partitions[0]) == [b"a"]


# --- ListOffsets, DescribeProducers -------------------------------------------------------------------------------


def list_offset(client: Any, version: int, timestamp: int, level: int) -> tuple[int, int]:
    rows = [{"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}]
    answer = client.ask(
        2, version, replica_id=-1, isolation_level=level, topics=[{"name": "t", "partitions": rows}]
    )
    row = answer.topics[0].partitions[0]
    return row.error_code.value, row.offset


@pytest.mark.parametrize("version", range(APIS[2].oldest, APIS[2].newest + 1))
def test_the_end_of_the_committed_records(client: Any, topic_id: bytes, writer: Writer, version: int) -> None:
    client.produce("t", writer.batch(b"0", timestamp_ms=1000))
    writer.write(1, b"1")
    client.produce("t", writer.batch(b"2", timestamp_ms=1500))
    for level in (READ_UNCOMMITTED, READ_COMMITTED):
        # The level is in the request from version 2 on.
        committed = level == READ_COMMITTED and version >= 2
        expected = {-1: 1 if committed else 3, -2: 0, 1000: 0, 1001: -1 if committed else 1}
        for timestamp, offset in expected.items():
            assert list_offset(client, version, timestamp, level) == (0, offset)
        newest = -1 if committed else 1
        for timestamp, since, offset in ((-3, 7, newest), (-4, 8, 0), (-5, 9, -1), (-6, 11, -1)):
            found = list_offset(client, version, timestamp, level)
            assert found == ((0, offset) if version >= since else (35, -1))
    writer.end(1, commit=True)
    assert list_offset(client, version, -1, READ_COMMITTED) == (0, 4)


def test_a_producer_with_an_open_transaction_is_described(
    client: Any, topic_id: bytes, writer: Writer
) -> None:
    client.produce("t", writer.batch(b"0"))
    writer.write(7, b"1")

    def described() -> tuple[int, int]:
        answer = client.ask(61, topics=[{"name": "t", "partition_indexes": [0]}])
        [producer] = answer.topics[0].partitions[0].active_producers
        return producer.current_txn_start_offset, producer.coordinator_epoch

    assert described() == (1, -1)
    writer.end(7, commit=True)
    assert described() == (-1, 0)


def test_retention_takes_the_index_away_with_its_segment(
    client: Any, driver: Any, topic_id: bytes, writer: Writer
) -> None:
    writer.write(1, b"a")
    writer.end(1, commit=False)
    replica = driver.replica("t")
    directory = replica.log.directory
    replica.log.roll(driver.now_ms)
    client.produce("t", writer.batch(b"b"))
    index = "00000000000000000000.txnindex"
    assert index in driver.disk.list(directory)
    client.ask(21, topics=[{"name": "t", "partitions": [{"partition_index": 0, "offset": 2}]}])
    assert index not in driver.disk.list(directory)
    assert index + ".deleted" in driver.disk.list(directory)
    driver.advance(70_000)
    assert index + ".deleted" not in driver.disk.list(directory)
