"""The log against a plain list, under all operations in any order; Hypothesis finds the order."""

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ottla.log.partition_log import PartitionLog
from ottla.log.retention import expired_segments
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.steps import run
from tests.log.log_bench import NOW, Bench, batch, committed, config, records, sequenced

SETTINGS = {"segment_bytes": 900, "index_interval_bytes": 150, "segment_index_bytes": 96}
#: Represents a marker among the values.
MARKER = b"marker"
#: A producer keeps this many unanswered batches.
WINDOW = 5


class Kept(NamedTuple):
    """One record of the list."""

    offset: int
    timestamp: int
    value: bytes
    leader_epoch: int
    #: The base offset of its batch: batches are removed whole.
    batch: int


class Step(NamedTuple):
    """One batch of a transaction, or the marker at its end."""

    offset: int
    producer: int
    epoch: int
    #: The sequence of the next batch; None for a marker.
    next_sequence: int | None
    #: Of a marker.
    commit: bool = False


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.bench = Bench(self.root)
        self.log: PartitionLog = self.bench.create(**SETTINGS)
        self.kept: list[Kept] = []
        self.start = 0
        self.epoch = 0
        self.values = 0
        #: The last batches of each producer: (sequence, values, timestamp, base offset).
        self.sent: dict[int, list[tuple[int, list[bytes], int, int]]] = {}
        #: What a crash cannot take back.
        self.flushed_to = 0
        self.steps: list[Step] = []
        self.watermark = 0

    def teardown(self) -> None:
        self.bench.disk.release()
        shutil.rmtree(self.root)

    @property
    def end(self) -> int:
        return self.kept[-1].offset + 1 if self.kept else self.start

    def next_values(self, sizes: list[int]) -> list[bytes]:
        self.values += 1
        return [(b"%d." % self.values).ljust(size, b".") for size in sizes]

    def remember(self, base: int, values: list[bytes], timestamp: int) -> None:
        for at, value in enumerate(values):
            self.kept.append(Kept(base + at, timestamp, value, self.epoch, base))

    # --- what clients do --------------------------------------------------------------------------------------

    sizes = st.lists(st.integers(0, 120), min_size=1, max_size=4)
    times = st.integers(0, 200)

    @rule(sizes=sizes, timestamp=times, codec=st.sampled_from([0, 0, 1, 3]))
    def append(self, sizes: list[int], timestamp: int, codec: int) -> None:
        values = self.next_values(sizes)
        base = self.end
        answer = self.log.append(batch(*values, timestamp=timestamp, codec=codec), self.epoch, NOW)
        assert answer == (base, base + len(values) - 1, -1, False)
        self.remember(base, values, timestamp)

    @rule(producer=st.integers(1, 3), sizes=sizes, timestamp=times)
    def append_in_sequence(self, producer: int, sizes: list[int], timestamp: int) -> None:
        values = self.next_values(sizes)
        before = self.sent.setdefault(producer, [])
        sequence = before[-1][0] + len(before[-1][1]) if before else 0
        base = self.end
        answer = self.log.append(
            sequenced(sequence, *values, producer=producer, timestamp=timestamp), self.epoch, NOW
        )
        assert answer == (base, base + len(values) - 1, -1, False)
        self.remember(base, values, timestamp)
        before.append((sequence, values, timestamp, base))
        del before[:-WINDOW]

    @rule(producer=st.integers(1, 3), which=st.integers(0, WINDOW - 1))
    def repeat(self, producer: int, which: int) -> None:
        before = self.sent.get(producer)
        if before:
            sequence, values, timestamp, base = before[which % len(before)]
            answer = self.log.append(
                sequenced(sequence, *values, producer=producer, timestamp=timestamp), self.epoch, NOW
            )
            assert answer == (base, base + len(values) - 1, -1, True)

    @rule(producer=st.integers(1, 3))
    def leave_one_out(self, producer: int) -> None:
        before = self.sent.get(producer)
        if before:
            sequence = before[-1][0] + len(before[-1][1]) + 1
            with pytest.raises(Refusal) as caught:
                self.log.append(sequenced(sequence, b"v", producer=producer), self.epoch, NOW)
            assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    @rule()
    def damaged(self) -> None:
        data = bytearray(batch(b"value"))
        data[-2] ^= 1
        with pytest.raises(Refusal):
            self.log.append(bytes(data), self.epoch, NOW)

    # --- transactions -----------------------------------------------------------------------------------------

    transactional = st.integers(11, 13)

    def last_of(self, producer: int) -> tuple[int, int]:
        """A transactional producer's epoch and next sequence."""
        epoch = sequence = 0
        for step in self.steps:
            if step.producer == producer:
                if step.epoch != epoch:
                    epoch, sequence = step.epoch, 0
                if step.next_sequence is not None:
                    sequence = step.next_sequence
        return epoch, sequence

    def ended(self) -> tuple[dict[int, int], list[tuple[int, int, int, bool]]]:
        """The first offset of each open transaction; and (producer, first, marker, commit) of the others."""
        begun: dict[int, int] = {}
        ended = []
        for step in self.steps:
            if step.next_sequence is not None:
                begun.setdefault(step.producer, step.offset)
            elif step.producer in begun:
                ended.append((step.producer, begun.pop(step.producer), step.offset, step.commit))
        return begun, ended

    @rule(producer=transactional, sizes=sizes, timestamp=times)
    def append_in_transaction(self, producer: int, sizes: list[int], timestamp: int) -> None:
        values = self.next_values(sizes)
        epoch, sequence = self.last_of(producer)
        base = self.end
        data = sequenced(
            sequence, *values, producer=producer, epoch=epoch, timestamp=timestamp, transactional=True
        )
        assert self.log.append(data, self.epoch, NOW) == (base, base + len(values) - 1, -1, False)
        self.remember(base, values, timestamp)
        self.steps.append(Step(base, producer, epoch, sequence + len(values)))

    @rule(producer=transactional, commit=st.booleans(), bump=st.booleans())
    def end_transaction(self, producer: int, commit: bool, bump: bool) -> None:
        epoch = self.last_of(producer)[0] + bump
        base = self.end
        answer = self.log.append_marker(producer, epoch, 0, commit, self.epoch, NOW)
        assert answer == (base, base, -1, False)
        self.kept.append(Kept(base, NOW, MARKER, self.epoch, base))
        self.steps.append(Step(base, producer, epoch, None, commit))

    @rule(percent=st.integers(0, 100))
    def advance_the_high_watermark(self, percent: int) -> None:
        offset = self.watermark + (self.end - self.watermark) * percent // 100
        begins = next((kept.batch for kept in self.kept if kept.offset == offset), offset)
        self.watermark = max(self.watermark, begins)

    # --- what the broker does ---------------------------------------------------------------------------------

    @rule()
    def new_leader_epoch(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        self.log.roll(NOW)

    @rule()
    def flush(self) -> None:
        self.bench.flush(self.log)
        self.flushed_to = self.log.recovery_point
        assert self.log.recovery_point == self.log.flushed_offset == self.end

    @rule(percent=st.integers(0, 110))
    def delete_records(self, percent: int) -> None:
        offset = self.start + (self.end - self.start) * percent // 100
        end = self.end
        assert self.log.delete_before(offset) == (self.start < offset <= end)
        if self.start < offset <= end:
            self.kept = [kept for kept in self.kept if kept.offset >= offset]
            self.start = offset
        whole = sum(1 for base in self.log.bases[1:] if base <= self.start)
        self.bench.log_start_offset = self.start
        self.bench.remove(self.log.drop_segments(whole))

    @rule(bytes_max=st.integers(0, 3000))
    def retain(self, bytes_max: int) -> None:
        self.log.config = config(**SETTINGS, retention_bytes=bytes_max, retention_ms=-1)
        count = expired_segments(self.log, NOW, self.end)
        self.log.config = self.bench.config
        if count == len(self.log.segments):
            self.log.roll(NOW)
        before = self.log.log_start_offset
        dropped = self.log.drop_segments(count)
        start = max(before, self.log.bases[0]) if dropped else before
        end = self.end
        self.kept = [kept for kept in self.kept if kept.offset >= start]
        self.start = start
        assert self.end == end
        # The log start is durable before the files are removed.
        self.bench.log_start_offset = start
        self.bench.remove(dropped)

    @rule(percent=st.integers(0, 100))
    @precondition(lambda self: len(self.kept) > 0)
    def truncate(self, percent: int) -> None:
        offset = self.start + (self.end - self.start) * percent // 100
        cut = next((kept.batch for kept in self.kept if kept.offset == offset), offset)
        end = max(cut, self.log.bases[0])
        self.bench.remove(self.log.truncate(offset, NOW))
        self.kept = [kept for kept in self.kept if kept.offset < end]
        self.start = min(self.start, end)
        self.steps = [step for step in self.steps if step.offset < end]
        self.watermark = end
        self.flushed_to = min(self.flushed_to, end)
        self.bench.recovery_point = self.log.recovery_point
        self.bench.log_start_offset = self.start
        for producer, before in list(self.sent.items()):
            left = [entry for entry in before if entry[3] < end]
            if left and len(left) == len(before):
                continue
            # The window had five batches. Older ones come back as far as snapshots and the log have them. A
            # producer without any may be unknown, or known from a snapshot: either way it starts over.
            if left:
                self.sent[producer] = left
            else:
                del self.sent[producer]
                self.log.producers.by_id.pop(producer, None)

    # --- what happens -----------------------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        self.bench.stop(self.log)
        recovered = self.bench.recover(clean=True)
        self.log = recovered.log
        self.watermark = self.end
        assert recovered.cut_bytes == 0 and not recovered.damaged
        assert self.log.recovery_point == self.end
        self.flushed_to = self.end

    @rule()
    def kill(self) -> None:
        """The page cache stays: nothing is lost, flushed or not."""
        recovered = self.bench.recover()
        self.log = recovered.log
        self.watermark = self.end
        assert recovered.cut_bytes == 0 and not recovered.damaged
        assert self.log.recovery_point == max(self.flushed_to, self.log.bases[0])

    @rule(bytes_torn=st.integers(1, 60))
    def kill_inside_a_write(self, bytes_torn: int) -> None:
        with self.bench.file(f"{self.log.active.base_offset:020d}.log").open("ab") as file:
            file.write(batch(b"never whole")[:bytes_torn])
        recovered = self.bench.recover()
        self.log = recovered.log
        self.watermark = self.end
        assert recovered.cut_bytes == bytes_torn and not recovered.damaged

    # --- what must hold ---------------------------------------------------------------------------------------

    @invariant()
    def ends_where_the_list_does(self) -> None:
        log = self.log
        assert (log.log_start_offset, log.next_offset) == (self.start, self.end)
        assert log.bases == sorted({segment.base_offset for segment in log.segments})
        assert log.active is log.segments[-1]
        assert log.recovery_point <= log.flushed_offset <= log.next_offset
        assert all(len(segment.tail_ends) <= 512 for segment in log.segments)

    @invariant()
    def reads_what_the_list_reads(self) -> None:
        found = [
            (record.offset, record.timestamp_ms, record.value) for record in records(self.log, bytes_max=400)
        ]
        kept = [kept for kept in self.kept if kept.value is not MARKER]
        assert found == [each[:3] for each in kept]
        if kept:
            middle = kept[len(kept) // 2].offset
            assert records(self.log, middle)[0].offset == middle

    @invariant()
    def reads_what_was_committed(self) -> None:
        begun, ended = self.ended()
        if self.watermark < self.start:
            # Only records below it are deleted.
            self.watermark = self.end
        unstable = [*begun.values(), *(first for _, first, marker, _ in ended if marker >= self.watermark)]
        stable = min([max(first, self.start) for first in unstable] + [self.watermark])
        assert self.log.last_stable_offset(self.watermark) == stable
        writers = {step.offset: step.producer for step in self.steps if step.next_sequence is not None}
        aborted = [(producer, first, marker) for producer, first, marker, commit in ended if not commit]
        expected = [
            kept[:3]
            for kept in self.kept
            if kept.value is not MARKER
            and kept.offset < stable
            and not any(
                writers.get(kept.batch) == producer and first <= kept.offset < marker
                for producer, first, marker in aborted
            )
        ]
        found = committed(self.log, stable, bytes_max=300)
        assert [(record.offset, record.timestamp_ms, record.value) for record in found] == expected

    @invariant()
    def finds_times_as_the_list_does(self) -> None:
        for timestamp in (0, 50, 199, 201):
            expected = next((kept[:2] for kept in self.kept if kept.timestamp >= timestamp), None)
            assert run(self.log.look_up_time(timestamp)) == expected
        newest = max((kept.timestamp for kept in self.kept), default=None)
        expected = next((kept[:2] for kept in self.kept if kept.timestamp == newest), None)
        assert run(self.log.look_up_newest()) == expected

    @invariant()
    def knows_the_leader_epochs(self) -> None:
        for kept in self.kept[:: max(1, len(self.kept) // 5)]:
            assert self.log.epochs.epoch_of(kept.offset) == kept.leader_epoch


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=100, stateful_step_count=40)
