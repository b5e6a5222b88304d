import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.log.partition_log import PartitionLog
from ottla.log.recovery import open_log
from ottla.model.steps import run
from tests.log.log_bench import NOW, Bench, batch, config, fill, records, sequenced, values

#: A walk over headers reads this much at a time, and a scan up to an index interval more.
SMALL = 64 << 10


def log_file(base: int = 0) -> str:
    return f"{base:020d}.log"


def state(log: PartitionLog) -> dict[str, object]:
    """Everything that must be equal after writing and after recovery."""
    return {
        "next": log.next_offset,
        "start": log.log_start_offset,
        "bases": log.bases,
        "epochs": log.epochs.pairs,
        "producers": {
            producer_id: (producer.epoch, [entry[:4] for entry in producer.batches])
            for producer_id, producer in log.producers.by_id.items()
        },
        "segments": [
            (s.size, s.next_offset, s.max_timestamp, s.max_timestamp_offset, s.first_timestamp)
            for s in log.segments
        ],
        "values": values(log),
    }


def write(log: PartitionLog, count: int, seed: int = 0) -> None:
    """Batches of all kinds: several producers, epochs, sizes, timestamps that go back and forth."""
    sequences: dict[int, int] = {
        producer_id: producer.batches[-1][1] + 1 for producer_id, producer in log.producers.by_id.items()
    }
    for at in range(seed, seed + count):
        payload = [b"%d" % at * (at % 7 + 1)] * (at % 3 + 1)
        producer = at % 4
        timestamp = NOW + (at * 7919) % 1000
        if producer:
            data = sequenced(sequences.get(producer, 0), *payload, producer=producer, timestamp=timestamp)
            sequences[producer] = sequences.get(producer, 0) + len(payload)
        else:
            data = batch(*payload, timestamp=timestamp)
        log.append(data, at // 20, NOW)


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_was_flushed_is_the_same_again_and_hardly_read(bench: Bench, clean: bool) -> None:
    log = bench.create(segment_bytes=50_000)
    write(log, 3000)
    before = state(log)
    bench.stop(log)
    recovered = bench.recover(clean=clean)
    assert recovered.cut_bytes == 0 and not recovered.damaged
    # At most an index interval of each segment.
    assert recovered.scanned_bytes <= len(log.segments) * (4096 + 200)
    assert bench.disk.bytes_read <= len(log.segments) * SMALL // 2
    assert recovered.log.recovery_point == recovered.log.next_offset == recovered.log.flushed_offset
    assert recovered.log.unsynced == []
    assert state(recovered.log) == before


def test_a_killed_log_is_the_same_again(bench: Bench) -> None:
    log = bench.create(segment_bytes=5000, index_interval_bytes=300)
    write(log, 400)
    bench.flush(log)
    write(log, 300, seed=400)
    before = state(log)
    recovered = bench.recover()
    assert recovered.cut_bytes == 0 and not recovered.damaged
    assert state(recovered.log) == before


@pytest.mark.parametrize("flushed", [0, 1, 150, 299, 300])
def test_indexes_read_again_are_those_that_were_written(bench: Bench, flushed: int) -> None:
    log = bench.create(segment_bytes=5000, index_interval_bytes=300)
    write(log, flushed)
    bench.flush(log)
    write(log, 300 - flushed, seed=flushed)
    for segment in log.segments:
        segment.flush_indexes()
    suffixes = (".index", ".timeindex")
    before = {name: bench.file(name).read_bytes() for suffix in suffixes for name in bench.names(suffix)}
    if flushed < 300:
        # What a crash may lose: everything that was not synced.
        for name in bench.names("index"):
            if int(name[:20]) > bench.recovery_point:
                bench.file(name).unlink()
    bench.recover()
    after = {name: bench.file(name).read_bytes() for suffix in suffixes for name in bench.names(suffix)}
    assert after.keys() == before.keys()
    for name, data in before.items():
        if name.endswith(".index"):
            assert after[name] == data, name
        else:
            # A flush in between adds a timestamp; the newest is there in any case.
            assert after[name][-12:] == data[-12:]


def test_what_was_read_again_counts_as_durable_only_after_the_next_sync(bench: Bench) -> None:
    log = bench.create(segment_bytes=1000)
    fill(log, 4)
    bench.flush(log)
    fill(log, 30)
    again = bench.recover().log
    assert again.recovery_point == again.flushed_offset == 4
    assert [segment.base_offset for segment in again.unsynced] == again.bases
    assert again.unflushed_bytes == sum(s.size for s in again.segments) - 4 * 108
    for segment in list(again.unsynced):
        again.synced(segment, segment.next_offset)
    assert again.flushed_offset == 34


# --- torn tails -------------------------------------------------------------------------------------------------------


def torn_at_every_byte(bench: Bench, tear: Callable[[bytes, int], bytes]) -> None:
    log = bench.create()
    for sequence in range(3):
        log.append(sequenced(sequence, b"v%d" % sequence), 0, NOW)
        if sequence == 0:
            bench.flush(log)
    whole = bench.file(log_file()).read_bytes()
    last = log.active.locate(2)
    saved = bench.root / "saved"
    shutil.copytree(bench.path, saved)
    for cut in range(last, len(whole)):
        shutil.rmtree(bench.path)
        shutil.copytree(saved, bench.path)
        torn = tear(whole, cut)
        if torn.startswith(whole):
            continue  # the missing bytes were zero anyway
        bench.file(log_file()).write_bytes(torn)
        recovered = bench.recover()
        again = recovered.log
        assert again.next_offset == 2, cut
        assert not recovered.damaged
        assert bench.file(log_file()).read_bytes() == whole[:last]
        assert recovered.cut_bytes == len(torn) - last
        # The producer resends the batch, and it gets the same offset.
        assert again.append(sequenced(2, b"v2"), 0, NOW)[:2] == (2, 2)
        assert values(again) == [b"v0", b"v1", b"v2"]
        again.close()


def test_a_tail_torn_at_any_byte_is_cut_off(bench: Bench) -> None:
    torn_at_every_byte(bench, lambda whole, cut: whole[:cut])


def test_a_tail_of_zeros_from_any_byte_is_cut_off(bench: Bench) -> None:
    """A power cut may leave the size of a write, and zeros."""
    torn_at_every_byte(bench, lambda whole, cut: whole[:cut] + bytes(len(whole) - cut + 100))


def test_one_wrong_byte_anywhere_after_the_length_is_found(bench: Bench) -> None:
    log = bench.create()
    for _ in range(3):
        log.append(batch(b"value"), 0, NOW)
    whole = bytearray(bench.file(log_file()).read_bytes())
    last = log.active.locate(2)
    # Offset and epoch come before the CRC, which does not cover them; so does the magic.
    for at in (*range(last + 8, last + 12), last + 16, *range(last + 17, len(whole))):
        damaged = bytearray(whole)
        damaged[at] ^= 0x40
        bench.file(log_file()).write_bytes(damaged)
        assert bench.recover().log.next_offset == 2, at


def test_nothing_after_a_torn_batch_is_believed(bench: Bench) -> None:
    """R12: even if it looks valid."""
    log = bench.create()
    for at in range(5):
        log.append(batch(b"%d" % at), 0, NOW)
    data = bytearray(bench.file(log_file()).read_bytes())
    data[log.active.locate(2) + 65] ^= 1
    bench.file(log_file()).write_bytes(data)
    recovered = bench.recover()
    assert values(recovered.log) == [b"0", b"1"]
    assert recovered.cut_bytes == len(data) * 3 // 5


def test_a_batch_larger_than_one_read_is_recovered_and_torn(bench: Bench) -> None:
    log = bench.create(max_message_bytes=10_000_000)
    sizes = [10, 3_000_000, 10, 1_048_515, 1_048_516, 5_000_000]
    for size in sizes:
        log.append(batch(b"v" * size), 0, NOW)
    assert [len(value or b"") for value in values(bench.recover().log)] == sizes
    with bench.file(log_file()).open("r+b") as file:
        file.truncate(log.size - 1)
    assert [len(value or b"") for value in values(bench.recover().log)] == sizes[:-1]


# --- the work is that of the tail -----------------------------------------------------------------------------------


def test_recovery_reads_the_unflushed_tail_once_and_little_else(bench: Bench) -> None:
    log = bench.create(segment_bytes=3_000_000)
    value = b"v" * 1000
    for sequence in range(10_000):
        log.append(sequenced(sequence, value), 0, NOW)
    bench.flush(log)
    for sequence in range(10_000, 10_500):
        log.append(sequenced(sequence, value), 0, NOW)
    tail = 500 * len(sequenced(0, value))
    recovered = bench.recover()
    assert recovered.log.next_offset == 10_500
    assert tail <= recovered.scanned_bytes <= tail + 5 * (4096 + 2000)
    assert bench.disk.bytes_read <= tail + len(log.segments) * SMALL
    assert bench.disk.bytes_read < log.size // 4
    assert recovered.log.append(sequenced(10_496, value), 0, NOW).duplicate


def test_a_tail_over_several_segments_is_read_once(bench: Bench) -> None:
    log = bench.create(segment_bytes=100_000)
    fill(log, 2000, size=200)
    bench.flush(log)
    fill(log, 2000, size=200)
    recovered = bench.recover()
    assert recovered.log.next_offset == 4000
    half = log.size // 2
    assert half - 1000 <= recovered.scanned_bytes <= half + len(log.segments) * 4400


def test_without_a_recovery_point_everything_is_read_and_nothing_lost(bench: Bench) -> None:
    log = bench.create(segment_bytes=5000)
    write(log, 300)
    before = state(log)
    bench.stop(log)
    bench.recovery_point = 0
    recovered = bench.recover()
    assert recovered.scanned_bytes == log.size
    assert state(recovered.log) == before


def test_after_a_clean_stop_the_recovery_point_is_not_needed(bench: Bench) -> None:
    log = bench.create()
    write(log, 2000)
    before = state(log)
    bench.stop(log)
    bench.recovery_point = 0
    recovered = bench.recover(clean=True)
    assert recovered.scanned_bytes < 5000
    assert state(recovered.log) == before


@pytest.mark.parametrize("at", [1, 4999, 5000, 5001, 12_000])
def test_a_recovery_point_anywhere_in_a_segment_will_do(bench: Bench, at: int) -> None:
    log = bench.create(index_interval_bytes=200, segment_bytes=540_000)
    fill(log, at, step_ms=1)
    bench.flush(log)
    fill(log, 12_345 - at, step_ms=1)
    again = bench.recover().log
    assert again.next_offset == 12_345
    assert again.bases == log.bases == [0, 5000, 10_000]
    assert run(again.look_up_time(NOW + 7777)) == (7777, NOW + 7777)
    assert records(again, 11_111, bytes_max=500)[0].offset == 11_111


# --- indexes ----------------------------------------------------------------------------------------------------------


def missing(path: Path) -> None:
    path.unlink()


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def short(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 24 // 3 * 24])


def uneven(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\1\2\3")


def padded(path: Path) -> None:
    """As Kafka leaves the index of an active segment when it is killed."""
    path.write_bytes(path.read_bytes().ljust(100_000 // 24 * 24, b"\0"))


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def noise(path: Path) -> None:
    path.write_bytes((b"any other file " * 1000)[: 24 * 90])


def foreign(path: Path) -> None:
    """A sorted index, but of another log."""
    entry = ">ii" if path.suffix == ".index" else ">qi"
    first = 0 if path.suffix == ".index" else NOW
    path.write_bytes(b"".join(struct.pack(entry, first + at, at * 3 + 1) for at in range(1, 100)))


def beyond(path: Path) -> None:
    """Entries of batches that were cut off."""
    entry = ">ii" if path.suffix == ".index" else ">qi"
    base = 1 << 29
    more = b"".join(
        struct.pack(entry, (NOW if entry == ">qi" else 0) + base + at, base + at) for at in range(20)
    )
    path.write_bytes(path.read_bytes() + more)


DAMAGES = [missing, emptied, short, uneven, padded, zeros, noise, foreign, beyond]


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("suffixes", [(".index",), (".timeindex",), (".index", ".timeindex")], ids="+".join)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: str(damage.__name__))
def test_bad_indexes_are_made_anew(
    bench: Bench, damage: Callable[[Path], None], suffixes: tuple[str, ...], clean: bool
) -> None:
    log = bench.create(index_interval_bytes=300, segment_bytes=30_000)
    fill(log, 600, step_ms=3)
    if clean:
        bench.stop(log)
    else:
        bench.flush(log)
        fill(log, 100, step_ms=3)
        for segment in log.segments:
            segment.flush_indexes()
    end = log.next_offset
    for suffix in suffixes:
        for name in bench.names(suffix):
            damage(bench.file(name))
    recovered = bench.recover(clean=clean)
    again = recovered.log
    assert not recovered.damaged and recovered.cut_bytes == 0
    assert again.next_offset == end
    assert [segment.max_timestamp for segment in again.segments] == [s.max_timestamp for s in log.segments]
    for offset in range(0, end, 37):
        assert records(again, offset, bytes_max=300)[0].offset == offset
        assert run(again.look_up_time(NOW + 3 * offset)) == (offset, NOW + 3 * offset)
    again.active.flush_indexes()
    for segment in again.segments:
        bench.disk.reads.clear()
        segment.locate(segment.next_offset - 1)
        assert bench.disk.bytes_read < 20_000, "found by the index again"


def test_entries_past_the_recovery_point_may_be_anything(bench: Bench) -> None:
    """A power cut leaves a part of what was not synced, and zeros for the rest."""
    log = bench.create(index_interval_bytes=300)
    fill(log, 300, step_ms=3)
    bench.flush(log)
    sizes = {name: bench.file(name).stat().st_size for name in bench.names("index")}
    fill(log, 600, step_ms=3)
    log.active.flush_indexes()
    for name, size in sizes.items():
        width = 8 if name.endswith(".index") else 12
        data = bytearray(bench.file(name).read_bytes())
        third = (len(data) - size) // width // 3 * width
        data[size + third : size + 2 * third] = bytes(third)
        bench.file(name).write_bytes(data)
    recovered = bench.recover()
    # The durable part of the indexes is still used: the rest of the segment is not read again.
    assert recovered.scanned_bytes < 600 * 108 + 1000
    for offset in range(0, 900, 37):
        assert run(recovered.log.look_up_time(NOW + 3 * offset)) == (offset, NOW + 3 * offset)
        assert records(recovered.log, offset, bytes_max=300)[0].offset == offset


def test_an_index_made_anew_is_on_disk_at_the_next_clean_start(bench: Bench) -> None:
    log = bench.create(index_interval_bytes=300)
    fill(log, 2000, step_ms=1)
    bench.stop(log)
    bench.file(f"{0:020d}.index").unlink()
    again = bench.recover(clean=True)
    assert again.scanned_bytes == log.size
    bench.stop(again.log)
    assert bench.recover(clean=True).scanned_bytes < 1000


def test_a_smaller_interval_than_the_index_was_made_with_costs_no_scan(bench: Bench) -> None:
    log = bench.create(index_interval_bytes=5000)
    fill(log, 2000)
    bench.stop(log)
    recovered = bench.recover(clean=True, index_interval_bytes=100)
    assert recovered.scanned_bytes < 6000
    assert records(recovered.log, 1234)[0].offset == 1234


# --- several segments ---------------------------------------------------------------------------------------------------


def test_a_torn_segment_ends_the_log_and_those_after_it_go(bench: Bench) -> None:
    log = bench.create(segment_bytes=600)
    fill(log, 22)
    assert log.bases == [0, 5, 10, 15, 20]
    with bench.file(log_file(10)).open("r+b") as file:
        file.truncate(300)
    recovered = bench.recover()
    assert recovered.log.bases == [0, 5, 10]
    assert recovered.log.next_offset == 12
    assert recovered.cut_bytes == 300 - 2 * 108 + 7 * 108
    assert bench.names("log") == [log_file(0), log_file(5), log_file(10)]
    assert bench.names(".snapshot") == [f"{base:020d}.snapshot" for base in (5, 10)]
    fill(recovered.log, 10)
    assert [record.offset for record in records(recovered.log)] == list(range(22))


@pytest.mark.parametrize("left", [0, 108, 432])
def test_a_gap_between_unflushed_segments_ends_the_log(bench: Bench, left: int) -> None:
    """A power cut may take the tail of a segment, at a batch boundary, and leave the next segment."""
    log = bench.create(segment_bytes=600)
    fill(log, 14)
    with bench.file(log_file(5)).open("r+b") as file:
        file.truncate(left)
    again = bench.recover().log
    assert again.bases == [0, 5]
    assert again.next_offset == 5 + left // 108


def test_garbage_behind_a_whole_segment_costs_nothing_but_itself(bench: Bench) -> None:
    log = bench.create(segment_bytes=600)
    fill(log, 14)
    with bench.file(log_file(5)).open("ab") as file:
        file.write(bytes(50))
    recovered = bench.recover()
    assert recovered.log.next_offset == 14
    assert recovered.cut_bytes == 50


def test_kafkas_compaction_may_leave_gaps_between_segments(bench: Bench) -> None:
    log = bench.create(segment_bytes=600)
    fill(log, 14)
    with bench.file(log_file(5)).open("r+b") as file:
        file.truncate(108)
    again = bench.recover(cleanup_policy="compact", may_have_gaps=True).log
    assert again.next_offset == 14
    assert [record.offset for record in records(again)] == [0, 1, 2, 3, 4, 5, 10, 11, 12, 13]


def test_ours_leaves_none_so_a_gap_of_a_compacted_log_is_a_loss_too(bench: Bench) -> None:
    log = bench.create(segment_bytes=600)
    fill(log, 14)
    with bench.file(log_file(5)).open("r+b") as file:
        file.truncate(108)
    assert bench.recover(cleanup_policy="compact").log.next_offset == 6


def test_a_segment_that_reaches_into_the_next_ends_the_log(bench: Bench) -> None:
    """The next segment is left over from before the log was truncated and written again."""
    log = bench.create()
    fill(log, 10)
    shutil.copy(bench.file(log_file(0)), bench.file(log_file(7)))
    recovered = bench.recover()
    assert recovered.log.bases == [0]
    assert recovered.log.next_offset == 10


def test_damage_before_the_recovery_point_is_told_and_cuts_nothing_more_than_it_must(bench: Bench) -> None:
    """R12"""
    log = bench.create(segment_bytes=600)
    fill(log, 14)
    bench.flush(log)
    with bench.file(log_file(5)).open("r+b") as file:
        file.truncate(300)
    recovered = bench.recover()
    assert recovered.damaged
    assert recovered.log.next_offset == 14
    assert recovered.cut_bytes == 0
    assert records(recovered.log, 10)[0].offset == 10


def test_a_log_that_ends_before_its_recovery_point_is_told(bench: Bench) -> None:
    log = bench.create()
    write(log, 40)
    bench.flush(log)
    with bench.file(log_file()).open("r+b") as file:
        file.truncate(log.active.locate(41))
    recovered = bench.recover()
    assert recovered.damaged
    assert recovered.log.next_offset == recovered.log.recovery_point <= 41
    assert bench.names(".snapshot") == []
    assert len(values(recovered.log)) == recovered.log.next_offset
    # Producer state is that of the remaining records, not of the snapshot.
    last = {producer: entry.batches[-1][3] for producer, entry in recovered.log.producers.by_id.items()}
    assert max(last.values()) < recovered.log.next_offset


def test_a_clean_log_that_was_torn_is_told(bench: Bench) -> None:
    log = bench.create()
    fill(log, 5)
    bench.stop(log)
    with bench.file(log_file()).open("r+b") as file:
        file.truncate(log.active.size - 1)
    recovered = bench.recover(clean=True)
    assert recovered.damaged and recovered.log.next_offset == 4


def test_a_log_without_its_first_segments_is_served_from_what_is_left(bench: Bench) -> None:
    """Nothing is removed because earlier files, and the checkpoints that would explain it, are missing."""
    log = bench.create(segment_bytes=600)
    fill(log, 14)
    for base in (0, 5):
        for suffix in ("log", "index", "timeindex"):
            bench.file(f"{base:020d}.{suffix}").unlink()
    bench.file("leader-epoch-checkpoint").unlink()
    recovered = bench.recover()
    assert recovered.log.log_start_offset == 10
    assert [record.offset for record in records(recovered.log)] == [10, 11, 12, 13]


def test_a_durable_log_rolls_only_after_the_name_of_the_segment_before_is_durable(bench: Bench) -> None:
    """Otherwise a power cut could keep a later segment and lose earlier ones."""
    log = bench.create(segment_bytes=600)
    assert not log.active.names_synced
    fill(log, 14)
    assert len(log.segments) == 3
    assert [segment.names_synced for segment in log.segments] == [True, True, False]


@pytest.mark.parametrize("epochs", [True, False])
def test_a_log_without_its_first_segments_and_without_checkpoints_is_kept_if_it_was_ever_flushed(
    bench: Bench, epochs: bool
) -> None:
    """Those segments were deleted on purpose; the files that would say so are lost."""
    log = bench.create(segment_bytes=600)
    fill(log, 14)
    bench.remove(log.drop_segments(1))
    bench.flush(log)
    fill(log, 5)
    bench.recovery_point = 0
    if not epochs:
        bench.file("leader-epoch-checkpoint").write_bytes(b"torn")
    recovered = bench.recover()
    assert recovered.log.log_start_offset == 5
    assert [record.offset for record in records(recovered.log)] == list(range(5, 19))


def test_segments_before_the_start_are_removed(bench: Bench) -> None:
    """They were being deleted, and one between them may be gone."""
    log = bench.create(segment_bytes=600)
    fill(log, 22)
    bench.flush(log)
    bench.file(log_file(5)).unlink()
    bench.log_start_offset = 12
    again = bench.recover().log
    assert again.bases == [10, 15, 20]
    assert bench.names(".log") == [log_file(base) for base in (10, 15, 20)]
    assert [record.offset for record in records(again)] == list(range(12, 22))


# --- start --------------------------------------------------------------------------------------------------------------


def test_the_start_is_where_the_checkpoint_says(bench: Bench) -> None:
    log = bench.create()
    fill(log, 10)
    log.delete_before(6)
    bench.stop(log)
    again = bench.recover(clean=True).log
    assert again.log_start_offset == 6
    assert [record.offset for record in records(again)] == [6, 7, 8, 9]


def test_a_start_beyond_the_end_begins_anew_there(bench: Bench) -> None:
    """Offsets that were used once must not be reused for other records."""
    log = bench.create()
    write(log, 10)
    bench.log_start_offset = 500
    recovered = bench.recover()
    again = recovered.log
    assert (again.log_start_offset, again.next_offset, again.bases) == (500, 500, [500])
    assert bench.names(".log") == [log_file(500)]
    fill(again, 2)
    assert [record.offset for record in records(again)] == [500, 501]


def test_a_directory_without_segments_is_no_log(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    arguments = {"recovery_point": 0, "log_start_offset": 0, "now_ms": NOW}
    assert open_log(bench.disk, str(tmp_path / "empty"), config(), clean=False, **arguments) is None
    assert open_log(bench.disk, str(tmp_path / "absent"), config(), clean=False, **arguments) is None


def test_what_an_earlier_run_left_half_done_is_removed(bench: Bench) -> None:
    log = bench.create()
    fill(log, 3)
    bench.stop(log)
    left_over = [f"{9:020d}.log.deleted", f"{9:020d}.index.deleted", f"{3:020d}.snapshot.5.tmp",
                 f"{9:020d}.log.cleaned", f"{9:020d}.index", f"{9:020d}.timeindex"]  # fmt: skip
    for name in left_over:
        bench.file(name).write_bytes(b"x" * 24)
    bench.recover(clean=True)
    assert not {path.name for path in bench.path.iterdir()} & set(left_over)


# --- leader epochs --------------------------------------------------------------------------------------------------


EPOCHS_FILE = "leader-epoch-checkpoint"


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"0\n",
        b"0\n3\n0 0\n1 20\n",
        b"0\n3\n0 0\n1 20\n2 4",
        b"1\n0\n",
        b"0\n2\n1 0\n0 30\n",
        b"\0" * 30,
    ],
    ids=["missing", "empty", "cut", "short", "cut number", "other version", "falling", "zeros"],
)
@pytest.mark.parametrize("clean", [True, False])
def test_leader_epochs_are_found_again(bench: Bench, content: bytes | None, clean: bool) -> None:
    log = bench.create(segment_bytes=2000, index_interval_bytes=100)
    write(log, 130)
    expected = list(log.epochs.pairs)
    assert len(expected) == 7
    bench.stop(log)
    if content is None:
        bench.file(EPOCHS_FILE).unlink()
    else:
        bench.file(EPOCHS_FILE).write_bytes(content)
    again = bench.recover(clean=clean).log
    assert again.epochs.pairs == expected
    assert bench.file(EPOCHS_FILE).read_bytes() == again.epochs.render()


def test_lost_epochs_are_searched_for_not_scanned_for(bench: Bench) -> None:
    log = bench.create()
    for at in range(4000):
        log.append(batch(b"v" * 1000), at // 1500, NOW)
    bench.stop(log)
    bench.file(EPOCHS_FILE).unlink()
    again = bench.recover(clean=True).log
    assert again.epochs.pairs == [(0, 0), (1, 1500), (2, 3000)]
    assert bench.disk.bytes_read < log.size // 4


def test_epochs_that_were_not_durable_come_back_with_the_tail(bench: Bench) -> None:
    log = bench.create()
    write(log, 30)
    bench.flush(log)
    old = bench.file(EPOCHS_FILE).read_bytes()
    write(log, 50, seed=30)
    bench.file(EPOCHS_FILE).write_bytes(old)
    assert bench.recover().log.epochs.pairs == log.epochs.pairs


def test_epochs_of_what_was_cut_off_go(bench: Bench) -> None:
    log = bench.create()
    write(log, 70)
    end = log.epochs.pairs[2][1] + 1
    with bench.file(log_file()).open("r+b") as file:
        file.truncate(log.active.locate(end) + 3)
    again = bench.recover().log
    assert [epoch for epoch, _start in again.epochs.pairs] == [0, 1, 2]


# --- producers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("torn", ["missing", "cut", "zeros", "empty"])
def test_a_bad_snapshot_is_made_up_for_from_the_log(bench: Bench, torn: str) -> None:
    log = bench.create(segment_bytes=3000)
    write(log, 200)
    before = state(log)["producers"]
    bench.flush(log)
    path = bench.file(f"{log.next_offset:020d}.snapshot")
    data = path.read_bytes()
    contents = {"cut": data[:-1], "zeros": bytes(len(data)), "empty": b""}
    path.unlink() if torn == "missing" else path.write_bytes(contents[torn])
    assert state(bench.recover().log)["producers"] == before


def test_all_snapshots_may_be_missing(bench: Bench) -> None:
    log = bench.create(segment_bytes=3000)
    write(log, 200)
    before = state(log)["producers"]
    bench.stop(log)
    for name in bench.names(".snapshot"):
        bench.file(name).unlink()
    assert state(bench.recover(clean=True).log)["producers"] == before


def test_a_snapshot_newer_than_the_log_is_removed(bench: Bench) -> None:
    log = bench.create()
    write(log, 20)
    before = state(log)["producers"]
    bench.stop(log)
    bench.file(f"{10**6:020d}.snapshot").write_bytes(log.producers.render())
    again = bench.recover(clean=True).log
    assert bench.names(".snapshot") == [f"{again.next_offset:020d}.snapshot"]
    assert state(again)["producers"] == before


def test_producers_whose_records_were_all_deleted_are_still_known(bench: Bench) -> None:
    log = bench.create(segment_bytes=3000)
    log.append(sequenced(0, b"a", producer=99), 0, NOW)
    log.append(sequenced(1, b"b", producer=99), 0, NOW)
    write(log, 100)
    bench.flush(log)
    bench.remove(log.drop_segments(len(log.segments) - 1))
    bench.stop(log)
    again = bench.recover().log
    assert again.log_start_offset > 2
    assert again.append(sequenced(0, b"a", producer=99), 0, NOW)[:2] == (0, 0)


def test_producers_of_the_tail_count_as_heard_of_now(bench: Bench) -> None:
    """Their records can have timestamps of any age; a retry after the restart must still be detected."""
    log = bench.create()
    log.append(sequenced(0, b"a", timestamp=1000), 0, NOW)
    again = bench.recover().log
    again.producers.expire(NOW - 86_400_000)
    assert again.append(sequenced(0, b"a", timestamp=1000), 0, NOW).duplicate
