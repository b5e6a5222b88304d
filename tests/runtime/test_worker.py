"""The worker process: a finished task, its end with the broker, and the error of a task when it dies."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.log.compaction import Outcome, Task, clean
from ottla.runtime.disk import SystemDisk
from ottla.runtime.worker import Worker
from tests.log.compaction_pass import keyed, task_of
from tests.log.log_bench import NOW, Bench

PATIENCE_S = 60.0


@pytest.fixture
def task(tmp_path: Path) -> Task:
    """A log of two segments; compaction keeps the newest records of three keys."""
    bench = Bench(tmp_path)
    log = bench.create(cleanup_policy="compact", segment_bytes=2000)
    for at in range(60):
        log.append(keyed((b"k%d" % (at % 3), b"v" * 30)), 0, NOW)
    log.roll(NOW)
    bench.flush(log)
    made = task_of(log, token="ab")
    assert made is not None
    bench.disk.release()
    return made


def perform(*tasks: Task, command: tuple[str, ...] | None = None, meanwhile: Callable[[Worker], None] | None = None) -> list[tuple[Outcome | None, str | None]]:  # fmt: skip
    """Run these tasks one after the other."""
    loop = asyncio.new_event_loop()
    worker = Worker(loop, command)
    left = list(tasks)
    found: list[tuple[Outcome | None, str | None]] = []

    def next_task() -> None:
        if left:
            worker.run(left.pop(0), done)
            if meanwhile is not None:
                meanwhile(worker)
        else:
            loop.stop()

    def done(outcome: Outcome | None, error: str | None) -> None:
        found.append((outcome, error))
        next_task()

    loop.call_soon(next_task)
    loop.call_later(PATIENCE_S, loop.stop)
    loop.run_forever()
    worker.stop()
    loop.close()
    return found


def test_a_task_has_the_same_outcome_as_in_this_process(task: Task) -> None:
    here = clean(SystemDisk(), task._replace(token="here"))
    first, second = perform(task, task._replace(token="again"))
    assert first == second == (here, None)
    folder = Path(task.directory)
    made = [folder / f"{0:020d}.log.{token}.cleaned" for token in ("here", "ab", "again")]
    assert len({path.read_bytes() for path in made}) == 1


def test_errors_of_a_task_are_reported(task: Task) -> None:
    [(outcome, error)] = perform(task._replace(directory="/nowhere"))
    assert outcome is None
    assert error is not None and "/nowhere" in error
    path = Path(task.directory) / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-10])
    [(outcome, error), (_, again)] = perform(task, task)
    assert outcome is None and error == again
    assert error is not None and "ends at" in error


def test_the_death_of_a_worker_is_reported_and_the_next_task_gets_another(task: Task) -> None:
    killed: list[int] = []

    def kill_the_first(worker: Worker) -> None:
        if not killed:
            assert worker.pid is not None
            killed.append(worker.pid)
            os.kill(worker.pid, 9)

    first, second = perform(task, task, meanwhile=kill_the_first)
    assert first == (None, "the worker process ended with -9")
    assert second[1] is None and second[0] is not None


def test_a_program_that_is_not_there(task: Task) -> None:
    [(outcome, error)] = perform(task, command=("/no/such/program",))
    assert outcome is None
    assert error is not None and error.startswith("the worker process could not be started")


def test_a_task_longer_than_a_pipe(task: Task) -> None:
    many = task._replace(producer_ends=tuple(range(1 << 40, (1 << 40) + 50_000)))
    [(outcome, error)] = perform(many)
    assert error is None and outcome is not None


def test_the_process_ends_when_its_input_does(task: Task) -> None:
    process: Any = subprocess.Popen(
        [sys.executable, "-m", "ottla.runtime.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.stdin.close()
    assert process.wait(PATIENCE_S) == 0
    process.stdout.close()


def test_a_limit_of_bytes_a_second_is_kept(task: Task) -> None:
    total = 2 * sum(each.size for each in task.inputs)
    loop_time = asyncio.new_event_loop()
    try:
        [(quick, _)] = perform(task)
        begin = loop_time.time()
        [(slow, _)] = perform(task._replace(token="slow", bytes_per_second=total))
        assert slow == quick
        assert loop_time.time() - begin > 0.8
    finally:
        loop_time.close()
