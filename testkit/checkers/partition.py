"""Checker of one partition: a history of sends, acknowledgements and reads (C3, B5).

Every value is unique and sent once. An offset that was returned to anybody keeps its value. A value has one
offset. An acknowledged value is there when everything is read at the end; in a compacted partition, a newer
value of its key may be there instead. A violation raises Anomaly with its name (inconsistent-offsets,
duplicate, lost-write, …). Pure: fed by simulated or real clients.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple


class Anomaly(Exception):
    """A violation. `kind` is its name."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind


def key_of(value: bytes) -> bytes:
    """The key of a value in a compacted partition: the values of a producer share a few keys."""
    producer, number, _ = value.split(b".", 2)
    return producer[:1] + b"%d" % (int(number) % 4)


class Sent(NamedTuple):
    producer: str
    #: Increases with every value of this producer.
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
        #: The known part of the log, from acknowledgements and reads, in both directions.
        self.at: dict[int, bytes] = {}
        self.where: dict[bytes, int] = {}
        #: Values that were acknowledged without an offset.
        self.present: dict[bytes, None] = {}
        #: The log start can be anywhere up to here, by DeleteRecords or retention.
        self.start_max = 0
        #: Records below this offset survive, even if acknowledgements do not.
        self.flushed_offset = 0

    def send(self, value: bytes, producer: str, number: int, timestamp_ms: int) -> None:
        assert value not in self.sent, f"{value!r} is sent twice"
        self.sent[value] = Sent(producer, number, timestamp_ms)

    def acknowledge(self, value: bytes, offset: int) -> None:
        self._observe(offset, value, "acknowledged")
        self.acknowledged[value] = offset

    def is_there(self, value: bytes) -> None:
        """It was acknowledged without its offset, as a duplicate of an old batch."""
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
        """Whether compaction may have removed it: a later value of its key exists, or may exist."""
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
        """The minimum log end offset."""
        return max(self.at, default=-1) + 1

    def power_was_cut(self, flushed_offset: int) -> None:
        """Forget what the policy of this partition does not guarantee."""
        self.flushed_offset = max(self.flushed_offset, flushed_offset)
        if self.is_durable:
            return
        if self.flushed_offset <= self.start_max:
            # Nothing of it was guaranteed, so the log may start anywhere.
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
        """`log` is everything from the log start to at least the end offset, read by a new client."""
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
