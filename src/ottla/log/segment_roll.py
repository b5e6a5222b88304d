"""When the active segment is full: Kafka's roll rules (B4)."""

from __future__ import annotations

from crc32c import crc32c

from ottla.config.topic import TopicConfig
from ottla.log.segment import Segment
from ottla.model.limits import RELATIVE_OFFSET_MAX


def must_roll(
    active: Segment, config: TopicConfig, size: int, max_time: int, last_offset: int, now_ms: int
) -> bool:
    """Whether a batch of this size, largest timestamp and last offset needs a new segment.

    A segment rolls by size, by age, when an index is full, and when a relative offset would not fit in 31
    bits. An empty segment rolls only for the last reason.
    """
    if active.size == 0:
        return last_offset - active.base_offset > RELATIVE_OFFSET_MAX
    if active.first_timestamp >= 0 and max_time >= 0:
        age_ms = max_time - active.first_timestamp
    else:
        age_ms = now_ms - active.created_ms
    return (
        active.size + size > config.segment_bytes
        or age_ms > config.roll_ms - _jitter_ms(active, config)
        or active.index.full
        or active.times.full
        or last_offset - active.base_offset > RELATIVE_OFFSET_MAX
    )


def _jitter_ms(segment: Segment, config: TopicConfig) -> int:
    """Subtracted from the age limit of this segment (`segment.jitter.ms`): constant for it, different for
    others.
    """
    jitter_ms = config.segment_jitter_ms
    return crc32c(segment.file.path.encode()) % (jitter_ms + 1) if jitter_ms else 0
