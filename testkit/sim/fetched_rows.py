"""Checks that every simulated reader makes of a fetched partition.

The high watermark of one leader never goes back. Records are contiguous from the fetch offset on, and lie
below the high watermark. An anomaly is raised as soon as a response shows one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from ottla.records.errors import CorruptRecords
from ottla.records.record import Record, decode_batches
from testkit.checkers.partition import Anomaly


class HighWatermarks:
    """The last high watermark that a leader returned, by partition and leader."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def check(self, key: Hashable, high_watermark: int, name: str, leader: str) -> None:
        known = self._known.get(key, 0)
        if high_watermark < known:
            raise Anomaly("watermark-regression", f"{name}: {high_watermark} after {known} {leader}")
        self._known[key] = high_watermark

    def clear(self) -> None:
        self._known.clear()


def fetched_records(row: Any, position: int, name: str, *, has_gaps: bool = False) -> Iterator[Record]:
    """The records of a row from `position` on. Only a compacted topic has gaps."""
    try:
        records = list(decode_batches(row.records or b""))
    except CorruptRecords as error:
        raise Anomaly("corrupt-read", f"{name} from {position}: {error}") from error
    for record in records:
        if record.offset < position:
            continue
        if record.offset != position and not has_gaps:
            raise Anomaly("poll-skip", f"{name}: asked for {position}, got {record.offset}")
        if record.offset >= row.high_watermark:
            raise Anomaly("above-watermark", f"{name}: {record.offset} of {row.high_watermark}")
        yield record
        position = record.offset + 1
