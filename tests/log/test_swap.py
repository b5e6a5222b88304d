"""A pass that is killed after each of its steps, and reopened: no record is lost or duplicated.

On a simulated disk that drops or reorders unsynced changes, and on real files, where a killed process leaves
what it wrote.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ottla.log import swap
from ottla.log.compaction import clean
from ottla.log.partition_log import PartitionLog
from ottla.log.recovery import open_log
from ottla.ports.disk import Disk, DiskError
from ottla.records.record import Record, decode_batches
from ottla.runtime.disk import SystemDisk
from testkit.sim.disk import PowerCut, SimDisk
from tests.log.compaction_pass import compact, keyed, swap_in, task_of
from tests.log.log_bench import NOW, TOPIC_ID_FILE, config

CONFIG = config(cleanup_policy="compact", segment_bytes=900, index_interval_bytes=60, delete_retention_ms=0)


def make_log(disk: Disk, directory: str) -> PartitionLog:
    """Several closed segments, with repeated keys, an aborted transaction, and an active segment."""
    log = PartitionLog.create(
        disk, directory, CONFIG, start_offset=0, now_ms=NOW, topic_id_file=TOPIC_ID_FILE
    )
    for at in range(24):
        log.append(keyed((b"k%d" % (at % 7), b"%d" % at), (b"once%d" % at, b"x")), 0, NOW)
        if at % 3 == 2:
            log.roll(NOW)
    log.append(
        keyed((b"k1", b"aborted"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True),
        0,
        NOW,
    )
    log.append_marker(5, 0, 0, False, 0, NOW)
    log.append(keyed((b"k2", b"last")), 0, NOW)
    log.roll(NOW)
    log.append(keyed((b"k3", b"active")), 0, NOW)
    flush(disk, log)
    return log


def flush(disk: Disk, log: PartitionLog) -> None:
    made = log.begin_flush()
    assert made is not None
    for file in made.files:
        disk.sync(file)
    disk.replace_file(log.snapshot_path(made.end_offset), made.snapshot)
    log.flushed(made)
    disk.sync_dir(log.directory.rpartition("/")[0] or "/")


def reopen(disk: Disk, directory: str, recovery_point: int) -> PartitionLog:
    found = open_log(
        disk, directory, CONFIG,
        recovery_point=recovery_point, log_start_offset=0, clean=False, now_ms=NOW,
    )  # fmt: skip
    assert found is not None
    assert not found.damaged
    assert found.cut_bytes == 0
    return found.log


def read(log: PartitionLog) -> list[Record]:
    return [
        record
        for segment in log.segments
        for record in decode_batches(log.disk.read(segment.file, 0, segment.size))
    ]


def check(log: PartitionLog, before: list[Record], after: list[Record]) -> None:
    """Each segment is an old or a new one, and they do not overlap."""
    found = read(log)
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets)), "old and new segments overlap"
    assert set(after) <= set(found), "a record that should stay is gone"
    assert set(found) <= set(before)
    ends = [segment.next_offset for segment in log.segments]
    assert ends[:-1] == log.bases[1:]
    for record in after:
        piece = log.slice(record.offset, log.next_offset, 1, whole_first=True)
        assert piece is not None
        assert record in decode_batches(log.disk.read(piece.file, piece.position, piece.size))


def expected() -> tuple[list[Record], list[Record], int]:
    """All records of the log, those that a complete pass leaves, and its recovery point."""
    disk = SimDisk(Random(0), strict=True)
    log = make_log(disk, "/t-0")
    before = read(log)
    compact(log)
    return before, read(log), log.recovery_point


BEFORE, AFTER, RECOVERY_POINT = expected()


def test_the_pass_is_worth_killing() -> None:
    assert len(AFTER) < len(BEFORE) - 10
    disk = SimDisk(Random(0), strict=True)
    log = make_log(disk, "/t-0")
    count = len(log.segments)
    compact(log)
    assert count - 3 > len(log.segments) > 2
    assert any(name.endswith(".txnindex") for name in disk.list("/t-0"))


def steps() -> int:
    disk = SimDisk(Random(0), strict=True)
    log = make_log(disk, "/t-0")
    start = disk.steps
    whole_pass(log)
    return disk.steps - start


def whole_pass(log: PartitionLog) -> None:
    task = task_of(log)
    assert task is not None
    for path in swap_in(log, task, clean(log.disk, task)):
        log.disk.remove(path)


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_after_each_step(seed: int) -> None:
    """Seed 0 drops everything unsynced; the others keep any part of it."""
    for step in range(1, steps() + 2):
        disk = SimDisk(Random(seed * 1000 + step), strict=seed == 0)
        log = make_log(disk, "/t-0")
        disk.cut_after = disk.steps + step
        with suppress(PowerCut):
            whole_pass(log)
        disk.heal()
        disk.crash()
        # The next start is cut as well, and the one after that.
        for attempt in (1 + step % 7, 1 + step % 3):
            disk.cut_after = disk.steps + attempt
            with suppress(PowerCut):
                reopen(disk, "/t-0", RECOVERY_POINT)
            disk.heal()
            disk.crash()
        log = reopen(disk, "/t-0", RECOVERY_POINT)
        check(log, BEFORE, AFTER)
        assert not [name for name in disk.list("/t-0") if name.endswith((".swap", ".cleaned", ".deleted"))]
        # And compaction continues from there.
        compact(log)
        assert set(AFTER) <= set(read(log))


class Killed(BaseException):
    """The process is gone."""


class MortalDisk(SystemDisk):
    """The real disk, up to a number of changes."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 1 << 40

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("write", "truncate", "rename", "remove", "sync", "sync_dir"):
            return found

        def change(*arguments: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise Killed
            return found(*arguments)

        return change


def test_a_process_killed_after_each_step(tmp_path: Path) -> None:
    step, done = 0, False
    while not done:
        disk = MortalDisk()
        directory = str(tmp_path / f"{step}-0")
        log = make_log(disk, directory)
        disk.left = step
        try:
            whole_pass(log)
            done = True
        except Killed:
            pass
        disk.left = 1 << 40
        disk.release()
        disk = MortalDisk()
        log = reopen(disk, directory, RECOVERY_POINT)
        check(log, BEFORE, AFTER)
        disk.release()
        step += 1
    assert step > 30


# --- names ----------------------------------------------------------------------------------------------------------


def names(disk: Disk, endings: Iterable[str]) -> list[str]:
    return [name for name in disk.list("/t-0") if name.endswith(tuple(endings))]


@pytest.mark.parametrize("leave", [".log.swap", ".index.swap", ".timeindex.swap"])
def test_a_swap_without_one_of_its_files(leave: str) -> None:
    """Without its log it was never committed; without an index the index is rebuilt."""
    disk = SimDisk(Random(0), strict=True)
    log = make_log(disk, "/t-0")
    task = task_of(log)
    assert task is not None
    outcome = clean(disk, task)
    swap.commit(disk, "/t-0", outcome.outputs[0], task.token)
    for name in names(disk, [leave]):
        disk.remove(f"/t-0/{name}")
    check(reopen(disk, "/t-0", RECOVERY_POINT), BEFORE, AFTER)
    assert names(disk, [".swap", ".cleaned"]) == []


def test_readers_of_the_old_segment_go_on_and_the_names_are_reusable(tmp_path: Path) -> None:
    """The files of a cleaned segment can be closed and reopened at any time, under each of their names."""
    disk = SystemDisk(files_max=1)
    log = make_log(disk, str(tmp_path / "t-0"))
    old = log.segments[0].file
    pinned = disk.pin(old)  # type: ignore[arg-type]
    first = disk.read(old, 0, 61)
    whole_pass(log)
    assert os.pread(pinned, 61, 0) == first
    disk.unpin(old)  # type: ignore[arg-type]
    check(log, BEFORE, AFTER)
    assert not [name for name in disk.list(log.directory) if name.endswith((".swap", ".deleted"))]
    disk.release()


def test_an_output_that_is_not_wanted_leaves_nothing(tmp_path: Path) -> None:
    disk = SystemDisk()
    log = make_log(disk, str(tmp_path / "t-0"))
    before = disk.list(log.directory)
    task = task_of(log)
    assert task is not None
    outcome = clean(disk, task)
    swap.commit(disk, log.directory, outcome.outputs[0], task.token)
    for output in outcome.outputs:
        swap.discard(disk, log.directory, output.base_offset, task.token)
    assert disk.list(log.directory) == before
    disk.release()


def test_a_full_disk_leaves_the_log_alone(tmp_path: Path) -> None:
    class FullDisk(SystemDisk):
        def write(self, file: Any, position: int, parts: Any) -> int:
            if file.path.endswith(".cleaned"):
                raise DiskError("no space", full=True)
            return super().write(file, position, parts)

    disk = FullDisk()
    log = make_log(disk, str(tmp_path / "t-0"))
    task = task_of(log)
    assert task is not None
    with pytest.raises(DiskError):
        clean(disk, task)
    assert read(log) == BEFORE
    disk.release()
