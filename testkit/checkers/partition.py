"""What one partition promised, and whether it keeps it: a history of sends, acknowledgements and reads (C3,
B5).

Every value is sent once and is unique. An offset, once told to anybody, holds its value for ever; a value
stands at one offset; what was acknowledged is there when everything is read at the end, or in a compacted
partition, something newer of its key. Each broken promise raises Anomaly with its name from the list of
anomalies (inconsistent-offsets, duplicate, lost-write, …). Pure: fed by clients, simulated or real.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple


class Anomaly(Exception):
    """Something that must never happen did. `kind` is its name."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind


def key_of(value: bytes) -> bytes:
    """The key under which a value is sent to a compacted partition: the values of a producer share a few."""
    producer, number, _ = value.split(b".", 2)
    return producer[:1] + b"%d" % (int(number) % 4)


class Sent(NamedTuple):
    producer: str
    #: Grows with every value of this producer.
    number: int
    timestamp_ms: int


class PartitionHistory:
    def __init__(self, name: str, *, is_durable: bool, is_compacted: bool = False) -> None:
        self.name = name
        self.is_compacted = is_compacted
        #: Whether an acknowledgement survives a power cut.
        self.is_durable = is_durable
        self.sent: dict[bytes, Sent] = {}
        self.acknowledged: dict[bytes, int] = {}
        #: What is known of the log, from acknowledgements and reads, both ways round.
        self.at: dict[int, bytes] = {}
        self.where: dict[bytes, int] = {}
        #: Acknowledged without an offset.
        self.present: dict[bytes, None] = {}
        #: The log may begin anywhere up to here: somebody asked for it, or retention may have.
        self.start_max = 0
        #: Records before this survive even where acknowledgements do not.
        self.flushed_offset = 0

    def send(self, value: bytes, producer: str, number: int, timestamp_ms: int) -> None:
        assert value not in self.sent, f"{value!r} is sent twice"
        self.sent[value] = Sent(producer, number, timestamp_ms)

    def acknowledge(self, value: bytes, offset: int) -> None:
        self._observe(offset, value, "acknowledged")
        self.acknowledged[value] = offset

    def is_there(self, value: bytes) -> None:
        """It was acknowledged without its offset: as a repetition of what came long before."""
        self.present[value] = None

    def read(self, offset: int, value: bytes) -> None:
        self._observe(offset, value, "read")

    def _observe(self, offset: int, value: bytes, how: str) -> None:
        if value not in self.sent:
            raise Anomaly(
                "resurrected", f"{self.name} offset {offset}: {how} {value!r}, never sent to this topic"
            )
        known = self.at.setdefault(offset, value)
        if known != value:
            raise Anomaly(
                "inconsistent-offsets", f"{self.name} offset {offset}: {known!r} before, now {how} {value!r}"
            )
        first = self.where.setdefault(value, offset)
        if first != offset:
            raise Anomaly("duplicate", f"{self.name}: {value!r} at offset {first}, now {how} at {offset}")

    def _is_outdated(self, offset: int) -> bool:
        """Whether a compacted partition may have dropped it: another value of its key stands later, or may
        stand.
        """
        if not self.is_compacted:
            return False
        value = self.at[offset]
        key = key_of(value)
        return any(
            key_of(other) == key and self.where.get(other, offset + 1) > offset
            for other in self.sent
            if other != value
        )

    @property
    def end_offset_min(self) -> int:
        """Where the log ends at the earliest."""
        return max(self.at, default=-1) + 1

    def power_was_cut(self, flushed_offset: int) -> None:
        """Forget what this partition's policy does not promise to keep."""
        self.flushed_offset = max(self.flushed_offset, flushed_offset)
        if self.is_durable:
            return
        if self.flushed_offset <= self.start_max:
            # Nothing of it needed to stay, so it may begin with whatever did.
            self.start_max = max(self.start_max, self.end_offset_min)
        for offset in [offset for offset in self.at if offset >= self.flushed_offset]:
            value = self.at.pop(offset)
            del self.where[value]
            self.acknowledged.pop(value, None)

    def check_start(self, log_start_offset: int) -> None:
        if log_start_offset > self.start_max:
            raise Anomaly(
                "lost-write",
                f"{self.name} begins at {log_start_offset}, but at most {self.start_max} was asked for",
            )

    def check_all(self, log: dict[int, bytes], *, log_start_offset: int, end_offset: int) -> None:
        """`log` is everything from the start to at least the end offset, read by somebody who started afresh."""
        self.check_start(log_start_offset)
        for offset, value in sorted(self.at.items()):
            if (
                log_start_offset <= offset < end_offset
                and offset not in log
                and not self._is_outdated(offset)
            ):
                how = "acknowledged" if value in self.acknowledged else "read"
                raise Anomaly("lost-write", f"{self.name} offset {offset}: {value!r} was {how} and is gone")
        for offset, value in log.items():
            self.read(offset, value)
        for value in self.present:
            if value not in self.where:
                raise Anomaly("lost-write", f"{self.name}: {value!r} was said to be there and is not")
        offsets = sorted(log)
        for before, after in pairwise(offsets):
            if after != before + 1 and not self.is_compacted:
                raise Anomaly("poll-skip", f"{self.name}: offset {after} follows {before}")
        latest: dict[str, int] = {}
        for offset in offsets:
            sent = self.sent[log[offset]]
            if sent.number < latest.get(sent.producer, -1):
                raise Anomaly(
                    "nonmonotonic-send",
                    f"{self.name} offset {offset}: {sent.producer}'s {sent.number} comes after its "
                    f"{latest[sent.producer]}",
                )
            latest[sent.producer] = sent.number
