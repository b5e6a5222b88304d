from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.log.log_reader import find_newest
from ottla.log.partition_log import PartitionLog
from ottla.log.segment import Segment
from ottla.model.steps import run
from ottla.records.record import Record, encode_batch
from ottla.runtime.disk import SystemDisk
from tests.log.log_bench import NOW, Bench, batch, fill, records


def first_at(found: list[Record], timestamp: int) -> tuple[int, int] | None:
    """By timestamp, without an index."""
    return next(((r.offset, r.timestamp_ms) for r in found if r.timestamp_ms >= timestamp), None)


def newest(found: list[Record]) -> tuple[int, int] | None:
    stamped = [record for record in found if record.timestamp_ms >= 0]
    best = max((record.timestamp_ms for record in stamped), default=None)
    return next(((r.offset, r.timestamp_ms) for r in stamped if r.timestamp_ms == best), None)


def check(log: PartitionLog, times: range) -> None:
    found = records(log)
    for timestamp in times:
        assert run(log.look_up_time(timestamp)) == first_at(found, timestamp), timestamp
    assert run(log.look_up_newest()) == newest(found)


def test_an_empty_log_has_no_times(bench: Bench) -> None:
    log = bench.create()
    assert run(log.look_up_time(0)) is None
    assert run(log.look_up_newest()) is None


def test_a_log_whose_records_were_all_deleted_has_no_times(bench: Bench) -> None:
    log = bench.create()
    fill(log, 5)
    log.delete_before(5)
    assert run(log.look_up_time(0)) is None
    assert run(log.look_up_newest()) is None


def test_records_without_timestamps_are_not_found(bench: Bench) -> None:
    log = bench.create()
    log.append(batch(b"a", timestamp=-1), 0, NOW)
    assert run(log.look_up_time(0)) is None
    assert run(log.look_up_newest()) is None


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_the_first_of_several_records_in_a_batch_is_found(bench: Bench, codec: int) -> None:
    log = bench.create()
    log.append(batch(*[b"v"] * 6, timestamps=[5, 3, 9, 9, 2, 7], codec=codec), 0, NOW)
    log.append(batch(*[b"v"] * 3, timestamps=[1, 20, 4], codec=codec), 0, NOW)
    check(log, range(25))
    assert run(log.look_up_time(6)) == (2, 9)
    assert run(log.look_up_newest()) == (7, 20)


def test_growing_times_over_segments(bench: Bench) -> None:
    log = bench.create(segment_bytes=3000, index_interval_bytes=250)
    fill(log, 200, step_ms=10)
    check(log, range(NOW - 5, NOW + 2020, 7))


def test_equal_times_are_found_at_their_first_record(bench: Bench) -> None:
    log = bench.create(index_interval_bytes=200, segment_bytes=5000)
    for at in range(200):
        log.append(batch(b"v" * 20, timestamp=1000 + at // 30), 0, NOW)
    check(log, range(999, 1009))


@pytest.mark.parametrize("start", [1, 7, 8, 9, 77, 150, 163, 199, 200])
def test_only_what_is_left_of_the_log_is_found(bench: Bench, start: int) -> None:
    log = bench.create(segment_bytes=3000, index_interval_bytes=250)
    for at in range(50):
        log.append(batch(*[b"v"] * 4, timestamps=[(at * 37 + n * 11) % 500 for n in range(4)]), 0, NOW)
    log.delete_before(start)
    check(log, range(505))


@given(
    st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=4), min_size=1, max_size=60),
    st.integers(0, 100),
    st.integers(0, 400),
)
@settings(max_examples=60)
def test_times_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, times: list[list[int]], start_percent: int, interval: int
) -> None:
    bench = Bench(tmp_path_factory.mktemp("log"))
    log = bench.create(segment_bytes=1500, index_interval_bytes=interval)
    for at, timestamps in enumerate(times):
        log.append(batch(*[b"v"] * len(timestamps), timestamps=timestamps), 0, NOW)
        if at % 20 == 10:
            # Flushes add entries to the time index at any position.
            bench.flush(log)
    log.delete_before(log.next_offset * start_percent // 100)
    check(log, range(62))
    bench.flush(log)
    bench.log_start_offset = log.log_start_offset
    check(bench.recover().log, range(62))
    bench.disk.release()


def test_a_cold_look_up_by_time_reads_little_even_when_time_stands_still(bench: Bench) -> None:
    """One record far ahead of its time must not make every later lookup a scan."""
    log = bench.create()
    value = b"v" * 1000
    log.append(batch(value, timestamp=NOW + 1000), 0, NOW)
    for at in range(20_000):
        log.append(batch(value, timestamp=NOW + at // 25), 0, NOW)
    log.append(batch(value, timestamp=NOW + 2000), 0, NOW)
    log.roll(NOW)
    fill(log, 1)
    for timestamp, expected in ((NOW + 1500, 20_001), (NOW + 2000, 20_001), (NOW + 1000, 0)):
        bench.disk.reads.clear()
        found = run(log.look_up_time(timestamp))
        assert found is not None and found[0] == expected
        assert len(bench.disk.reads) < 40
        assert bench.disk.bytes_read < 100_000
    bench.disk.reads.clear()
    assert run(log.look_up_newest()) == (20_001, NOW + 2000)
    assert bench.disk.bytes_read < 100_000


def test_the_newest_timestamp_where_a_batch_has_no_record_left(tmp_path: Path) -> None:
    """Compaction removed its last records, and the log starts after the remaining ones."""
    disk = SystemDisk()
    segment = Segment(disk, str(tmp_path), 0, index_bytes_max=1000, created_ms=0, create=True)
    batch = encode_batch([Record(2, 500, b"k", b"v")], keep_offsets=True, last_offset_delta=9)
    segment.append((batch,), len(batch), 9, 500, 4096)
    assert run(find_newest([segment], 5)) is None
    disk.release()
