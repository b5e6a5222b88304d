"""Which part of a log can be compacted, and whether compaction is due.

Only whole closed segments can be compacted, and only below three bounds:

- the last stable offset, so that no undecided transaction is touched,
- the recovery point, so that recovery never reads a compacted segment,
- the first record younger than min.compaction.lag.ms.

Pure functions of a log, called periodically by `broker/storage/log_cleaner.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.log.compaction import Input, Task
from ottla.log.partition_log import PartitionLog
from ottla.log.segment import Segment
from ottla.log.transactions import Ended
from ottla.model.limits import OFFSET_MAX


class Cleanable(NamedTuple):
    segments: tuple[Segment, ...]
    first_dirty: int
    clean_bytes: int
    dirty_bytes: int
    #: Whether a record is older than max.compaction.lag.ms.
    overdue: bool

    @property
    def dirty_share(self) -> float:
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes)

    @property
    def end(self) -> int:
        return self.segments[-1].next_offset


def find_cleanable(log: PartitionLog, *, last_stable_offset: int, now_ms: int) -> Cleanable | None:
    """The dirty part that a pass would clean; None if there is none."""
    config = log.config
    first_dirty = log.cleaned_offset
    if not log.log_start_offset <= first_dirty <= log.next_offset:
        first_dirty = log.log_start_offset
    settled = min(last_stable_offset, log.recovery_point)
    segments = []
    clean_bytes = dirty_bytes = 0
    overdue = False
    for segment in log.segments[log.segment_for(log.log_start_offset) : -1]:
        if segment.next_offset > settled or not segment.size:
            break
        if segment.next_offset > first_dirty:
            newest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
            if config.min_compaction_lag_ms > 0 and newest > now_ms - config.min_compaction_lag_ms:
                break
            dirty_bytes += segment.size
            overdue = overdue or 0 < segment.first_timestamp < now_ms - config.max_compaction_lag_ms
        else:
            clean_bytes += segment.size
        segments.append(segment)
    if not dirty_bytes:
        return None
    return Cleanable(tuple(segments), first_dirty, clean_bytes, dirty_bytes, overdue)


def must_roll(log: PartitionLog, now_ms: int) -> bool:
    """Whether the active segment has records beyond max.compaction.lag.ms, so that it must roll without an
    append.
    """
    active = log.active
    since = max(active.first_timestamp, active.created_ms)
    return active.size > 0 and now_ms - since > log.config.max_compaction_lag_ms


def make_task(
    log: PartitionLog,
    found: Cleanable,
    *,
    token: str,
    now_ms: int,
    memory_bytes: int,
    load_factor: float,
    bytes_per_second: float,
) -> Task:
    config, start, end = log.config, found.segments[0].base_offset, found.end
    aborted: list[Ended] = []
    for segment in log.segments:
        # A marker can be in any segment after the records of its transaction.
        if segment.aborted.count and segment.aborted.collect(start, end, aborted):
            break
    return Task(
        directory=log.directory,
        token=token,
        inputs=tuple(
            Input(each.base_offset, each.size, each.next_offset, each.index.written, each.max_timestamp)
            for each in found.segments
        ),
        first_dirty=found.first_dirty,
        end=end,
        producer_ends=tuple(
            last_offset
            for producer in log.producers.by_id.values()
            for _first, _last, _base, last_offset, _timestamp in producer.batches
            if last_offset < end
        ),
        aborted=tuple(aborted),
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        span_ms=config.roll_ms if config.delete else OFFSET_MAX,
        memory_bytes=memory_bytes,
        load_factor=load_factor,
        bytes_per_second=bytes_per_second,
    )
