"""The offset ranges that a query reads next: compared with the logs, limited by rate and split among tasks.

Pure.

`topic_admin.py` asks the brokers; `batch.py` and `stream.py` combine the two. Ranges are half open: they end
before `end`. Offsets are not records: compaction, transaction markers and aborted transactions leave gaps.
Record counts are therefore upper bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ottla.client.metadata import TopicPartition
from ottla.spark.source.offsets import Offsets

#: Start offset of a partition that was discovered while the query ran.
NEW_START = 0


class DataLost(RuntimeError):
    """Records were lost before they were read, and failOnDataLoss is true."""


class Log(NamedTuple):
    """The offsets in a partition's log: `begin` is the log start offset, `end` is exclusive."""

    begin: int
    end: int


class Range(NamedTuple):
    tp: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Loss:
    """Records of one partition that cannot be read. `end` is None if their number is unknown."""

    tp: TopicPartition
    start: int
    end: int | None
    why: str

    def __str__(self) -> str:
        where = f"topic {self.tp.topic} partition {self.tp.partition}"
        if self.end is None:
            return f"{where}: the records from offset {self.start} are lost: {self.why}"
        count = self.end - self.start
        return (
            f"{where}: offsets {self.start} to {self.end - 1} are lost (at most {count} records): {self.why}"
        )


def lost(losses: Sequence[Loss]) -> DataLost:
    """The error for lost records."""
    told = "; ".join(map(str, losses[:20])) + (f"; and {len(losses) - 20} more" if len(losses) > 20 else "")
    return DataLost(
        f"{told}. Set failOnDataLoss=false to continue without these records, or set other offsets (in a "
        "stream: with a "
        "new checkpoint)"
    )


def not_before(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    logs: Mapping[TopicPartition, Log],
) -> Offsets:
    """Move ends that are before their starts to the starts.

    No records are lost if the log contains the start. The options already reject ends that are written before
    starts.
    """
    return {
        tp: max(end, starts[tp]) if tp in logs and starts[tp] <= logs[tp].end else end
        for tp, end in ends.items()
    }


def ranges_of(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    logs: Mapping[TopicPartition, Log],
) -> tuple[list[Range], list[Loss]]:
    """The ranges to read from `starts` to `ends`, and the losses. Partitions missing in `starts` are new."""
    ranges: list[Range] = []
    losses = [
        Loss(tp, starts[tp], None, "the partition was deleted") for tp in sorted(set(starts) - set(ends))
    ]
    for tp in sorted(ends):
        start, end, log = starts.get(tp, NEW_START), ends[tp], logs.get(tp)
        if log is None:
            losses.append(Loss(tp, start, max(end, start), "the partition was deleted"))
            continue
        if end < start or start > log.end:
            why = f"the log ends at {log.end}: it was re-created or truncated"
            losses.append(Loss(tp, min(end, log.end), start, why))
            continue
        if start < log.begin and start < end:
            why = f"the log starts at {log.begin}" + ("" if tp in starts else " (the partition is new)")
            losses.append(Loss(tp, start, min(log.begin, end), why))
            start = min(log.begin, end)
        if end > log.end:
            why = f"the log ends at {log.end}: it was re-created or truncated"
            losses.append(Loss(tp, max(log.end, start), end, why))
            end = log.end
        if start < end:
            ranges.append(Range(tp, start, end))
    return ranges, losses


def split(ranges: Iterable[Range], *, least: int | None, records_max: int | None) -> list[Range]:
    """Split the ranges into at least `least` parts, each of at most `records_max` offsets."""
    parts = [range_ for range_ in ranges if range_.size > 0]
    if records_max is not None:
        parts = [part for range_ in parts for part in _cut(range_, -(-range_.size // records_max))]
    if least is not None and len(parts) < least:
        total = sum(part.size for part in parts)
        counts = [max(least * part.size // total, 1) for part in parts]
        # The remainder of the rounding goes to the ranges with the longest parts.
        while sum(counts) < min(least, total):
            sizes = [
                part.size / count if count < part.size else 0.0
                for part, count in zip(parts, counts, strict=True)
            ]
            counts[sizes.index(max(sizes))] += 1
        parts = [piece for part, count in zip(parts, counts, strict=True) for piece in _cut(part, count)]
    return parts


def _cut(range_: Range, count: int) -> list[Range]:
    count = min(count, range_.size)
    edges = [range_.start + range_.size * number // count for number in range(count + 1)]
    return [Range(range_.tp, start, end) for start, end in pairwise(edges)]


def limited(starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], most: int) -> Offsets:
    """Limit the ends to at most `most` offsets in total, in proportion to each partition's backlog.

    Every partition with a backlog gets at least one offset, so that small ones do not starve. If `most` is
    below the number of such partitions, each gets one.
    """
    sizes = {tp: max(end - starts.get(tp, NEW_START), 0) for tp, end in ends.items()}
    total = sum(sizes.values())
    if total <= most:
        return dict(ends)
    shares = {tp: max(most * size // total, 1) for tp, size in sizes.items() if size}
    left = most - sum(shares.values())
    for tp in sorted(shares, key=lambda tp: -sizes[tp]):
        # Rounding down leaves less than one offset per partition; shares raised to one are taken from the
        # largest.
        change = min(left, 1) if left > 0 else max(left, 1 - shares[tp])
        shares[tp] += change
        left -= change
    return {tp: starts.get(tp, NEW_START) + shares[tp] if tp in shares else end for tp, end in ends.items()}


def is_held_back(size: int, *, least: int | None, waited_ms: float, wait_ms_max: int) -> bool:
    """Whether a micro-batch of this size must wait for more offsets."""
    return least is not None and size < least and waited_ms < wait_ms_max


def advanced(starts: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]) -> int:
    """The number of offsets to read."""
    return sum(max(end - starts.get(tp, NEW_START), 0) for tp, end in latest.items())
