import struct
from collections.abc import Callable

import pytest

from ottla.log.partition_log import PartitionLog
from ottla.log.segment import Segment
from tests.log.log_bench import NOW, Bench, batch, fill


def count_walk(segment: Segment) -> list[int]:
    return [head.position for head in segment.heads()]


def check_every_offset(segment: Segment) -> None:
    """`locate` against the plain list of batches."""
    heads = list(segment.heads())
    for offset in range(segment.base_offset, segment.next_offset + 3):
        expected = next((head.position for head in heads if head.last_offset >= offset), segment.size)
        assert segment.locate(offset) == expected, offset


def mixed(log: PartitionLog, batches: int) -> None:
    """Batches of one to four records and uneven sizes."""
    for at in range(batches):
        log.append(batch(*[b"v" * (at % 97)] * (at % 4 + 1)), 0, NOW)


@pytest.mark.parametrize("batches", [1, 2, 511, 512, 513, 514, 1500])
def test_every_offset_is_located_whatever_the_tail_remembers(bench: Bench, batches: int) -> None:
    log = bench.create()
    mixed(log, batches)
    check_every_offset(log.active)


def test_every_offset_is_located_without_a_tail(bench: Bench) -> None:
    log = bench.create(index_interval_bytes=300)
    mixed(log, 300)
    log.active.finish()
    assert len(log.active.tail_ends) == 0
    check_every_offset(log.active)


def test_offsets_in_a_gap_are_located_at_the_batch_after_it(bench: Bench) -> None:
    """Logs of other brokers have gaps after compaction."""
    log = bench.create(index_interval_bytes=0)
    for base in (0, 10, 20, 30):
        log.next_offset = base
        log.append(batch(b"a", b"b"), 0, NOW)
    check_every_offset(log.active)
    assert log.active.locate(5) == log.active.locate(10) != log.active.locate(1)
    log.active.finish()
    check_every_offset(log.active)


def test_the_tail_is_bounded(bench: Bench) -> None:
    log = bench.create()
    fill(log, 3000, size=1)
    assert len(log.active.tail_ends) == len(log.active.tail_positions) <= 512
    assert len(log.active.tail_ends) >= 256


def test_an_index_entry_stands_for_the_last_offset_of_its_batch_once_an_interval(bench: Bench) -> None:
    log = bench.create(index_interval_bytes=500)
    mixed(log, 60)
    log.active.flush_indexes()
    data = bench.file("00000000000000000000.index").read_bytes()
    entries = list(struct.iter_unpack(">ii", data))
    heads = {head.position: head for head in log.active.heads()}
    assert len(entries) > 5
    since, expected = 0, []
    for head in heads.values():
        if since > 500:
            expected.append((head.last_offset, head.position))
            since = 0
        since += head.size
    assert entries == expected


def test_a_cold_look_up_in_a_large_segment_reads_little(bench: Bench) -> None:
    log = bench.create()
    value = b"v" * 1900
    for _ in range(20_000):
        log.append(batch(value), 0, NOW)
    segment = log.active
    segment.finish()
    assert segment.size > 37 << 20
    for offset in (0, 7, 9_999, 19_998):
        bench.disk.reads.clear()
        position = segment.locate(offset)
        assert struct.unpack(">q", bench.disk.read(segment.file, position, 8))[0] == offset
        # log2(10,000 index entries / one block) + the block + an interval of headers
        assert len(bench.disk.reads) <= 10
        assert bench.disk.bytes_read < 32 << 10


@pytest.mark.parametrize(
    "cut",
    [
        lambda segment: segment.base_offset,
        lambda segment: segment.base_offset + 1,
        lambda segment: segment.next_offset - 1,
        lambda segment: segment.tail_ends[0] + 1,
        lambda segment: segment.tail_ends[0] - 5,
        lambda segment: segment.tail_ends[10] + 1,
    ],
    ids=["all", "the first batch", "the last record", "start of the tail", "before the tail", "in the tail"],
)
def test_truncation_leaves_a_segment_as_if_the_rest_had_never_been(
    bench: Bench, cut: Callable[[Segment], int]
) -> None:
    log = bench.create(index_interval_bytes=200)
    for at in range(900):
        log.append(batch(*[b"v" * (at % 50)] * (at % 3 + 1), timestamp=NOW + at % 100), 0, NOW)
    segment = log.active
    heads = list(segment.heads())
    offset = cut(segment)
    segment.truncate(offset)

    kept = [head for head in heads if head.last_offset < offset]
    assert list(segment.heads()) == kept
    assert segment.size == sum(head.size for head in kept)
    assert segment.next_offset == (kept[-1].last_offset + 1 if kept else 0)
    assert segment.max_timestamp == max((head.max_timestamp for head in kept), default=-1)
    if kept:
        first = next(head for head in kept if head.max_timestamp == segment.max_timestamp)
        assert segment.max_timestamp_offset == first.last_offset
    assert segment.first_timestamp == (kept[0].max_timestamp if kept else -1)
    check_every_offset(segment)
    last = segment.index.last()
    assert last is None or last[0] < segment.next_offset
    newest = segment.times.last()
    assert newest is None or newest[1] < segment.next_offset


def test_truncation_inside_a_batch_takes_the_batch(bench: Bench) -> None:
    log = bench.create()
    log.append(batch(b"a"), 0, NOW)
    log.append(batch(b"b", b"c", b"d"), 0, NOW)
    log.active.truncate(3)
    assert log.active.next_offset == 1


def test_new_files_are_empty_whatever_stood_there(bench: Bench) -> None:
    log = bench.create()
    fill(log, 5)
    for suffix in ("log", "index", "timeindex"):
        bench.file(f"{5:020d}.{suffix}").write_bytes(b"left over from a roll that failed")
    segment = log.roll(NOW)
    fill(log, 1)
    assert count_walk(segment) == [0]
    assert bench.file(f"{5:020d}.log").stat().st_size == segment.size
