"""Real broker processes on several log directories of which one fails: the others do not notice (R11, R13)."""

from pathlib import Path
from typing import Any

import pytest

from tests.crash.broker_process import (
    FETCH,
    METADATA,
    PRODUCE,
    BrokerProcess,
    Wire,
    batch_of,
    fetching,
    producing,
    wait_until,
)
from tests.crash.failing import EVERYTHING, READS, SYNCS, WRITES, Faults

KAFKA_STORAGE_ERROR, LEADER_NOT_AVAILABLE = 56, 5
DESCRIBE_LOG_DIRS, ALTER_REPLICA_LOG_DIRS = 35, 34
CLEAN_MARK = ".kafka_cleanshutdown"


class Directories:
    """A broker on three directories, with a topic of three partitions: one in each."""

    def __init__(self, tmp_path: Path, port: int, **settings: str) -> None:
        self.paths = [tmp_path / name for name in ("a", "b", "c")]
        self.faults = Faults(tmp_path / "rules")
        names = {"log.dirs": ",".join(map(str, self.paths))}
        names |= {name.replace("_", "."): value for name, value in settings.items()}
        self.broker = BrokerProcess(self.paths[0], port, names, faults=self.faults)

    def home(self, partition: int) -> Path:
        [home] = [path for path in self.paths if (path / f"t-{partition}").is_dir()]
        return home

    def partition_in(self, path: Path) -> int:
        [partition] = [number for number in range(3) if (path / f"t-{number}").is_dir()]
        return partition


@pytest.fixture
def three(tmp_path: Path, free_port: int) -> Any:
    directories = Directories(tmp_path, free_port)
    with directories.broker as broker, Wire(broker.address) as wire:
        wire.create("t", 3)
        for partition in range(3):
            wire.produce("t", batch_of(b"first"), partition)
        directories.wire = wire
        yield directories


def produce_code(wire: Any, partition: int) -> int:
    row = wire.ask(PRODUCE, 9, **producing("t", batch_of(b"more"), partition)).responses[0]
    code: int = row.partition_responses[0].error_code.value
    return code


def fetch_code(wire: Any, partition: int, **more: Any) -> int:
    row = wire.ask(FETCH, 11, **fetching("t", 0, partition, **more)).responses[0].partitions[0]
    code: int = row.error_code.value
    return code


def log_dirs(wire: Any) -> dict[str, Any]:
    return {row.log_dir: row for row in wire.ask(DESCRIBE_LOG_DIRS, 4, topics=None).results}


def refusal(broker: BrokerProcess) -> str:
    """What a broker says that does not start."""
    assert broker.spawn().end() != 0
    return broker.words


def test_new_partitions_go_where_the_fewest_are(three: Any) -> None:
    assert sorted(three.home(number).name for number in range(3)) == ["a", "b", "c"]
    ids = set()
    for path in three.paths:
        [line] = [x for x in (path / "meta.properties").read_text().splitlines() if "directory.id" in x]
        ids.add(line)
    assert len(ids) == 3
    assert (three.paths[0] / "metadata.journal").exists() and not (
        three.paths[1] / "metadata.journal"
    ).exists()


@pytest.mark.parametrize("operations", [WRITES, SYNCS], ids=["write", "sync"])
def test_one_directory_fails_and_the_others_go_on(three: Any, operations: Any) -> None:
    wire, bad = three.wire, three.paths[1]
    lost = three.partition_in(bad)
    kept = [number for number in range(3) if number != lost]
    with Wire(three.broker.address) as waiting:
        waiting.send(FETCH, 11, **fetching("t", 1, lost, max_wait_ms=50_000, min_bytes=1 << 20))
        three.faults.add(operations, under=bad, error="EIO")
        assert produce_code(wire, lost) == KAFKA_STORAGE_ERROR
        three.broker.wait_for(f"{bad} is offline")
        # Who waits for more hears of it at once.
        row = waiting.receive().responses[0].partitions[0]
        assert row.error_code.value == KAFKA_STORAGE_ERROR
    assert produce_code(wire, lost) == fetch_code(wire, lost) == KAFKA_STORAGE_ERROR
    for number in kept:
        assert (produce_code(wire, number), fetch_code(wire, number)) == (0, 0)
    topic = wire.ask(METADATA, 9, topics=[{"name": "t"}], allow_auto_topic_creation=False).topics[0]
    for row in topic.partitions:
        is_lost = row.partition_index == lost
        assert (row.leader_id, row.error_code.value) == ((-1, LEADER_NOT_AVAILABLE) if is_lost else (1, 0))
        assert row.offline_replicas == ((1,) if is_lost else ())
    rows = log_dirs(wire)
    assert {path: row.error_code.value for path, row in rows.items()} == {
        str(path): KAFKA_STORAGE_ERROR if path == bad else 0 for path in three.paths
    }
    # A new topic finds its place elsewhere.
    wire.create("u", 4)
    for number in range(4):
        wire.produce("u", batch_of(b"x"), number)
    assert not list(bad.glob("u-*"))
    three.faults.clear()
    assert three.broker.stop() == 1
    assert [path.name for path in three.paths if (path / CLEAN_MARK).exists()] == ["a", "c"]
    with three.broker, Wire(three.broker.address) as again:
        assert again.fetch("t", 0, lost)[0].value == b"first"
        assert len(again.fetch("t", 0, kept[0])) == 2
        assert produce_code(again, lost) == 0


