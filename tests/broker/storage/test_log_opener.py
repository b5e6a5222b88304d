"""After a clean shutdown logs are opened when they are first needed, or a few per turn."""

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.core import Broker
from ottla.config.broker import BrokerConfig
from tests.broker.conftest import Driver, SeededEntropy

KAFKA_STORAGE_ERROR, OFFSET_OUT_OF_RANGE = 56, 1
LIST_OFFSETS, DELETE_RECORDS, DELETE_TOPICS, DESCRIBE_LOG_DIRS = 2, 21, 20, 35
PARTITIONS = 40


class Again(Driver):
    """The next run on the same directory, after its start and before its first turn."""

    def __init__(self, before: Driver) -> None:
        self.__dict__.update(before.__dict__)
        self.said = []
        self.clients = {}
        records = list(before.broker.image.records())
        config = BrokerConfig.from_properties(before.broker.config.properties)
        self.broker = Broker(config, self.disk, SeededEntropy(2), say=self.said.append)
        self.broker.start(records, self.now_ms)


@pytest.fixture
def before(driver: Any, client: Any, batch: Any) -> Any:
    """A first run, in which each of many logs got a record, and the first record of one was deleted."""
    client.create("t", PARTITIONS)
    for partition in range(PARTITIONS):
        client.produce("t", batch(b"%d" % partition), partition)
    client.produce("t", batch(b"more"), 3)
    rows = [{"partition_index": 3, "offset": 1}]
    client.ask(DELETE_RECORDS, topics=[{"name": "t", "partitions": rows}], timeout=1000)
    return driver


def stopped(driver: Any) -> Again:
    driver.broker.stop()
    return Again(driver)


def test_a_start_opens_no_log_and_the_turns_after_it_open_all(before: Any) -> None:
    again = stopped(before)
    replicas = list(again.broker.partitions.replicas())
    assert len(again.broker.partitions.unopened) == PARTITIONS
    assert not any(replica.opened for replica in replicas)
    assert again.broker.settle(again.now_ms), "there is more to do"
    opened = sum(replica.opened for replica in replicas)
    assert 0 < opened < PARTITIONS, "a few per turn"
    again.turn()
    assert all(replica.opened for replica in replicas) and not again.broker.partitions.unopened
    assert [replica.high_watermark for replica in replicas] == [1, 1, 1, 2, *[1] * (PARTITIONS - 4)]
    assert sum(directory.partitions for directory in again.broker.directories.all) == PARTITIONS
    assert again.said == []


def test_a_request_that_needs_a_log_opens_it(before: Any, values: Any, batch: Any, fetching: Any) -> None:
    again = stopped(before)
    # The background opens nothing.
    again.broker.partitions.to_create.clear()
    client = again.connect()
    assert values(client.fetch("t", 0, 7)) == [b"7"]
    assert client.fetch("t", 0, 3).error_code.value == OFFSET_OUT_OF_RANGE
    assert client.produce("t", batch(b"next"), 9).base_offset == 1
    rows = [{"partition_index": 11, "timestamp": -1, "current_leader_epoch": -1}]
    answer = client.ask(
        LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=[{"name": "t", "partitions": rows}]
    )
    assert answer.topics[0].partitions[0].offset == 1
    assert len(again.broker.partitions.unopened) == PARTITIONS - 4
    described = client.ask(DESCRIBE_LOG_DIRS, topics=None).results
    assert sum(len(topic.partitions) for topic in described[0].topics) == PARTITIONS


def test_checkpoints_and_a_shutdown_keep_unopened_logs(before: Any, batch: Any) -> None:
    again = stopped(before)
    again.broker.partitions.to_create.clear()
    client = again.connect()
    client.produce("t", batch(b"next"), 9)
    again.broker.log_maintenance.flush(again.replica("t", 9))
    again.turn()
    crashed = Again(again)
    assert not crashed.broker.partitions.unopened, "after a crash every log is recovered"
    assert crashed.replica("t", 3).log.log_start_offset == 1
    assert {crashed.replica("t", number).log.recovery_point for number in range(PARTITIONS)} == {1, 2}
    # A run that has opened no log can be shut down cleanly.
    third = stopped(stopped(crashed))
    assert third.replica("t", 3).log.log_start_offset == 1
    assert third.replica("t", 9).log.next_offset == 2
    third.close()


def test_a_topic_is_deleted_whose_logs_are_unopened(before: Any, tmp_path: Path) -> None:
    again = stopped(before)
    again.broker.partitions.to_create.clear()
    client = again.connect()
    client.ask(DELETE_TOPICS, 5, topic_names=["t"], timeout=1000)
    assert not again.broker.partitions.unopened
    assert not list((tmp_path / "data-0").glob("t-*[0-9]"))
    again.advance(120_000)
    assert not list((tmp_path / "data-0").glob("t-*"))
    assert again.broker.directories.all[0].partitions == 0


def test_a_directory_that_fails_takes_unopened_logs_offline(before: Any) -> None:
    again = stopped(before)
    [directory] = again.broker.directories.all
    again.broker.go_offline(directory, "the test says so")
    client = again.connect()
    assert client.fetch("t", 0, 5).error_code.value == KAFKA_STORAGE_ERROR
    assert not again.broker.partitions.unopened


def test_an_unopened_log_that_is_missing_is_re_created_and_logged(
    before: Any, tmp_path: Path, batch: Any
) -> None:
    before.broker.stop()
    for path in (tmp_path / "data-0" / "t-5").glob("*.log"):
        path.unlink()
    again = Again(before)
    assert again.connect().produce("t", batch(b"v"), 5).base_offset == 0
    assert any("t-5 is gone" in line for line in again.said)


def test_damage_is_logged_when_it_is_found(before: Any, tmp_path: Path) -> None:
    before.broker.stop()
    [path] = (tmp_path / "data-0" / "t-6").glob("*.log")
    path.write_bytes(b"")
    again = Again(before)
    assert again.said == []
    again.turn()
    assert any("t-6" in line and "DAMAGED" in line for line in again.said)
    # The recovery point for the next start is where the log ends now.
    text = (tmp_path / "data-0" / "recovery-point-offset-checkpoint").read_text()
    assert "t 6 0\n" in text and "t 7 1\n" in text
