"""Retention: which segments are too old or exceed the size limit (B6). Whole segments only, oldest first."""

from __future__ import annotations

from ottla.log.partition_log import PartitionLog
from ottla.log.segment import Segment


def expired_segments(log: PartitionLog, now_ms: int, high_watermark: int) -> int:
    """How many of the oldest segments can be deleted. If it is all of them, the log must roll first."""
    config = log.config
    excess = log.size - config.retention_bytes if config.delete and config.retention_bytes >= 0 else -1
    count = 0
    for segment in log.segments:
        if segment.next_offset > high_watermark or not segment.size:
            break
        # DeleteRecords deletes segments below the log start offset whatever the policy.
        before_start = segment.next_offset <= log.log_start_offset
        too_old = config.delete and 0 <= config.retention_ms < now_ms - _newest(segment)
        too_many = excess >= segment.size
        if not (before_start or too_old or too_many):
            break
        excess -= segment.size
        count += 1
    return count


def _newest(segment: Segment) -> int:
    """The time of the newest record in the segment, by its timestamps."""
    return segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
