"""Moving partitions between directories of a core without a shell, whose jobs can be held back."""

from typing import Any

import pytest

from ottla.ports.effects import RUN

LOG_DIR_NOT_FOUND, UNKNOWN_TOPIC_OR_PARTITION, KAFKA_STORAGE_ERROR = 57, 3, 56


class Held:
    """The jobs that the core asked for, to be run when the test says so."""

    def __init__(self, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._driver = driver
        self._jobs: list[Any] = []
        self._perform = driver._perform
        monkeypatch.setattr(driver, "_perform", self._hold)

    def _hold(self, effect: Any) -> None:
        (self._jobs.append if effect[0] == RUN else self._perform)(effect)

    def run_one(self) -> bool:
        if not self._jobs:
            return False
        self._perform(self._jobs.pop(0))
        self._driver.turn()
        return True

    def run_all(self) -> None:
        while self.run_one():
            pass


@pytest.fixture
def driver(drive: Any, tmp_path: Any) -> Any:
    return drive(
        log_dirs=f"{tmp_path}/a,{tmp_path}/b", log_segment_delete_delay_ms="0", log_segment_bytes="1000"
    )


@pytest.fixture
def held(driver: Any, monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(driver, monkeypatch)


def move(client: Any, path: str, topic: str = "t", number: int = 0) -> int:
    dirs = [{"path": path, "topics": [{"name": topic, "partitions": [number]}]}]
    code: int = client.ask(34, dirs=dirs).results[0].partitions[0].error_code.value
    return code


def rows(client: Any, path: str) -> dict[tuple[str, int], Any]:
    found = {row.log_dir: row for row in client.ask(35, topics=None).results}[path]
    return {(topic.name, row.partition_index): row for topic in found.topics for row in topic.partitions}


@pytest.fixture
def paths(driver: Any) -> list[str]:
    return [directory.path for directory in driver.broker.directories.all]


@pytest.fixture
def filled(client: Any, batch: Any, held: Held) -> int:
    client.create("t")
    held.run_all()
    for _ in range(30):
        client.produce("t", batch(b"x" * 200))
    return 30


def names(driver: Any, path: str) -> list[str]:
    return [name for name in driver.disk.list(path) if name.startswith("t-0")]


def test_a_move_is_seen_while_it_lasts(
    client: Any, driver: Any, held: Held, paths: list[str], filled: int, values: Any
) -> None:
    source, target = paths
    assert move(client, target) == 0
    row = rows(client, target)["t", 0]
    assert (row.is_future_key, row.offset_lag, row.partition_size) == (True, filled, 0)
    assert not rows(client, source)["t", 0].is_future_key
    lags = [filled]
    while held.run_one():
        if ("t", 0) in rows(client, source):
            lags.append(rows(client, target)["t", 0].offset_lag)
    assert lags == sorted(lags, reverse=True) and len(set(lags)) > 3
    row = rows(client, target)["t", 0]
    assert (row.is_future_key, row.offset_lag) == (False, 0)
    assert ("t", 0) not in rows(client, source)
    driver.advance(100)
    held.run_all()
    assert len(values(client.fetch("t", 0))) > 0
    assert names(driver, source) == [] and names(driver, target) == ["t-0"]


@pytest.mark.parametrize("steps", range(0, 12, 3))
def test_a_move_back_ends_it(
    client: Any, driver: Any, held: Held, paths: list[str], filled: int, steps: int, batch: Any
) -> None:
    source, target = paths
    move(client, target)
    for _ in range(steps):
        held.run_one()
    assert move(client, source) == 0
    held.run_all()
    driver.advance(100)
    held.run_all()
    assert names(driver, source) == ["t-0"] and names(driver, target) == []
    assert client.produce("t", batch(b"y")).base_offset == filled
    assert [directory.partitions for directory in driver.broker.directories.all] == [1, 0]


@pytest.mark.parametrize("steps", range(0, 15, 2))
def test_records_may_be_deleted_and_written_under_it(
    client: Any, driver: Any, held: Held, paths: list[str], filled: int, steps: int, batch: Any
) -> None:
    source, target = paths
    move(client, target)
    for _ in range(steps):
        held.run_one()
    client.ask(21, topics=[{"name": "t", "partitions": [{"partition_index": 0, "offset": 20}]}])
    client.produce("t", batch(b"z" * 900))
    held.run_all()
    driver.advance(100)
    held.run_all()
    log = driver.replica("t").log
    assert (log.parent, log.log_start_offset, log.next_offset) == (target, 20, filled + 1)
    assert log.bases[0] <= 20 < log.bases[1]
    assert names(driver, source) == [] and names(driver, target) == ["t-0"]
    kept = sorted(name for name in driver.disk.list(log.directory) if name.endswith(".log"))
    assert [int(name[:20]) for name in kept] == log.bases


@pytest.mark.parametrize("steps", range(0, 12, 2))
def test_a_topic_may_be_deleted_under_it(
    client: Any, driver: Any, held: Held, paths: list[str], filled: int, steps: int
) -> None:
    move(client, paths[1])
    for _ in range(steps):
        held.run_one()
    client.ask(20, topics=[{"name": "t"}])
    held.run_all()
    driver.advance(100)
    held.run_all()
    assert [names(driver, path) for path in paths] == [[], []]
    assert [directory.partitions for directory in driver.broker.directories.all] == [0, 0]


def test_what_a_producer_wrote_is_remembered_after_it(
    client: Any, held: Held, paths: list[str], filled: int, batch: Any
) -> None:
    sent = [batch(b"p", producer_id=7, producer_epoch=0, base_sequence=at) for at in range(3)]
    offsets = [client.produce("t", each).base_offset for each in sent]
    move(client, paths[1])
    held.run_all()
    assert [client.produce("t", each).base_offset for each in sent] == offsets


def test_a_full_target_ends_the_move_and_nothing_else(
    client: Any, driver: Any, held: Held, paths: list[str], filled: int, monkeypatch: Any, batch: Any
) -> None:
    from ottla.ports.disk import DiskError

    def refuse(source: str, target: str, **_more: Any) -> None:
        raise DiskError(f"{target}: No space left on device", full=True, path=target)

    with monkeypatch.context() as full:
        full.setattr(driver.disk, "copy", refuse)
        move(client, paths[1])
        held.run_all()
        driver.advance(100)
        held.run_all()
    assert any("could not be moved" in text for text in driver.said)
    assert names(driver, paths[1]) == [] and not driver.broker.directories.offline
    assert client.produce("t", batch(b"y")).error_code.value == 0


def test_a_log_that_is_not_made_yet_is_made_there(
    client: Any, driver: Any, paths: list[str], held: Held
) -> None:
    client.create("t")
    driver.replica("t")._log = None
    driver.disk.remove_dir(f"{paths[0]}/t-0")
    assert move(client, paths[1]) == 0
    assert names(driver, paths[0]) == [] and names(driver, paths[1]) == ["t-0"]


def test_what_is_refused(client: Any, driver: Any, paths: list[str], filled: int) -> None:
    assert move(client, "/nowhere") == LOG_DIR_NOT_FOUND
    assert move(client, paths[1], "nowhere") == UNKNOWN_TOPIC_OR_PARTITION
    assert move(client, paths[1], number=7) == UNKNOWN_TOPIC_OR_PARTITION
    driver.broker.go_offline(driver.broker.directories.all[1], "it broke")
    assert move(client, paths[1]) == KAFKA_STORAGE_ERROR
    driver.broker.go_offline(driver.broker.directories.all[0], "it broke too")
    assert move(client, paths[0]) == KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("steps", range(0, 15, 3))
def test_transactions_are_the_same_after_it(
    client: Any, driver: Any, held: Held, paths: list[str], filled: int, steps: int, batch: Any
) -> None:
    """One aborted before it begins, one under it, and one that stays open."""

    def write(producer: int) -> None:
        data = batch(b"t", producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
        replica = driver.replica("t")
        replica.log.append(data, replica.leader_epoch, driver.now_ms)
        driver.broker.appended(replica, replica.log, driver.now_ms)

    def abort(producer: int) -> None:
        replica = driver.replica("t")
        replica.log.append_marker(producer, 0, 0, False, replica.leader_epoch, driver.now_ms)
        driver.broker.appended(replica, replica.log, driver.now_ms)

    def seen() -> tuple[int, list[tuple[int, int]]]:
        """The last stable offset, and all that fetches from anywhere are told was aborted."""
        found: set[tuple[int, int]] = set()
        for offset in range(filled, driver.replica("t").high_watermark):
            row = client.fetch("t", offset, isolation_level=1)
            found |= {(each.producer_id, each.first_offset) for each in row.aborted_transactions}
        return row.last_stable_offset, sorted(found)

    write(1)
    abort(1)
    write(2)
    move(client, paths[1])
    for _ in range(steps):
        held.run_one()
    write(3)
    abort(2)
    before = seen()
    # 2 was aborted after 3 began, so nobody who reads committed records gets as far as its marker.
    assert before == (filled + 3, [(1, filled), (2, filled + 2)])
    held.run_all()
    assert driver.replica("t").log.parent == paths[1]
    assert seen() == before
    abort(3)
    assert seen() == (filled + 6, [(1, filled), (2, filled + 2), (3, filled + 3)])


def test_a_move_keeps_to_its_rate(
    client: Any, driver: Any, held: Held, paths: list[str], filled: int
) -> None:
    """Seven closed segments of almost 1000 bytes, at 1000 bytes a second."""
    name = "replica.alter.log.dirs.io.max.bytes.per.second"
    row = {"name": name, "config_operation": 0, "value": "1000"}
    client.ask(44, resources=[{"resource_type": 4, "resource_name": "1", "configs": [row]}])
    source, target = paths
    assert move(client, target) == 0
    held.run_all()
    seconds = 0
    while ("t", 0) in rows(client, source) and seconds < 60:
        driver.advance(1000)
        held.run_all()
        seconds += 1
    assert 4 <= seconds <= 12