def test_a_read_error_takes_its_directory_offline(three: Any) -> None:
    bad = three.paths[2]
    lost = three.partition_in(bad)
    three.faults.add(READS, under=bad, error="EIO", suffix=".log")
    with pytest.raises((AssertionError, ConnectionError)):
        three.wire.fetch("t", 0, lost)
    three.broker.wait_for(f"{bad} is offline")
    with Wire(three.broker.address) as wire:
        assert fetch_code(wire, lost) == KAFKA_STORAGE_ERROR
        for number in {0, 1, 2} - {lost}:
            assert fetch_code(wire, number) == 0


def test_a_full_directory_is_not_offline(three: Any) -> None:
    bad = three.paths[1]
    full = three.partition_in(bad)
    three.faults.add(WRITES, under=bad, error="ENOSPC")
    assert produce_code(three.wire, full) == KAFKA_STORAGE_ERROR
    assert fetch_code(three.wire, full) == 0
    assert [produce_code(three.wire, number) for number in range(3) if number != full] == [0, 0]
    three.faults.clear()
    assert produce_code(three.wire, full) == 0
    assert "offline" not in three.broker.words


def test_a_journal_that_fails_refuses_changes_and_data_goes_on(three: Any) -> None:
    three.faults.add(SYNCS, under=three.paths[0] / "metadata.journal", error="EIO")
    with pytest.raises(AssertionError, match="journal"):
        three.wire.create("u", 1)
    assert "metadata cannot be changed" in three.broker.wait_for("metadata cannot be changed")
    assert [produce_code(three.wire, number) for number in range(3)] == [0, 0, 0]


def test_a_directory_that_cannot_be_opened_is_offline_from_the_start(three: Any) -> None:
    bad = three.paths[1]
    lost = three.partition_in(bad)
    three.broker.stop()
    three.faults.add(EVERYTHING, under=bad, error="EACCES")
    with three.broker as broker, Wire(broker.address) as wire:
        assert "Permission denied" in broker.wait_for(f"{bad} is offline")
        assert produce_code(wire, lost) == fetch_code(wire, lost) == KAFKA_STORAGE_ERROR
        assert [produce_code(wire, number) for number in range(3) if number != lost] == [0, 0]
        # It is not begun anew elsewhere.
        assert not [path for path in three.paths if path != bad and (path / f"t-{lost}").exists()]
        assert broker.stop() == 1
    three.faults.clear()
    with three.broker, Wire(three.broker.address) as wire:
        assert wire.fetch("t", 0, lost)[0].value == b"first"


def test_a_partition_in_two_directories_is_refused(three: Any) -> None:
    three.broker.stop()
    source = three.home(0)
    target = next(path for path in three.paths if path != source)
    (target / "t-0").mkdir()
    for file in (source / "t-0").iterdir():
        (target / "t-0" / file.name).write_bytes(file.read_bytes())
    line = refusal(three.broker)
    assert "t-0 is in" in line
    assert str(source) in line and str(target) in line


def test_the_same_directory_twice_or_inside_another_is_refused(tmp_path: Path, free_port: int) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for dirs, words in ((("a", "link"), "the same directory"), (("a", "a/inner"), "is inside")):
        value = ",".join(str(tmp_path / name) for name in dirs)
        assert words in refusal(BrokerProcess(tmp_path / "a", free_port, {"log.dirs": value}))


def test_the_first_directory_is_where_the_metadata_is(three: Any, free_port: int) -> None:
    three.broker.stop()
    value = ",".join(map(str, reversed(three.paths)))
    line = refusal(BrokerProcess(three.paths[0], free_port, {"log.dirs": value}))
    assert f"metadata.log.dir={three.paths[0]}" in line


def test_a_partition_moves_while_it_is_written_and_read(three: Any) -> None:
    wire, source = three.wire, three.home(0)
    target = next(path for path in three.paths if path != source)
    count = 1
    for _ in range(40):
        wire.produce("t", batch_of(b"x" * 100_000), 0)
        count += 1
    topics = [{"name": "t", "partitions": [0]}]
    answer = wire.ask(ALTER_REPLICA_LOG_DIRS, 2, dirs=[{"path": str(target), "topics": topics}])
    assert answer.results[0].partitions[0].error_code.value == 0

    def moved() -> bool:
        nonlocal count
        wire.produce("t", batch_of(b"meanwhile"), 0)
        count += 1
        return (target / "t-0").is_dir()

    wait_until(moved, "the move")
    assert not (source / "t-0").exists()
    offset = 0
    while records := wire.fetch("t", offset, 0, bytes_max=1 << 20):
        assert [record.offset for record in records] == list(range(offset, offset + len(records)))
        offset += len(records)
    assert offset == count == wire.end_offset("t", 0)
    [row] = [
        partition
        for topic in log_dirs(wire)[str(target)].topics
        for partition in topic.partitions
        if (topic.name, partition.partition_index) == ("t", 0)
    ]
    assert (row.is_future_key, row.offset_lag) == (False, 0)
    three.broker.kill()
    with three.broker, Wire(three.broker.address) as again:
        assert again.end_offset("t", 0) == count


@pytest.mark.parametrize(
    ("path", "topic", "code"), [("/nowhere", "t", 57), ("", "nowhere", 3)], ids=["directory", "topic"]
)
def test_a_move_that_cannot_be(three: Any, path: str, topic: str, code: int) -> None:
    dirs = [{"path": path or str(three.paths[0]), "topics": [{"name": topic, "partitions": [0]}]}]
    answer = three.wire.ask(ALTER_REPLICA_LOG_DIRS, 2, dirs=dirs)
    assert answer.results[0].partitions[0].error_code.value == code
