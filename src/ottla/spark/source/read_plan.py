"""What a query reads next, as ranges of offsets: split among tasks, limited by rate, and held against what the logs still have.

Everything here is pure. `survey.py` asks the brokers, `batch.py` and `stream.py` put the two together. A range is half open, as offsets
are in Kafka: it ends before `end`. Offsets are not records: compaction, markers and aborted transactions leave gaps, so counts of
records are upper bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ottla.client.metadata import TopicPartition
from ottla.spark.source.offsets import Offsets

#: Where a partition begins that was found while the query ran: all of it is new.
NEW_START = 0


class DataLost(RuntimeError):
    """Records were gone before they were read, and failOnDataLoss is true."""


class Log(NamedTuple):
    """What the log of a partition has now: from `begin` to before `end`."""

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
    """Records of one partition that cannot be read; `end` None: nobody knows how many they were."""

    tp: TopicPartition
    start: int
    end: int | None
    why: str

    def __str__(self) -> str:
        where = f"topic {self.tp.topic} partition {self.tp.partition}"
        if self.end is None:
            return f"{where}: what followed offset {self.start} is gone: {self.why}"
        count = self.end - self.start
        return (
            f"{where}: offsets {self.start} to {self.end - 1} are gone ({count} records at most): {self.why}"
        )


def lost(losses: Sequence[Loss]) -> DataLost:
    """The error that tells of them."""
    told = "; ".join(map(str, losses[:20])) + (f"; and {len(losses) - 20} more" if len(losses) > 20 else "")
    return DataLost(
        f"{told}. Set failOnDataLoss=false to go on without them, or choose other offsets (a stream: with a new checkpoint)"
    )


def not_before(
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    logs: Mapping[TopicPartition, Log],
) -> Offsets:
    """Ends that lie before their starts, moved there: between a time and an offset, or before the earliest, there may be nothing to read.

    Nothing is lost then, as long as the log has the start. Where people wrote both ends in the wrong order the options say so.
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
    """What is to be read from `starts` to `ends` and what of it is gone. Partitions that `starts` lacks are new."""
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
            why = f"the log ends at {log.end}, so it was made anew or cut off"
            losses.append(Loss(tp, min(end, log.end), start, why))
            continue
        if start < log.begin and start < end:
            why = f"the log begins at {log.begin} now" + ("" if tp in starts else " (the partition is new)")
            losses.append(Loss(tp, start, min(log.begin, end), why))
            start = min(log.begin, end)
        if end > log.end:
            why = f"the log ends at {log.end}, so it was made anew or cut off"
            losses.append(Loss(tp, max(log.end, start), end, why))
            end = log.end
        if start < end:
            ranges.append(Range(tp, start, end))
    return ranges, losses


def split(ranges: Iterable[Range], *, least: int | None, records_max: int | None) -> list[Range]:
    """The ranges in parts, none longer than `records_max`, and so many parts as `least` says or more where there is as much to read."""
    parts = [range_ for range_ in ranges if range_.size > 0]
    if records_max is not None:
        parts = [part for range_ in parts for part in _cut(range_, -(-range_.size // records_max))]
    if least is not None and len(parts) < least:
        total = sum(part.size for part in parts)
        counts = [max(least * part.size // total, 1) for part in parts]
        # What rounding left over goes to those whose parts would be longest.
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
    """Ends so that no more than `most` offsets are read, shared out by how much each partition has.

    Each partition that has something gives one at least, or the small would wait for ever: with fewer than there are partitions
    the limit is that one each.
    """
    sizes = {tp: max(end - starts.get(tp, NEW_START), 0) for tp, end in ends.items()}
    total = sum(sizes.values())
    if total <= most:
        return dict(ends)
    shares = {tp: max(most * size // total, 1) for tp, size in sizes.items() if size}
    left = most - sum(shares.values())
    for tp in sorted(shares, key=lambda tp: -sizes[tp]):
        # Rounding down leaves less than one for each; those that were rounded up to one are paid for by the longest.
        change = min(left, 1) if left > 0 else max(left, 1 - shares[tp])
        shares[tp] += change
        left -= change
    return {tp: starts.get(tp, NEW_START) + shares[tp] if tp in shares else end for tp, end in ends.items()}


def is_held_back(size: int, *, least: int | None, waited_ms: float, wait_ms_max: int) -> bool:
    """Whether a micro-batch of that many offsets has to wait for more."""
    return least is not None and size < least and waited_ms < wait_ms_max


def advanced(starts: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]) -> int:
    """How many offsets there are to read."""
    return sum(max(end - starts.get(tp, NEW_START), 0) for tp, end in latest.items())
