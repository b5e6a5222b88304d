"""A broker whose disk or clock can be broken and mended while it runs, and what its clients may see of it.

`Ledger` holds what was acknowledged, and checks that all of it, and nothing else that was never sent, is served.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ottla.model.errors import ErrorCode
from ottla.records.record import decode_batches
from tests.crash.broker_process import (
    FETCH,
    PRODUCE,
    BrokerProcess,
    Wire,
    batch_of,
    fetching,
    producing,
)
from tests.crash.failing import Faults

OPERATING = Path(__file__).parents[2] / "docs" / "operating.md"

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR


class BreakableBroker(BrokerProcess):
    """A broker with `faults` of its own (tests/crash/failing.py), and short ways to set them."""

    def __init__(self, data_dir: Path, port: int, settings: Mapping[str, str] | None = None) -> None:
        self._broken = Faults(data_dir.parent / f"{data_dir.name}.rules")
        super().__init__(data_dir, port, settings, faults=self._broken)

    def fail(self, operations: Sequence[str], error: str, like: str) -> Self:
        """From now on these fail with this error for files that fit the pattern, besides what fails already."""
        self._broken.add(operations, under=self.data_dir, error=error, like=like)
        return self

    def delay(self, operations: Sequence[str], seconds: float, like: str) -> Self:
        self._broken.delay(operations, seconds, under=self.data_dir, like=like)
        return self

    def set_clock(self, seconds: float) -> Self:
        self._broken.set_clock(seconds)
        return self

    def heal(self) -> Self:
        self._broken.clear()
        return self


class Ledger:
    """What a producer was told of one partition, against what a consumer gets."""

    def __init__(self, topic: str, partition: int = 0) -> None:
        self.topic = topic
        self.partition = partition
        #: Values by offset, as acknowledged.
        self.kept: dict[int, bytes] = {}
        #: Values whose fate the producer was not told, or was told to be a failure of storage.
        self.unsure: set[bytes] = set()

    def try_to_produce(self, wire: Wire, *values: bytes, acks: int = -1) -> int:
        """Send one batch; the error code that is answered."""
        batch = batch_of(*values)
        self.unsure.update(values)
        answer = wire.ask(PRODUCE, 9, **producing(self.topic, batch, self.partition, acks))
        row = answer.responses[0].partition_responses[0]
        code: int = row.error_code.value
        if code == 0:
            self.unsure.difference_update(values)
            self.kept.update((row.base_offset + at, value) for at, value in enumerate(values))
        else:
            assert row.base_offset == -1
        return code

    def produce(self, wire: Wire, *values: bytes) -> None:
        code = self.try_to_produce(wire, *values)
        assert code == 0, ErrorCode(code).name

    def check(self, wire: Wire) -> list[bytes]:
        """Read everything from the start: all that was acknowledged is there, in its place, and nothing that was not sent."""
        found = dict(self._read(wire, 0))
        assert {offset: found.get(offset) for offset in self.kept} == self.kept
        others = {value for offset, value in found.items() if offset not in self.kept}
        assert others <= self.unsure, "something was served that nobody sent"
        assert sorted(found) == list(range(len(found))), "offsets without a gap"
        return [found[offset] for offset in sorted(found)]

    def _read(self, wire: Wire, offset: int) -> list[tuple[int, bytes]]:
        records: list[tuple[int, bytes]] = []
        end = wire.end_offset(self.topic, self.partition)
        while offset < end:
            some = wire.fetch(self.topic, offset, self.partition)
            assert some, f"nothing at offset {offset} of {end}"
            records += [(record.offset, record.value or b"") for record in some]
            offset = some[-1].offset + 1
        return records


def fetch_row(wire: Wire, topic: str, offset: int, partition: int = 0, **more: Any) -> tuple[int, bytes]:
    """One fetch: the error code of the partition, and the bytes of its records."""
    row = wire.ask(FETCH, 11, **fetching(topic, offset, partition, **more)).responses[0].partitions[0]
    return row.error_code.value, bytes(row.records or b"")


def values_of(records: bytes) -> list[bytes]:
    """Of whole batches, each with its CRC checked."""
    return [record.value or b"" for record in decode_batches(records)]


def told(broker: BrokerProcess, words: str) -> str:
    """The broker says what docs/operating.md quotes with these words: the line it said. Nothing it said is a traceback."""
    [quoted] = [quote for quote in quotes() if words in quote]
    pattern = re.compile(".+".join(map(re.escape, quoted.split("…"))))
    broker.wait_for(words)
    said = [line for line in broker.said if pattern.fullmatch(line.removeprefix("ottla: "))]
    assert said, f"{quoted!r} is not what it said:\n{broker.words}"
    assert "Traceback" not in broker.words, broker.words
    return said[0]


def quotes() -> list[str]:
    """The messages that docs/operating.md quotes: one a line, indented, with … for what differs."""
    return [line[4:] for line in OPERATING.read_text().splitlines() if line.startswith("    ")]
