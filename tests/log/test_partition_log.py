import struct
from itertools import pairwise

import pytest

from ottla.log import names
from ottla.log.partition_log import PartitionLog
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.steps import run
from ottla.ports.disk import DiskError
from ottla.records.batch import HEADER, crc_of
from ottla.records.record import decode_batch
from tests.log.log_bench import NOW, Bench, batch, config, fill, full, read_slice, records, sequenced, values

FIELDS = ("base_offset", "length", "epoch", "magic", "crc", "attributes", "delta", "base_time", "max_time",
          "producer_id", "producer_epoch", "sequence", "count")  # fmt: skip


def edited(data: bytes, *, right_crc: bool = True, **fields: int) -> bytes:
    """The batch with other header fields."""
    header = dict(zip(FIELDS, HEADER.unpack_from(data), strict=True)) | fields
    made = bytearray(HEADER.pack(*header.values()) + data[HEADER.size :])
    if right_crc:
        struct.pack_into(">I", made, 17, crc_of(made))
    return bytes(made)


def refused(log: PartitionLog, data: bytes) -> ErrorCode:
    before = (log.next_offset, log.active.size, len(log.active.tail_ends))
    with pytest.raises(Refusal) as caught:
        log.append(data, 0, NOW)
    assert (log.next_offset, log.active.size, len(log.active.tail_ends)) == before
    assert caught.value.message
    return caught.value.code


# --- append -----------------------------------------------------------------------------------------------------------


def test_a_batch_gets_its_offsets_and_epoch_and_is_otherwise_stored_as_it_came(bench: Bench) -> None:
    log = bench.create(start_offset=100)
    first, second = batch(b"a", b"b"), batch(b"c", codec=1)
    assert log.append(first, 3, NOW)[:4] == (100, 101, -1, False)
    assert log.append(second, 3, NOW).base_offset == 102
    stored = bench.file(f"{100:020d}.log").read_bytes()
    for offset, came, at in ((100, first, 0), (102, second, len(first))):
        assert stored[at : at + 8] == struct.pack(">q", offset)
        assert stored[at + 8 : at + 12] == came[8:12]
        assert stored[at + 12 : at + 16] == struct.pack(">i", 3)
        assert stored[at + 16 : at + len(came)] == came[16:]
    assert len(stored) == len(first) + len(second)


