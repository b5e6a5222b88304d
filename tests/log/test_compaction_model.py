"""Compaction against a dict; Hypothesis finds the order of operations.

Whatever is written, compacted, deleted and reopened: reading the log into a dict gives the same as all
records ever written.
"""

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ottla.log.partition_log import PartitionLog
from ottla.model.steps import run
from ottla.records.batch import HEADER
from ottla.records.record import Record, decode_batches, whole_batches
from tests.log.compaction_pass import compact, keyed
from tests.log.log_bench import NOW, Bench

SETTINGS = {
    "cleanup_policy": "compact", "segment_bytes": 700, "index_interval_bytes": 100, "delete_retention_ms": 1000,
}  # fmt: skip
PRODUCERS = (7, 8)


class Written(NamedTuple):
    offset: int
    timestamp: int
    key: bytes
    value: bytes | None


class CompactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.bench = Bench(self.root)
        self.log: PartitionLog = self.bench.create(**SETTINGS)
        self.now = NOW
        self.written: list[Written] = []
        self.sequences = dict.fromkeys(PRODUCERS, 0)
        #: The cleaned offset, and when each offset was first seen by a pass.
        self.cleaned = 0
        self.seen: dict[int, int] = {}
        self.values = 0

    def teardown(self) -> None:
        self.bench.disk.release()
        shutil.rmtree(self.root)

    # --- what is done -----------------------------------------------------------------------------------------

    @rule(
        # Short keys, and one that is longer than a fingerprint.
        keys=st.lists(
            st.sampled_from([b"", b"a", b"b", b"c", b"d" * 15, b"e" * 16, b"f" * 40]), min_size=1, max_size=5
        ),
        tombstones=st.integers(0, 31),
        producer=st.sampled_from([-1, *PRODUCERS]),
        codec=st.sampled_from([0, 0, 1, 3, 4]),
    )
    def append(self, keys: list[bytes], tombstones: int, producer: int, codec: int) -> None:
        rows = []
        for at, key in enumerate(keys):
            self.values += 1
            rows.append((key, None if tombstones >> at & 1 else b"%d" % self.values))
        sequence = self.sequences.get(producer, -1)
        data = keyed(
            *rows, timestamp=self.now, codec=codec,
            producer_id=producer, producer_epoch=0 if producer >= 0 else -1, base_sequence=sequence,
        )  # fmt: skip
        base = self.log.append(data, 0, self.now).base_offset
        if producer >= 0:
            self.sequences[producer] += len(rows)
        self.written += [Written(base + at, self.now, key, value) for at, (key, value) in enumerate(rows)]

    @rule(by_ms=st.sampled_from([1, 400, 2000]))
    def wait(self, by_ms: int) -> None:
        self.now += by_ms

    @rule()
    def close_segment(self) -> None:
        self.log.roll(self.now)
        self.bench.flush(self.log)

    @rule(keys_max=st.sampled_from([2, 4, 1000]))
    def compact(self, keys_max: int) -> None:
        before = {record.offset: record for record in self.read()}
        outcome = compact(self.log, now_ms=self.now, memory_bytes=keys_max * 24)
        if outcome is None:
            return
        assert self.log.cleaned_offset == outcome.map_end > self.cleaned
        self.cleaned = outcome.map_end
        after = {record.offset: record for record in self.read()}
        newest = {each.key: each.offset for each in self.written if each.offset < self.cleaned}
        for offset, record in before.items():
            if offset >= self.cleaned:
                assert after[offset] == record, "what is past the cleaned end is as it was"
            elif offset < newest[record.key or b""]:
                assert offset not in after
            elif record.value is not None:
                assert after[offset] == record
            else:
                first_seen = self.seen.setdefault(offset, self.now)
                # A tombstone lives for its time from the first pass that saw it, and not longer.
                assert (offset in after) == (self.now < first_seen + 1000)
        assert after.items() <= before.items()

    @rule()
    def restart(self) -> None:
        self.bench.flush(self.log)
        cleaned = self.log.cleaned_offset
        self.log = self.bench.recover().log
        self.log.cleaned_offset = cleaned

    @rule()
    def restart_without_help(self) -> None:
        """Only the log files are left."""
        self.bench.flush(self.log)
        self.log.close()
        cleaned = self.log.cleaned_offset
        for suffix in (".index", ".timeindex", ".snapshot"):
            for name in self.bench.names(suffix):
                self.bench.file(name).unlink()
        self.bench.recovery_point = 0
        self.log = self.bench.recover().log
        self.log.cleaned_offset = cleaned

    # --- what holds always ------------------------------------------------------------------------------------

    def read(self) -> list[Record]:
        return [
            record
            for segment in self.log.segments
            for record in decode_batches(self.log.disk.read(segment.file, 0, segment.size))
        ]

    @invariant()
    def folding_the_log_gives_what_was_written(self) -> None:
        found: dict[bytes, bytes | None] = {}
        offsets = []
        for record in self.read():
            found[record.key or b""] = record.value
            offsets.append(record.offset)
        assert offsets == sorted(set(offsets))
        wanted: dict[bytes, bytes | None] = {each.key: each.value for each in self.written}
        assert {key: value for key, value in found.items() if value is not None} == {
            key: value for key, value in wanted.items() if value is not None
        }
        written = {each.offset: each for each in self.written}
        for record in self.read():
            assert written[record.offset] == (record.offset, record.timestamp_ms, record.key, record.value)

    @invariant()
    def segments_follow_one_another(self) -> None:
        ends = [segment.next_offset for segment in self.log.segments]
        assert ends[:-1] == self.log.bases[1:]
        assert self.log.next_offset == ends[-1] == (self.written[-1].offset + 1 if self.written else 0)
        assert [segment.size for segment in self.log.segments] == [
            self.log.disk.size(segment.file) for segment in self.log.segments
        ]

    @invariant()
    def producers_go_on_where_they_were(self) -> None:
        for producer, sequence in self.sequences.items():
            assert self.log.producers.check(producer, 0, sequence, 1) is None
        last: dict[int, int] = {}
        for segment in self.log.segments:
            for batch in whole_batches(self.log.disk.read(segment.file, 0, segment.size)):
                header = HEADER.unpack_from(batch)
                if header[9] >= 0:
                    last[header[9]] = header[11] + header[6] + 1
        assert last == {producer: at for producer, at in self.sequences.items() if at}

    @invariant()
    def every_offset_is_answered_with_the_next_record(self) -> None:
        there = [record.offset for record in self.read()]
        for offset in range(0, self.log.next_offset, 3):
            wanted = next((each for each in there if each >= offset), None)
            at, got = offset, None
            while got is None:
                piece = self.log.slice(at, self.log.next_offset, 1, whole_first=True)
                if piece is None:
                    break
                (batch,) = whole_batches(self.log.disk.read(piece.file, piece.position, piece.size))
                got = next((r.offset for r in decode_batches(batch) if r.offset >= at), None)
                header = HEADER.unpack_from(batch)
                # As every client does: the end of the batch is the next position.
                at = header[0] + header[6] + 1
            assert got == wanted

    @precondition(lambda self: self.written)
    @invariant()
    def records_are_found_by_their_time(self) -> None:
        there = self.read()
        for timestamp in sorted({record.timestamp_ms for record in there})[-4:]:
            wanted = next((r.offset, r.timestamp_ms) for r in there if r.timestamp_ms >= timestamp)
            assert run(self.log.look_up_time(timestamp)) == wanted
        newest = max((record.timestamp_ms for record in there), default=None)
        found = run(self.log.look_up_newest())
        assert (found and found[1]) == newest


TestCompaction = CompactionMachine.TestCase
TestCompaction.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
