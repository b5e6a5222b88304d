"""Compaction for the tests of this folder: a complete pass, from the choice of segments to the last rename."""

from typing import Any

from ottla.log import swap
from ottla.log.cleanable import find_cleanable, make_task
from ottla.log.compaction import Outcome, Task, clean
from ottla.log.partition_log import PartitionLog
from ottla.records.record import Record, encode_batch
from tests.log.log_bench import NOW

DAY_MS = 86_400_000


def keyed(*pairs: tuple[bytes | None, bytes | None], timestamp: int = NOW, **fields: Any) -> bytes:
    """A batch of keys and values."""
    return encode_batch([Record(0, timestamp, key, value) for key, value in pairs], **fields)


def task_of(
    log: PartitionLog, *, now_ms: int = NOW, memory_bytes: int = 1 << 20, token: str = "aa"
) -> Task | None:
    found = find_cleanable(log, last_stable_offset=log.last_stable_offset(log.next_offset), now_ms=now_ms)
    if found is None:
        return None
    return make_task(
        log,
        found,
        token=token,
        now_ms=now_ms,
        memory_bytes=memory_bytes,
        load_factor=0.9,
        bytes_per_second=1e300,
    )


def swap_in(log: PartitionLog, task: Task, outcome: Outcome) -> list[str]:
    """Put the outputs of a pass in place; returns the paths to remove."""
    by_base = {segment.base_offset: segment for segment in log.segments}
    segments = [by_base[each.base_offset] for each in task.inputs]
    gone = []
    for output in outcome.outputs:
        old = segments[output.first_input : output.first_input + output.inputs]
        swap.commit(log.disk, task.directory, output, task.token)
        log.disk.sync_dir(task.directory)
        new = swap.open_swapped(log, old, output)
        gone += swap.put_in_place(log, old, new)
        log.disk.sync_dir(task.directory)
        swap.take_names(new)
    log.cleaned_offset = outcome.map_end
    return gone


def compact(log: PartitionLog, *, now_ms: int = NOW, memory_bytes: int = 1 << 20) -> Outcome | None:
    """One complete pass over the flushed, closed segments; None if there is nothing to do."""
    task = task_of(log, now_ms=now_ms, memory_bytes=memory_bytes)
    if task is None:
        return None
    outcome = clean(log.disk, task)
    for path in swap_in(log, task, outcome):
        log.disk.remove(path)
    return outcome