def test_what_was_appended_is_read_back(bench: Bench) -> None:
    log = bench.create(segment_bytes=1000)
    fill(log, 100)
    assert [record.offset for record in records(log)] == list(range(100))
    assert records(log, 57)[0].offset == 57
    assert len(log.segments) > 5


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.CORRUPT_MESSAGE),
        (batch(b"a")[:60], ErrorCode.CORRUPT_MESSAGE),
        (batch(b"a")[:-1], ErrorCode.CORRUPT_MESSAGE),
        (batch(b"a") + batch(b"b"), ErrorCode.INVALID_RECORD),
        (edited(batch(b"a"), length=-1), ErrorCode.CORRUPT_MESSAGE),
        (edited(batch(b"a"), length=2**31 - 1), ErrorCode.CORRUPT_MESSAGE),
        (edited(batch(b"a"), magic=1), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (edited(batch(b"a"), magic=3), ErrorCode.CORRUPT_MESSAGE),
        (edited(batch(b"a"), right_crc=False, crc=1), ErrorCode.CORRUPT_MESSAGE),
        (batch(b"abc")[:-3] + b"xyz", ErrorCode.CORRUPT_MESSAGE),
        (edited(batch(b"a"), count=2), ErrorCode.INVALID_RECORD),
        (edited(batch(b"a"), delta=1), ErrorCode.INVALID_RECORD),
        (edited(batch(b"a"), delta=-1, count=0), ErrorCode.INVALID_RECORD),
        (edited(batch(b"a"), attributes=0x20), ErrorCode.INVALID_RECORD),
        (edited(batch(b"a"), attributes=0x40), ErrorCode.INVALID_RECORD),
        (edited(batch(b"a"), attributes=0x80), ErrorCode.INVALID_RECORD),
        (edited(batch(b"a"), attributes=-0x8000), ErrorCode.INVALID_RECORD),
        (edited(batch(b"a"), attributes=0x08), ErrorCode.INVALID_TIMESTAMP),
        (edited(batch(b"a"), attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (edited(batch(b"a"), producer_id=1), ErrorCode.INVALID_RECORD),
        (edited(batch(b"a"), producer_id=1, producer_epoch=0), ErrorCode.INVALID_RECORD),
        (batch(b"a", timestamp=NOW + 3_600_001), ErrorCode.INVALID_TIMESTAMP),
        (batch(b"v" * 1_100_000), ErrorCode.MESSAGE_TOO_LARGE),
    ],
    ids=[
        "nothing", "less than a header", "cut", "two batches", "negative length", "huge length", "magic 1", "magic 3",
        "wrong crc", "other bytes", "count too high", "delta too high", "no records", "control", "delete horizon",
        "unknown attribute", "unknown sign bit", "append time set by a client", "unknown codec", "producer without epoch",
        "producer without sequence", "from the future", "too large",
    ],
)  # fmt: skip
def test_a_bad_batch_is_refused_and_changes_nothing(bench: Bench, data: bytes, code: ErrorCode) -> None:
    log = bench.create(max_message_bytes=1_000_000)
    fill(log, 2)
    assert refused(log, data) == code
    fill(log, 1)
    assert [record.offset for record in records(log)] == [0, 1, 2]


def test_timestamps_may_be_an_hour_ahead_and_any_time_behind(bench: Bench) -> None:
    log = bench.create()
    log.append(batch(b"a", timestamp=NOW + 3_600_000), 0, NOW)
    log.append(batch(b"a", timestamp=0), 0, NOW)
    log.append(batch(b"a", timestamp=-1), 0, NOW)
    assert log.next_offset == 3


def test_timestamps_too_far_behind_are_refused_where_a_topic_says_so(bench: Bench) -> None:
    log = bench.create(message_timestamp_before_max_ms=1000)
    log.append(batch(b"a", timestamp=NOW - 1000), 0, NOW)
    assert refused(log, batch(b"a", timestamp=NOW - 1001)) == ErrorCode.INVALID_TIMESTAMP
    assert refused(log, batch(b"a", timestamp=NOW + 3_600_001)) == ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_append_time_is_a_header_edit_with_a_right_crc(bench: Bench, codec: int) -> None:
    log = bench.create(message_timestamp_type="LogAppendTime")
    came = batch(b"a", b"b", timestamp=5, codec=codec)
    # The producer's timestamp is ignored, however far off it is.
    assert log.append(came, 0, NOW).append_time_ms == NOW
    log.append(batch(b"c", timestamp=NOW + 10**9), 0, NOW + 1)
    found = records(log)
    assert [record.timestamp_ms for record in found] == [NOW, NOW, NOW + 1]
    assert [record.value for record in found] == [b"a", b"b", b"c"]
    stored = bench.file(f"{0:020d}.log").read_bytes()[: len(came)]
    assert HEADER.unpack_from(stored)[4] == crc_of(stored)
    assert stored[61:] == came[61:]
    assert log.active.max_timestamp == NOW + 1
    assert run(log.look_up_time(NOW)) == (0, NOW)


def test_a_topic_can_ask_for_its_own_codec(bench: Bench) -> None:
    log = bench.create(compression_type="zstd")
    log.append(batch(b"a" * 500, b"b" * 500), 0, NOW)
    log.append(batch(b"c", codec=4), 0, NOW)
    stored = bench.file(f"{0:020d}.log").read_bytes()
    assert len(stored) < 500
    assert stored[22] & 7 == 4
    assert values(log) == [b"a" * 500, b"b" * 500, b"c"]


def test_a_batch_that_the_topics_codec_makes_too_large_is_refused(bench: Bench) -> None:
    log = bench.create(compression_type="uncompressed", max_message_bytes=500)
    assert refused(log, batch(b"a" * 5000, codec=4)) == ErrorCode.MESSAGE_TOO_LARGE


def test_damaged_records_are_refused_where_they_must_be_decoded(bench: Bench) -> None:
    log = bench.create(compression_type="gzip")
    data = bytearray(batch(b"abcdef"))
    data[61:] = b"\xff" * (len(data) - 61)
    assert refused(log, edited(bytes(data))) == ErrorCode.CORRUPT_MESSAGE


def test_a_compacted_topic_wants_keys(bench: Bench) -> None:
    log = bench.create(cleanup_policy="compact")
    assert refused(log, batch(b"no key")) == ErrorCode.INVALID_RECORD


# --- roll (B4) --------------------------------------------------------------------------------------------------------


def test_it_rolls_when_a_batch_would_pass_the_segments_size(bench: Bench) -> None:
    data = batch(b"v" * 30)
    log = bench.create(segment_bytes=3 * len(data))
    for _ in range(3):
        log.append(data, 0, NOW)
    assert log.bases == [0]
    log.append(data, 0, NOW)
    assert log.bases == [0, 3]
    assert bench.names(".log") == ["00000000000000000000.log", "00000000000000000003.log"]
    # A batch larger than a segment gets a segment of its own.
    log.append(batch(b"v" * 300), 0, NOW)
    log.append(data, 0, NOW)
    assert log.bases == [0, 3, 4, 5]


def test_it_rolls_when_its_first_timestamp_is_too_old(bench: Bench) -> None:
    log = bench.create(segment_ms=1000)
    log.append(batch(b"a", timestamp=NOW), 0, NOW)
    log.append(batch(b"b", timestamp=NOW + 1000), 0, NOW + 5000)
    assert log.bases == [0]
    log.append(batch(b"c", timestamp=NOW + 1001), 0, NOW + 5000)
    assert log.bases == [0, 2]
    # The age is measured in record time: an old record does not roll the segment.
    log.append(batch(b"d", timestamp=NOW - 10**6), 0, NOW + 10**6)
    assert log.bases == [0, 2]


def test_the_jitter_makes_segments_roll_at_ages_of_their_own(bench: Bench) -> None:
    log = bench.create(segment_ms=100_000, segment_jitter_ms=90_000)
    for at in range(0, 1_000_000, 500):
        log.append(batch(b"v", timestamp=NOW + at), 0, NOW + at)
    ages = [500 * (after - before) for before, after in pairwise(log.bases)]
    assert len(set(ages)) > 3
    assert all(10_000 <= age <= 100_500 for age in ages)


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_the_level_of_the_topics_codec_counts(bench: Bench, codec: str) -> None:
    value = b"".join(b"%d-%d " % (number, number * 7919 % 1013) for number in range(4000))
    sizes = []
    for level in (1, 9):
        log = bench.create(compression_type=codec, **{f"compression_{codec}_level": level})
        log.append(batch(value), 0, NOW)
        sizes.append(log.size)
        log.close()
    assert sizes[1] < sizes[0]


def test_without_timestamps_the_age_is_the_segments(bench: Bench) -> None:
    log = bench.create(segment_ms=1000)
    log.append(batch(b"a", timestamp=-1), 0, NOW)
    log.append(batch(b"b", timestamp=-1), 0, NOW + 1000)
    assert log.bases == [0]
    log.append(batch(b"c", timestamp=-1), 0, NOW + 1001)
    assert log.bases == [0, 2]


def test_it_rolls_when_the_offset_index_is_full(bench: Bench) -> None:
    log = bench.create(segment_index_bytes=40, index_interval_bytes=0)
    fill(log, 13)
    assert log.bases == [0, 6, 12]
    for base in (0, 6):
        assert bench.file(f"{base:020d}.index").stat().st_size == 40
    assert len(records(log)) == 13


def test_it_rolls_when_the_time_index_is_full(bench: Bench) -> None:
    log = bench.create(segment_index_bytes=48, index_interval_bytes=0)
    fill(log, 12, step_ms=1)
    # Four entries of the time index fit, six of the offset index: the time index is full first.
    assert log.bases == [0, 4, 8]
    assert all(bench.file(f"{base:020d}.timeindex").stat().st_size <= 48 for base in log.bases)


def test_it_rolls_before_a_relative_offset_needs_more_than_31_bits(bench: Bench) -> None:
    log = bench.create(index_interval_bytes=0)
    fill(log, 1)
    log.next_offset = 2**31 - 2
    log.append(batch(b"a", b"b"), 0, NOW)
    assert log.bases == [0]
    assert log.active.next_offset - 1 == 2**31 - 1
    log.append(batch(b"c"), 0, NOW)
    assert log.bases == [0, 2**31]
    assert [record.offset for record in records(log, 2**31 - 2)] == [2**31 - 2, 2**31 - 1, 2**31]


def test_a_batch_across_the_31_bits_goes_whole_into_the_next_segment(bench: Bench) -> None:
    log = bench.create()
    fill(log, 1)
    log.next_offset = 2**31 - 1
    log.append(batch(b"a", b"b"), 0, NOW)
    assert log.bases == [0, 2**31 - 1]


def test_an_empty_segment_is_not_rolled(bench: Bench) -> None:
    log = bench.create()
    assert log.roll(NOW) is log.active
    assert log.bases == [0]
    fill(log, 1)
    assert log.roll(NOW).base_offset == 1
    assert log.roll(NOW).base_offset == 1
    assert log.bases == [0, 1]


def test_a_roll_leaves_indexes_and_a_snapshot_behind(bench: Bench) -> None:
    log = bench.create(index_interval_bytes=100)
    fill(log, 20, step_ms=5)
    log.append(sequenced(0, b"x"), 0, NOW)
    log.roll(NOW)
    times = list(struct.iter_unpack(">qi", bench.file(f"{0:020d}.timeindex").read_bytes()))
    assert times[-1] == (NOW + 95, 19)
    assert bench.file(f"{0:020d}.index").stat().st_size > 0
    assert bench.file(f"{21:020d}.snapshot").stat().st_size == 10 + 46


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_and_writing_goes_on_when_there_is_room(bench: Bench) -> None:
    """R13"""
    log = bench.create()
    fill(log, 3)
    bench.disk.before_write = full(".log")
    assert refused(log, batch(b"a")) == ErrorCode.KAFKA_STORAGE_ERROR
    assert not log.failed
    bench.disk.before_write = None
    fill(log, 2)
    assert [record.offset for record in records(log)] == list(range(5))


def test_an_index_that_finds_no_room_does_not_refuse_a_batch_that_is_written(bench: Bench) -> None:
    log = bench.create(index_interval_bytes=0)
    bench.disk.before_write = full("index")
    fill(log, 1100)
    assert [record.offset for record in records(log)] == list(range(1100))
    assert log.slice(3, 4, 1000, whole_first=True) is not None
    with pytest.raises(DiskError):
        log.begin_flush()
    bench.disk.before_write = None
    fill(log, 1)
    bench.stop(log)
    assert len(records(bench.recover(clean=True).log)) == 1101


def test_no_room_to_roll_refuses_until_there_is(bench: Bench) -> None:
    log = bench.create(segment_bytes=300)
    fill(log, 2)
    bench.disk.before_write = full(".snapshot")
    assert refused(log, batch(b"v" * 200)) == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.bases == [0]
    bench.disk.before_write = None
    log.append(batch(b"v" * 200), 0, NOW)
    assert log.bases == [0, 2]
    assert len(records(log)) == 3


def test_any_other_failure_is_final(bench: Bench) -> None:
    """R11"""
    log = bench.create()
    fill(log, 1)
    told: list[DiskError] = []
    log.on_failure = told.append

    def broken(path: str) -> None:
        raise DiskError(f"{path}: input/output error", broken=True)

    bench.disk.before_write = broken
    assert refused(log, batch(b"a")) == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.failed and len(told) == 1
    bench.disk.before_write = None
    assert refused(log, batch(b"a")) == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.begin_flush() is None


def test_an_epoch_that_could_not_be_written_is_not_begun(bench: Bench) -> None:
    """R1: its start must be on disk before its first record."""
    log = bench.create()
    log.append(batch(b"a"), 0, NOW)
    bench.disk.before_write = full("leader-epoch-checkpoint")
    with pytest.raises(Refusal):
        log.append(batch(b"b"), 4, NOW)
    assert log.epochs.pairs == [(0, 0)]
    bench.disk.before_write = None
    log.append(batch(b"b"), 4, NOW)
    assert bench.file("leader-epoch-checkpoint").read_bytes() == b"0\n2\n0 0\n4 1\n"


# --- durability -------------------------------------------------------------------------------------------------------


def test_the_flushed_offset_is_the_end_of_what_is_synced_without_a_gap(bench: Bench) -> None:
    log = bench.create(segment_bytes=200)
    fill(log, 3)
    first, second, third = log.segments
    assert log.flushed_offset == 0
    assert log.unsynced == [first, second, third]
    log.synced(second, 2)
    assert log.flushed_offset == 0
    log.synced(first, 1)
    assert log.flushed_offset == 2
    assert log.unsynced == [third]
    log.synced(third, 3)
    assert log.flushed_offset == 3
    assert log.unsynced == []


def test_a_sync_covers_only_what_was_there_when_it_was_asked_for(bench: Bench) -> None:
    log = bench.create()
    fill(log, 2)
    asked = log.next_offset
    fill(log, 2)
    log.synced(log.active, asked)
    assert log.flushed_offset == 2
    assert log.unsynced == [log.active]


def test_a_segment_that_is_durable_need_not_be_synced_again_when_it_is_rolled(bench: Bench) -> None:
    log = bench.create()
    fill(log, 2)
    log.synced(log.active, 2)
    log.roll(NOW)
    assert log.unsynced == []
    fill(log, 1)
    assert log.unsynced == [log.active]


def test_a_flush_takes_every_file_since_the_recovery_point(bench: Bench) -> None:
    log = bench.create(segment_bytes=200)
    fill(log, 2)
    bench.flush(log)
    assert log.recovery_point == log.flushed_offset == 2
    fill(log, 2)
    flush = log.begin_flush()
    assert flush is not None
    assert [segment.base_offset for segment in flush.segments] == [2, 3]
    names = {file.path.rsplit("/", 1)[1] for file in flush.files}
    assert {f"{base:020d}.{suffix}" for base in (2, 3) for suffix in ("log", "index", "timeindex")} <= names
    fill(log, 1)
    log.flushed(flush)
    assert log.recovery_point == 4
    assert log.begin_flush() is not None


def test_nothing_new_is_nothing_to_flush(bench: Bench) -> None:
    log = bench.create()
    fill(log, 1)
    bench.flush(log)
    assert log.begin_flush() is None


def test_an_empty_log_is_flushed_for_its_names(bench: Bench) -> None:
    log = bench.create()
    bench.flush(log)
    assert log.begin_flush() is None
    log.append(batch(b"a"), 0, NOW)
    bench.flush(log)
    log.roll(NOW)
    assert log.begin_flush() is not None


def test_a_flush_that_was_overtaken_by_a_truncation_moves_nothing(bench: Bench) -> None:
    log = bench.create()
    fill(log, 10)
    flush = log.begin_flush()
    asked = log.active
    assert flush is not None
    log.truncate(4, NOW)
    fill(log, 10)
    log.synced(asked, 10)
    assert log.flushed_offset == 0
    log.flushed(flush)
    assert log.recovery_point == log.flushed_offset == 0
    assert log.unsynced == [log.active]
    bench.flush(log)
    assert log.recovery_point == log.flushed_offset == 14


def test_small_files_wait_once_for_the_next_sync(bench: Bench) -> None:
    log = bench.create()
    for epoch in range(50):
        log.append(batch(b"a"), epoch, NOW)
    assert sorted(file.path.rsplit("/", 1)[1] for file in log.loose) == [
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]


def test_old_snapshots_go_but_those_of_segments_and_the_one_before_stay(bench: Bench) -> None:
    log = bench.create()
    for _ in range(4):
        fill(log, 5)
        bench.flush(log)
    log.roll(NOW)
    for _ in range(4):
        fill(log, 5)
        bench.flush(log)
    assert bench.names(".snapshot") == [f"{offset:020d}.snapshot" for offset in (20, 35, 40)]


# --- read -------------------------------------------------------------------------------------------------------------


def test_a_slice_ends_at_the_end_asked_for_and_at_the_segments(bench: Bench) -> None:
    data = batch(b"v" * 30)
    log = bench.create(segment_bytes=5 * len(data))
    for _ in range(12):
        log.append(data, 0, NOW)

    def sliced(
        offset: int, end: int, bytes_max: int = 1 << 20, whole_first: bool = True
    ) -> tuple[int, int, int]:
        piece = log.slice(offset, end, bytes_max, whole_first=whole_first)
        assert piece is not None
        base = log.segments[log.segment_for(offset)].base_offset
        return base, piece.position // len(data), piece.size // len(data)

    assert sliced(0, 12) == (0, 0, 5)
    assert sliced(3, 12) == (0, 3, 2)
    assert sliced(3, 4) == (0, 3, 1)
    assert sliced(5, 12) == (5, 0, 5)
    assert sliced(11, 12) == (10, 1, 1)
    assert sliced(0, 12, 3 * len(data)) == (0, 0, 3)
    assert log.slice(12, 12, 100, whole_first=True) is None
    assert log.slice(5, 5, 100, whole_first=True) is None


def test_the_first_batch_comes_whole_only_if_asked_for(bench: Bench) -> None:
    """KIP-74"""
    log = bench.create()
    log.append(batch(b"v" * 1000), 0, NOW)
    log.append(batch(b"w" * 1000), 0, NOW)
    whole = log.slice(0, 2, 10, whole_first=True)
    assert whole is not None
    assert len(decode_batch(read_slice(log, whole))) == 1
    # A batch that does not fit is left for the next fetch; a later one may be cut.
    size = whole.size
    for bytes_max in (0, 10, size - 1):
        assert log.slice(0, 2, bytes_max, whole_first=False) is None
    cut = log.slice(0, 2, size + 10, whole_first=False)
    assert cut is not None and cut.size == size + 10


# --- shorten ----------------------------------------------------------------------------------------------------------


def test_deleting_moves_the_start_and_its_epoch(bench: Bench) -> None:
    log = bench.create()
    for epoch, count in ((0, 5), (2, 5), (3, 5)):
        for _ in range(count):
            log.append(batch(b"a"), epoch, NOW)
    assert log.delete_before(7)
    assert log.log_start_offset == 7
    assert log.epochs.pairs == [(2, 7), (3, 10)]
    assert not log.delete_before(7)
    assert not log.delete_before(3)
    assert not log.delete_before(16)
    assert log.log_start_offset == 7


def test_dropping_segments_keeps_the_active_one(bench: Bench) -> None:
    log = bench.create(segment_bytes=200)
    fill(log, 5)
    dropped = log.drop_segments(3)
    assert [segment.base_offset for segment in dropped] == [0, 1, 2]
    assert log.log_start_offset == log.flushed_offset == log.recovery_point == 3
    assert [record.offset for record in records(log)] == [3, 4]
    assert [segment.base_offset for segment in log.drop_segments(9)] == [3]
    assert log.bases == [4]
    assert log.unsynced == [log.active]


@pytest.mark.parametrize("offset", [0, 1, 5, 6, 10, 11, 29])
def test_truncation_cuts_records_segments_epochs_and_producers(bench: Bench, offset: int) -> None:
    data = sequenced(0, b"v" * 20)
    log = bench.create(segment_bytes=5 * len(data))
    for sequence in range(30):
        log.append(sequenced(sequence, b"v" * 20), sequence // 10, NOW)
    bench.remove(log.truncate(offset, NOW))
    assert log.next_offset == log.active.next_offset == offset
    assert [record.offset for record in records(log)] == list(range(offset))
    assert log.epochs.pairs == [(epoch, 10 * epoch) for epoch in range(3) if 10 * epoch < offset]
    # The producer continues after the truncation.
    if offset:
        assert log.append(sequenced(offset - 1, b"v" * 20), 3, NOW).duplicate
    assert log.append(sequenced(offset, b"v" * 20), 3, NOW)[:2] == (offset, offset)
    assert all(int(name[:20]) <= log.next_offset for name in bench.names(".snapshot"))
    bench.stop(log)
    again = bench.recover(clean=True).log
    assert [record.offset for record in records(again)] == list(range(offset + 1))


def test_a_truncation_that_finds_no_room_for_the_epochs_is_one_all_the_same(bench: Bench) -> None:
    """The caller must remove the files, and checkpoint the offsets."""
    log = bench.create(segment_bytes=300)
    for epoch in range(6):
        log.append(batch(b"x" * 100), epoch, NOW)
    bench.disk.before_write = full(names.EPOCHS)
    dropped = log.truncate(2, NOW)
    assert dropped and log.next_offset == 2 and log.epochs.latest == 1
    with pytest.raises(Refusal, match="no space"):
        log.append(batch(b"y"), 1, NOW)
    bench.disk.before_write = None
    bench.remove(dropped)
    log.append(batch(b"y"), 1, NOW)
    assert bench.file(names.EPOCHS).read_bytes() == log.epochs.render()


def test_truncation_below_the_first_segment_begins_anew(bench: Bench) -> None:
    log = bench.create(start_offset=50, segment_bytes=200)
    fill(log, 3)
    bench.remove(log.truncate(20, NOW))
    assert (log.log_start_offset, log.next_offset, log.bases) == (20, 20, [20])
    assert log.epochs.pairs == []
    fill(log, 2)
    assert [record.offset for record in records(log)] == [20, 21]


def test_truncation_below_the_start_takes_the_start_along(bench: Bench) -> None:
    log = bench.create()
    fill(log, 10)
    log.delete_before(8)
    log.truncate(5, NOW)
    assert log.log_start_offset == log.next_offset == 5


def test_truncation_at_or_past_the_end_is_nothing(bench: Bench) -> None:
    log = bench.create()
    fill(log, 3)
    active = log.active
    assert log.truncate(3, NOW) == []
    assert log.truncate(9, NOW) == []
    assert log.active is active and log.next_offset == 3


def test_a_truncated_old_segment_rolls_by_its_own_age(bench: Bench) -> None:
    log = bench.create(segment_ms=1000)
    log.append(batch(b"a", timestamp=NOW), 0, NOW)
    log.append(batch(b"b", timestamp=NOW + 1), 0, NOW)
    log.roll(NOW)
    fill(log, 1)
    bench.stop(log)
    log = bench.recover(clean=True).log
    bench.remove(log.truncate(1, NOW))
    log.append(batch(b"c", timestamp=NOW + 1001), 0, NOW)
    assert log.bases == [0, 1]


def test_files_are_named_as_kafka_names_them(bench: Bench) -> None:
    log = bench.create(segment_bytes=200)
    fill(log, 2)
    bench.flush(log)
    assert sorted(path.name for path in bench.path.iterdir()) == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000001.index",
        "00000000000000000001.log",
        "00000000000000000001.snapshot",
        "00000000000000000001.timeindex",
        "00000000000000000002.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]


def test_a_log_takes_its_settings_anew(bench: Bench) -> None:
    log = bench.create()
    fill(log, 3)
    log.config = config(segment_bytes=200)
    fill(log, 2)
    assert log.bases == [0, 3, 4]


def test_a_log_that_begins_again_at_an_existing_base_offset_has_new_files(bench: Bench) -> None:
    """The new segment must not share its files with the dropped one, which the owner of the log removes."""
    log = bench.create()
    fill(log, 3)
    old = log.active
    piece = log.slice(0, 3, 1 << 20, whole_first=True)
    assert piece is not None
    before = bench.disk.read(piece.file, piece.position, piece.size)
    log.delete_before(3)
    dropped = log.begin_at(0, NOW)
    assert dropped == [old] and log.active is not old and log.next_offset == 0
    # A fetch in progress reads the old files.
    assert bench.disk.read(piece.file, piece.position, piece.size) == before
    assert {file.path for file in old.files}.isdisjoint(file.path for file in log.active.files)
    for file in old.files:
        bench.disk.close(file)
        bench.disk.remove(file.path)
    fill(log, 2)
    bench.log_start_offset = 0
    assert bench.recover().log.next_offset == 2


def test_small_files_that_are_written_again_before_a_sync_are_closed(bench: Bench) -> None:
    """The previous handle must be closed, also after the log was deleted."""

    def handles() -> int:
        return sum(file.path.endswith("leader-epoch-checkpoint") for file in bench.disk._open)

    log = bench.create()
    # Writes the epochs for the first time.
    fill(log, 1)
    flushes = []
    for _ in range(3):
        log.save_epochs()
        flushes.append(log.begin_flush())
    assert handles() == 4
    # The second flush still needs its handle: the first one does not cover later bytes.
    for flush, left in zip(flushes, (3, 2, 0), strict=True):
        assert flush is not None
        log.flushed(flush)
        assert handles() == left
    log.save_epochs()
    log.save_epochs()
    log.close()
    assert handles() == 0
