"""Compaction of one log: which records stay, which go, and what a reader finds."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from ottla.log.compaction import Outcome, Task, clean
from ottla.log.partition_log import PartitionLog
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.steps import run
from ottla.records.batch import DELETE_HORIZON_BIT, HEADER
from ottla.records.errors import CorruptRecords
from ottla.records.record import Record, decode_batches, encode_batch, whole_batches
from tests.log.compaction_pass import DAY_MS, compact, keyed, swap_in, task_of
from tests.log.log_bench import NOW, Bench, records

COMPACTED = {"cleanup_policy": "compact", "segment_bytes": 2000, "index_interval_bytes": 100}


def fill(bench: Bench, batches: Sequence[bytes], **settings: object) -> PartitionLog:
    """A log of these batches, all in closed and flushed segments."""
    log = bench.create(**{**COMPACTED, **settings})
    append(bench, log, batches)
    return log


def append(bench: Bench, log: PartitionLog, batches: Sequence[bytes]) -> None:
    for data in batches:
        log.append(data, 0, NOW)
    log.roll(NOW)
    bench.flush(log)


def pairs(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in readable(log)]


def readable(log: PartitionLog) -> list[Record]:
    """All records, batch by batch: a batch may have none."""
    found = []
    for segment in log.segments:
        found += decode_batches(log.disk.read(segment.file, 0, segment.size))
    return found


def headers(log: PartitionLog) -> list[tuple[int, ...]]:
    return [
        HEADER.unpack_from(batch)
        for segment in log.segments
        for batch in whole_batches(log.disk.read(segment.file, 0, segment.size))
    ]


# --- what stays -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_the_newest_record_of_each_key_stays_where_it_was(bench: Bench, codec: int) -> None:
    log = fill(
        bench,
        [
            keyed((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), codec=codec),
            keyed((b"c", b"1"), (b"b", b"2"), codec=codec),
            keyed((b"a", b"3"), codec=codec),
        ],
    )
    compact(log)
    assert pairs(log) == [(3, b"c", b"1"), (4, b"b", b"2"), (5, b"a", b"3")]
    assert records(log, 0) == readable(log)


def test_timestamps_headers_and_offsets_are_those_they_were(bench: Bench) -> None:
    of_the_first = [
        Record(0, NOW + 5, b"a", b"old", (("h", b"1"),)),
        Record(1, NOW + 900, b"b", b"kept", (("h", b"2"), ("h", None))),
        Record(2, NOW + 7, b"a", b"old"),
        Record(3, NOW + 3, b"d", b"", (("x", b""),)),
    ]
    log = fill(bench, [encode_batch(of_the_first), keyed((b"a", b"new"))])
    before = readable(log)
    compact(log)
    assert readable(log) == [before[1], before[3], before[4]]
    header = headers(log)[0]
    assert (header[0], header[6], header[7], header[8], header[12]) == (0, 3, NOW + 5, NOW + 900, 2)


def test_the_largest_timestamp_goes_with_its_record(bench: Bench) -> None:
    batch = encode_batch([Record(0, NOW + 9000, b"a", b"1"), Record(1, NOW + 1, b"b", b"1")])
    log = fill(bench, [batch, keyed((b"a", b"2"))])
    assert run(log.look_up_newest()) == (0, NOW + 9000)
    compact(log)
    assert run(log.look_up_newest()) == (1, NOW + 1)
    assert run(log.look_up_time(NOW + 2)) is None
    assert run(log.look_up_time(NOW + 1)) == (1, NOW + 1)


def test_a_batch_that_loses_nothing_is_the_same_to_the_byte(bench: Bench) -> None:
    batches = [keyed((b"k%d" % at, b"v" * 50), codec=at % 5) for at in range(20)]
    log = fill(bench, [*batches, keyed((b"k0", b"new"))])
    first = log.segments[0]
    before = log.disk.read(first.file, 0, first.size)
    compact(log)
    after = log.disk.read(log.segments[0].file, 0, log.segments[0].size)
    assert before.endswith(after[: len(before) - len(batches[0])])


def test_what_is_not_closed_or_not_flushed_is_not_touched(bench: Bench) -> None:
    log = fill(bench, [keyed((b"a", b"1")), keyed((b"a", b"2"))])
    log.append(keyed((b"a", b"3")), 0, NOW)
    log.roll(NOW)
    log.append(keyed((b"a", b"4")), 0, NOW)
    compact(log)
    assert pairs(log) == [(1, b"a", b"2"), (2, b"a", b"3"), (3, b"a", b"4")]


def test_records_without_a_key_from_before_the_topic_was_compacted_go(bench: Bench) -> None:
    log = bench.create(**{**COMPACTED, "cleanup_policy": "delete"})
    append(bench, log, [keyed((None, b"x"), (b"a", b"1")), keyed((None, b"y"), (b"b", b"1"))])
    compact(log)
    assert pairs(log) == [(1, b"a", b"1"), (3, b"b", b"1")]


def test_a_second_pass_finds_nothing_to_do_and_a_third_only_what_is_new(bench: Bench) -> None:
    log = fill(bench, [keyed((b"a", b"1")), keyed((b"a", b"2"))])
    assert compact(log) is not None
    assert task_of(log) is None
    append(bench, log, [keyed((b"b", b"1")), keyed((b"a", b"3"))])
    task = task_of(log)
    assert task is not None
    assert task.first_dirty == 2
    outcome = clean(log.disk, task)
    swap_in(log, task, outcome)
    assert outcome.keys == 2
    assert pairs(log) == [(2, b"b", b"1"), (3, b"a", b"3")]


def test_small_segments_become_one_and_a_segment_that_keeps_everything_stays(bench: Bench) -> None:
    log = fill(bench, [keyed((b"k", b"%d" % at * 300)) for at in range(40)])
    assert len(log.segments) > 5
    compact(log)
    assert len(log.segments) > 1
    append(bench, log, [keyed((b"z", b"1"))])
    compact(log)
    assert log.bases[0] == 0
    assert len(log.segments) == 2
    assert log.bases == [segment.base_offset for segment in log.segments]
    assert [segment.next_offset for segment in log.segments[:-1]] == log.bases[1:]
    append(bench, log, [keyed((b"y%d" % at, b"x" * 900)) for at in range(2)])
    before = log.segments[:]
    compact(log)
    append(bench, log, [keyed((b"w", b"1"))])
    kept = log.segments[1]
    compact(log)
    assert kept in log.segments or kept not in before


def outputs(log: PartitionLog, **limits: int) -> list[tuple[int, int]]:
    """(base offset, inputs) of the outputs of a pass within these limits."""
    task = task_of(log)
    assert task is not None
    return [(each.base_offset, each.inputs) for each in clean(log.disk, task._replace(**limits)).outputs]


def test_an_output_keeps_within_the_sizes_and_the_offsets_of_one_segment(bench: Bench) -> None:
    log = bench.create(**COMPACTED)
    for at in range(70):
        append(bench, log, [keyed((b"a", b"%d" % at)), keyed((b"b%d" % at, b"x" * 30))])
    sizes = [segment.size for segment in log.segments]
    assert outputs(log, segment_bytes=1 << 20) == [(0, 32), (64, 32), (128, 6)]
    # An output reserves the full size of each input; removed records make room for more.
    first, *_ = outputs(log, segment_bytes=5 * sizes[0])
    assert 5 < first[1] < 12
    assert outputs(log, segment_bytes=1)[:2] == [(0, 1), (2, 1)]
    assert max(inputs for _base, inputs in outputs(log, segment_bytes=1 << 20, index_bytes=0)) < 5
    task = task_of(log)
    assert task is not None
    far = tuple(each._replace(next_offset=each.next_offset + (1 << 31)) for each in task.inputs)
    assert [
        each.inputs for each in clean(log.disk, task._replace(inputs=far, segment_bytes=1 << 20)).outputs
    ][:2] == [1, 1]


def test_an_output_of_a_topic_with_retention_spans_no_more_time_than_a_segment_may(bench: Bench) -> None:
    log = bench.create(**{**COMPACTED, "cleanup_policy": "compact,delete", "segment_ms": 1000})
    for at in range(6):
        append(
            bench,
            log,
            [
                keyed((b"a", b"1"), timestamp=NOW + 600 * at),
                keyed((b"b%d" % at, b"1"), timestamp=NOW + 600 * at),
            ],
        )
    assert outputs(log, segment_bytes=1 << 20) == [(0, 2), (4, 2), (8, 2)]


def test_a_fetch_does_not_come_back_without_records_while_there_are_some(bench: Bench) -> None:
    """librdkafka treats that as a message that is too large, and gives up after a few of them."""
    log = bench.create(**COMPACTED, retention_ms=-1)
    for _ in range(40):
        append(bench, log, [keyed((b"a", b"x" * 1500))])
    compact(log)
    assert len(log.segments) > 2
    assert sum(segment.size == 61 for segment in log.segments) >= 1
    piece = log.slice(0, log.next_offset, 1 << 20, whole_first=True)
    assert piece is not None
    assert [
        record.offset for record in decode_batches(log.disk.read(piece.file, piece.position, piece.size))
    ] == [39]
    # Without later batches the header has the end offset.
    piece = log.slice(0, log.bases[1], 1 << 20, whole_first=True)
    assert piece is not None
    assert piece.size == 61


# --- tombstones -----------------------------------------------------------------------------------------------------


def test_a_tombstone_stays_for_its_time_and_then_goes(bench: Bench) -> None:
    log = fill(
        bench, [keyed((b"a", b"1"), (b"b", b"1")), keyed((b"a", None), (b"c", b"1"), timestamp=NOW + 5)]
    )
    compact(log, now_ms=NOW + 100)
    assert pairs(log) == [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    assert [record.timestamp_ms for record in readable(log)] == [NOW, NOW + 5, NOW + 5]
    horizon = NOW + 100 + DAY_MS
    header = headers(log)[1]
    assert header[5] & DELETE_HORIZON_BIT
    assert (header[7], header[8]) == (horizon, NOW + 5)

    append(bench, log, [keyed((b"d", b"1"))])
    compact(log, now_ms=horizon - 1)
    assert (2, b"a", None) in pairs(log)
    assert headers(log)[1][7] == horizon, "the horizon is set once"
    append(bench, log, [keyed((b"e", b"1"))])
    compact(log, now_ms=horizon)
    assert pairs(log) == [(1, b"b", b"1"), (3, b"c", b"1"), (4, b"d", b"1"), (5, b"e", b"1")]
    assert [record.timestamp_ms for record in readable(log)][:2] == [NOW, NOW + 5]


def test_a_tombstone_of_a_compressed_batch_and_of_append_time(bench: Bench) -> None:
    log = fill(
        bench, [keyed((b"a", None), codec=4), keyed((b"b", None))], message_timestamp_type="LogAppendTime"
    )
    compact(log, now_ms=NOW + 1)
    assert [(record.key, record.timestamp_ms) for record in readable(log)] == [(b"a", NOW), (b"b", NOW)]
    assert all(header[5] & DELETE_HORIZON_BIT for header in headers(log))


def test_a_tombstone_that_the_map_does_not_reach_yet_has_no_horizon(bench: Bench) -> None:
    log = fill(bench, [keyed(*((b"%d" % at, b"1") for at in range(30))), keyed((b"x", None))])
    outcome = compact(log, memory_bytes=24 * 32)
    assert outcome is not None
    assert outcome.map_end == 30
    assert not any(header[5] & DELETE_HORIZON_BIT for header in headers(log))


# --- producers ------------------------------------------------------------------------------------------------------


def test_the_last_sequences_of_a_producer_survive_in_empty_batches(bench: Bench) -> None:
    log = bench.create(**COMPACTED)

    def send(sequence: int, key: bytes, producer: int = 7) -> bytes:
        return keyed((key, b"v"), producer_id=producer, producer_epoch=0, base_sequence=sequence)

    append(bench, log, [send(0, b"a"), send(1, b"b"), send(0, b"a", 8), send(1, b"b", 8)])
    append(bench, log, [send(2, b"a", 8)])
    compact(log)
    assert pairs(log) == [(3, b"b", b"v"), (4, b"a", b"v")]
    emptied = [header for header in headers(log) if header[12] == 0]
    assert [(header[0], header[9], header[11]) for header in emptied] == [(0, 7, 0), (1, 7, 1), (2, 8, 0)]
    # With only the log to restore the state from.
    for name in bench.names(".snapshot"):
        bench.file(name).unlink()
    bench.recovery_point = 0
    log = bench.recover().log
    assert log.producers.check(7, 0, 2, 1) is None
    # A duplicate gets the offset of the record, though it was compacted away.
    assert log.append(send(0, b"a"), 0, NOW) == (0, 0, -1, True)
    with pytest.raises(Refusal) as caught:
        log.producers.check(7, 0, 3, 1)
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append(send(2, b"z"), 0, NOW).base_offset == 5


def test_an_empty_batch_goes_when_its_producer_is_forgotten(bench: Bench) -> None:
    log = bench.create(**COMPACTED)
    batch = keyed((b"a", b"1"), producer_id=7, producer_epoch=0, base_sequence=0)
    append(bench, log, [batch, keyed((b"a", b"2"))])
    compact(log)
    assert len(headers(log)) == 2
    log.producers.expire(NOW + 1)
    append(bench, log, [keyed((b"b", b"1"))])
    compact(log)
    assert [header[0] for header in headers(log)] == [1, 2]


# --- transactions ---------------------------------------------------------------------------------------------------


def transactional(sequence: int, *records: tuple[bytes, bytes | None], producer: int = 7) -> bytes:
    return keyed(*records, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True)


def end_transaction(log: PartitionLog, *, commit: bool, producer: int = 7) -> None:
    log.append_marker(producer, 0, 0, commit, 0, NOW)


def test_aborted_records_go_and_do_not_hide_older_ones(bench: Bench) -> None:
    log = bench.create(**COMPACTED)
    append(bench, log, [keyed((b"a", b"committed"))])
    append(bench, log, [transactional(0, (b"a", b"aborted"), (b"b", b"aborted"))])
    end_transaction(log, commit=False)
    append(bench, log, [transactional(2, (b"c", b"committed"))])
    end_transaction(log, commit=True)
    append(bench, log, [keyed((b"z", b"1"))])
    compact(log)
    assert pairs(log) == [(0, b"a", b"committed"), (4, b"c", b"committed"), (6, b"z", b"1")]
    # A read_committed consumer still gets it, as long as the marker exists.
    assert [row.last_offset for segment in log.segments for row in aborted(segment)] == [3]
    log = bench.recover().log
    assert [row.last_offset for segment in log.segments for row in aborted(segment)] == [3]
    assert pairs(log) == [(0, b"a", b"committed"), (4, b"c", b"committed"), (6, b"z", b"1")]


def aborted(segment: object) -> list[object]:
    found: list[object] = []
    segment.aborted.collect(0, 1 << 40, found)  # type: ignore[attr-defined]
    return found


def test_a_marker_goes_after_its_records_and_its_horizon(bench: Bench) -> None:
    log = bench.create(**COMPACTED)
    append(bench, log, [transactional(0, (b"a", b"1"))])
    end_transaction(log, commit=True)
    append(bench, log, [transactional(1, (b"b", b"1"))])
    end_transaction(log, commit=False)
    append(bench, log, [keyed((b"a", b"2")), keyed((b"b", b"2"))])

    def markers() -> list[tuple[int, bool]]:
        return [
            (header[0], bool(header[5] & DELETE_HORIZON_BIT)) for header in headers(log) if header[5] & 0x20
        ]

    now = NOW
    compact(log, now_ms=now)
    assert markers() == [(1, False), (3, False)]
    # The producer's last batch stays, empty, and with it the marker that ends its transaction.
    log.producers.expire(NOW + 1)
    for step in range(3):
        append(bench, log, [keyed((b"new%d" % step, b"1"))])
        compact(log, now_ms=now + step)
    assert markers() == [(1, True), (3, True)]
    append(bench, log, [keyed((b"c", b"1"))])
    compact(log, now_ms=now + DAY_MS + 10)
    assert markers() == []
    assert [row for segment in log.segments for row in aborted(segment)] == []


def test_an_open_transaction_is_not_reached(bench: Bench) -> None:
    log = bench.create(**COMPACTED)
    append(bench, log, [keyed((b"a", b"1")), keyed((b"a", b"2"))])
    append(bench, log, [transactional(0, (b"a", b"3"))])
    append(bench, log, [keyed((b"a", b"4"))])
    task = task_of(log)
    assert task is not None
    assert task.end == 2
    compact(log)
    assert pairs(log) == [(1, b"a", b"2"), (2, b"a", b"3"), (3, b"a", b"4")]
    end_transaction(log, commit=False)
    append(bench, log, [])
    compact(log)
    assert pairs(log) == [(3, b"a", b"4")]


# --- bounds ---------------------------------------------------------------------------------------------------------


def test_more_keys_than_the_map_holds_take_several_passes(bench: Bench) -> None:
    batches = [keyed(*((b"key%d" % (at * 10 + i), b"%d" % turn) for i in range(10))) for turn in range(3) for at in range(30)]  # fmt: skip
    log = fill(bench, batches)
    passes = 0
    while (outcome := compact(log, memory_bytes=24 * 128)) is not None:
        assert outcome.keys <= 115
        passes += 1
    assert 4 < passes < 30
    assert [value for _offset, _key, value in pairs(log)] == [b"2"] * 300


def test_a_batch_of_more_keys_than_the_map_holds_gets_a_larger_one(bench: Bench) -> None:
    log = fill(bench, [keyed(*((b"%d" % at, b"1") for at in range(100))), keyed((b"5", b"2"))])
    outcome = compact(log, memory_bytes=24 * 8)
    assert outcome is not None
    assert (outcome.map_end, outcome.keys) == (100, 100)
    compact(log, memory_bytes=24 * 8)
    assert len(pairs(log)) == 100


def test_a_damaged_batch_stops_the_pass_and_nothing_changes(bench: Bench) -> None:
    log = fill(bench, [keyed((b"a", b"1" * 50)), keyed((b"a", b"2" * 50))])
    path = Path(log.segments[0].file.path)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    task = task_of(log)
    assert task is not None
    with pytest.raises(CorruptRecords):
        clean(log.disk, task)
    assert path.read_bytes() == data


def test_tasks_and_outcomes_are_the_same_after_json(bench: Bench) -> None:
    log = bench.create(**COMPACTED)
    append(bench, log, [transactional(0, (b"a", b"1"))])
    end_transaction(log, commit=False)
    append(
        bench,
        log,
        [keyed((b"a", b"1"), producer_id=3, producer_epoch=0, base_sequence=0), keyed((b"a", b"2"))],
    )
    task = task_of(log)
    assert task is not None
    assert task.aborted
    assert Task.parse(json.loads(json.dumps(task._asdict()))) == task
    outcome = clean(log.disk, task)
    assert outcome.outputs
    assert Outcome.parse(json.loads(json.dumps(outcome._asdict()))) == outcome


@pytest.mark.parametrize("cut", [1, 61, 70, 200])
def test_a_segment_that_is_shorter_than_it_was_stops_the_pass(bench: Bench, cut: int) -> None:
    log = fill(bench, [keyed((b"a", b"1" * 50)), keyed((b"a", b"2" * 50))])
    task = task_of(log)
    assert task is not None
    path = Path(log.segments[0].file.path)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(CorruptRecords):
        clean(log.disk, task)
    # And one that ends in the middle of a batch.
    task = task._replace(inputs=(task.inputs[0]._replace(size=path.stat().st_size),))
    if cut in (1, 61, 200):
        with pytest.raises(CorruptRecords):
            clean(log.disk, task)


def test_a_batch_larger_than_one_read(bench: Bench) -> None:
    large = keyed((b"a", b"x" * (5 << 20)))
    log = fill(bench, [keyed((b"b", b"1")), large, keyed((b"b", b"2"))], max_message_bytes=8 << 20)
    compact(log)
    assert [offset for offset, _key, _value in pairs(log)] == [1, 2]
