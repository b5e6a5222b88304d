"""The log cleaner: which log it compacts and when, and outputs of a log that has changed meanwhile."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.log.compaction import Outcome, Task, clean
from ottla.ports.disk import DiskError
from ottla.records.record import Record, decode_batches, encode_batch
from tests.broker.conftest import Client, Driver

COMPACTED = {"cleanup_policy": "compact,delete", "segment_bytes": "500", "file_delete_delay_ms": "1000"}
DELETE_RECORDS, DELETE_TOPICS, ALTER_CONFIGS = 21, 20, 44
BACKOFF_MS = 1000


@pytest.fixture
def driver(drive: Callable[..., Driver]) -> Driver:
    return drive(log_cleaner_backoff_ms=str(BACKOFF_MS))


def fill(client: Client, topic: str, count: int = 30, keys: int = 3) -> None:
    for at in range(count):
        record = Record(0, client.driver.now_ms, b"k%d" % (at % keys), b"%d" % at * 20)
        assert client.produce(topic, encode_batch([record])).error_code.value == 0


def asked(driver: Driver, after_ms: int = 3 * BACKOFF_MS) -> tuple[Task, Callable[..., None]]:
    """The task that the worker is given next."""
    for _ in range(after_ms // 100):
        if driver.held_work:
            break
        driver.advance(100)
    return driver.held_work.pop(0)


def finish(driver: Driver, task: Task, done: Callable[..., None]) -> Outcome:
    outcome = clean(driver.disk, task)
    answer(driver, done, outcome, None)
    return outcome


def answer(driver: Driver, done: Callable[..., None], outcome: Outcome | None, error: str | None) -> None:
    driver.broker.now_ms = driver.now_ms
    done(outcome, error)
    driver.turn()


def values(driver: Driver, topic: str) -> list[tuple[int, bytes | None]]:
    log = driver.replica(topic).log
    return [
        (record.offset, record.key)
        for segment in log.segments
        for record in decode_batches(log.disk.read(segment.file, 0, segment.size))
    ]


def left_over(driver: Driver, topic: str) -> list[str]:
    folder = Path(driver.replica(topic).log.directory)
    return sorted(path.name for path in folder.iterdir() if path.suffix in (".swap", ".cleaned", ".deleted"))


def test_a_dirty_log_is_compacted_and_the_old_files_are_deleted_later(driver: Driver) -> None:
    client = driver.connect()
    client.create("t", **COMPACTED)
    fill(client, "t")
    task, done = asked(driver)
    log = driver.replica("t").log
    old = [segment.file for segment in log.segments[:-1]]
    finish(driver, task, done)
    assert log.cleaned_offset == log.active.base_offset
    assert len(values(driver, "t")) < 12
    assert any(name.endswith(".deleted") for name in left_over(driver, "t"))
    driver.advance(1500)
    assert left_over(driver, "t") == []
    assert log.segments[0].file not in old
    assert not driver.held_work, "there is nothing more to do"
    assert client.fetch("t", 0).error_code.value == 0
    checkpoint = Path(log.directory).parent / "cleaner-offset-checkpoint"
    assert checkpoint.read_text() == f"0\n1\nt 0 {log.cleaned_offset}\n"


def test_other_topics_are_left_alone(driver: Driver) -> None:
    client = driver.connect()
    client.create("t", **{**COMPACTED, "cleanup_policy": "delete"})
    fill(client, "t")
    driver.advance(5 * BACKOFF_MS)
    assert driver.held_work == []


def test_the_dirtiest_comes_first_and_one_at_a_time(driver: Driver) -> None:
    client = driver.connect()
    for topic in ("a", "b"):
        client.create(topic, **{**COMPACTED, "min_cleanable_dirty_ratio": "0.3"})
    fill(client, "a")
    finish(driver, *asked(driver))
    fill(client, "a", 20, keys=20)
    fill(client, "b", 20, keys=20)
    for topic in ("a", "b"):
        driver.broker.log_maintenance.flush(driver.replica(topic))
    driver.turn()
    task, done = asked(driver)
    assert task.directory.endswith("/b-0"), "all of it is dirty"
    driver.advance(5 * BACKOFF_MS)
    assert driver.held_work == []
    finish(driver, task, done)
    # Without waiting for the next look.
    assert driver.held_work[0][0].directory.endswith("/a-0")


def test_a_log_that_is_not_dirty_enough_is_compacted_after_max_compaction_lag(driver: Driver) -> None:
    client = driver.connect()
    client.create(
        "t", **{**COMPACTED, "min_cleanable_dirty_ratio": "1", "max_compaction_lag_ms": "60000", "segment_bytes": "5000"}
    )  # fmt: skip
    fill(client, "t")
    driver.advance(50_000)
    assert driver.held_work == []
    # No append comes that would close the active segment.
    task, done = asked(driver, 20_000)
    finish(driver, task, done)
    assert [key for _offset, key in values(driver, "t")] == [b"k0", b"k1", b"k2"]


def test_young_records_wait(driver: Driver) -> None:
    client = driver.connect()
    client.create("t", **{**COMPACTED, "min_compaction_lag_ms": "30000"})
    fill(client, "t")
    driver.advance(25_000)
    assert driver.held_work == []
    assert asked(driver, 10_000)


def test_a_setting_turns_it_off(drive: Callable[..., Driver]) -> None:
    driver = drive(log_cleaner_backoff_ms="1000", log_cleaner_enable="false")
    client = driver.connect()
    client.create("t", **COMPACTED)
    fill(client, "t")
    driver.advance(10_000)
    assert driver.held_work == []


# --- the log has changed meanwhile --------------------------------------------------------------------------


def delete_records(client: Client, offset: int) -> None:
    rows = [{"partition_index": 0, "offset": offset}]
    client.ask(DELETE_RECORDS, topics=[{"name": "t", "partitions": rows}], timeout=1000)


def test_an_output_of_deleted_segments_is_discarded(driver: Driver) -> None:
    client = driver.connect()
    client.create("t", **COMPACTED)
    fill(client, "t")
    task, done = asked(driver)
    outcome = clean(driver.disk, task)
    delete_records(client, 12)
    before = values(driver, "t")
    answer(driver, done, outcome, None)
    log = driver.replica("t").log
    assert {offset for offset, _key in values(driver, "t")} <= {offset for offset, _key in before}
    assert log.cleaned_offset == 0, "what is left was not cleaned as a whole"
    driver.advance(3000)
    assert [name for name in left_over(driver, "t") if not name.endswith(".deleted")] == []


def test_a_pass_that_fails_because_its_segments_are_deleted_is_not_logged(driver: Driver) -> None:
    client = driver.connect()
    client.create("t", **COMPACTED)
    fill(client, "t")
    task, done = asked(driver)
    delete_records(client, 12)
    with pytest.raises(DiskError) as caught:
        clean(driver.disk, task)
    answer(driver, done, None, str(caught.value))
    assert driver.said == []
    again, done = asked(driver)
    assert again.inputs[0].base_offset > 0
    finish(driver, again, done)
    assert len(values(driver, "t")) < 12


def test_an_outcome_for_a_topic_that_is_gone_or_no_longer_compacted(driver: Driver) -> None:
    client = driver.connect()
    client.create("t", **COMPACTED)
    fill(client, "t")
    task, done = asked(driver)
    before = values(driver, "t")
    outcome = clean(driver.disk, task)
    alter(client, "t", {"cleanup.policy": "delete"})
    answer(driver, done, outcome, None)
    assert values(driver, "t") == before
    assert left_over(driver, "t") == []

    alter(client, "t", {"cleanup.policy": "compact,delete"})
    task, done = asked(driver)
    outcome = clean(driver.disk, task)
    client.ask(DELETE_TOPICS, topics=[{"name": "t"}], timeout=1000)
    client.create("t", **COMPACTED)
    fill(client, "t", 5)
    answer(driver, done, outcome, None)
    assert len(values(driver, "t")) == 5
    assert left_over(driver, "t") == []
    assert not any("compacted" in line for line in driver.said)


def alter(client: Client, topic: str, configs: dict[str, str]) -> None:
    rows = [{"name": name, "config_operation": 0, "value": value} for name, value in configs.items()]
    [answer] = client.ask(
        ALTER_CONFIGS,
        resources=[{"resource_type": 2, "resource_name": topic, "configs": rows}],
        validate_only=False,
    ).responses
    assert answer.error_code.value == 0


def test_appends_go_on_while_a_pass_is_under_way(driver: Driver) -> None:
    client = driver.connect()
    client.create("t", **COMPACTED)
    fill(client, "t")
    task, done = asked(driver)
    fill(client, "t", 20)
    driver.advance(2000)
    finish(driver, task, done)
    found = values(driver, "t")
    assert [offset for offset, _key in found if offset >= task.end] == list(range(task.end, 50))


# --- failures -----------------------------------------------------------------------------------------------


def test_a_failed_pass_is_logged_once_and_retried_later(driver: Driver) -> None:
    client = driver.connect()
    client.create("t", **COMPACTED)
    fill(client, "t")
    before = values(driver, "t")
    waits = []
    for _ in range(3):
        begin = driver.now_ms
        _task, done = asked(driver, 200_000)
        waits.append(driver.now_ms - begin)
        answer(driver, done, None, "the worker process ended with -9")
    assert sum("could not be compacted" in line for line in driver.said) == 1
    assert waits[0] < 3000 <= 15_000 <= waits[1] < waits[2]
    assert values(driver, "t") == before
    task, done = asked(driver, 200_000)
    finish(driver, task, done)
    assert len(values(driver, "t")) < len(before)


def test_a_rename_that_fails_costs_the_pass_alone(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    client = driver.connect()
    client.create("t", **COMPACTED)
    fill(client, "t")
    task, done = asked(driver)
    outcome = clean(driver.disk, task)
    before = values(driver, "t")
    rename = driver.disk.rename

    def full(source: str, target: str) -> None:
        if target.endswith(".log.swap"):
            raise DiskError("no space left on device", full=True)
        rename(source, target)

    monkeypatch.setattr(driver.disk, "rename", full)
    run(driver, lambda: answer(driver, done, outcome, None))
    assert values(driver, "t") == before
    assert driver.replica("t").offline is None
    assert left_over(driver, "t") == []
    assert client.produce("t", encode_batch([Record(0, driver.now_ms, b"k", b"v")])).error_code.value == 0


def test_a_sync_that_fails_takes_the_directory_offline(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = driver.connect()
    client.create("t", **COMPACTED)
    fill(client, "t")
    task, done = asked(driver)
    outcome = clean(driver.disk, task)

    def broken(path: str) -> None:
        raise DiskError(f"{path}: input/output error", broken=True)

    monkeypatch.setattr(driver.disk, "sync_dir", broken)
    run(driver, lambda: answer(driver, done, outcome, None))
    assert driver.replica("t").offline is not None


def run(driver: Driver, action: Callable[[], None]) -> None:
    """Run an action with jobs whose errors reach `done`, as the runtime does."""
    perform = driver._perform

    def performing(effect: Any) -> None:
        try:
            perform(effect)
        except DiskError as error:
            effect[2](None, str(error))

    driver._perform = performing  # type: ignore[method-assign]
    try:
        action()
    finally:
        driver._perform = perform  # type: ignore[method-assign]
