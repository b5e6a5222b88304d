"""Open, ended and aborted transactions: the last stable offset, the index file, and both after a restart."""

import random
import struct
from pathlib import Path

import pytest

from ottla.log.partition_log import PartitionLog
from ottla.log.recovery import open_log
from ottla.log.transactions import Ended, TransactionIndex, Transactions
from ottla.model.errors import ErrorCode, Refusal
from ottla.records.batch import CONTROL_BIT, HEADER, TRANSACTIONAL_BIT
from testkit.sim.disk import SimDisk
from tests.log.log_bench import NOW, Bench, CountingDisk, batch, config, full, sequenced

INDEX = "00000000000000000000.txnindex"


class Writer:
    """Transactional producers that count their sequences."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.sequences: dict[int, int] = {}

    def write(self, producer: int, *values: bytes, epoch: int = 0) -> int:
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + len(values)
        data = sequenced(sequence, *values, producer=producer, epoch=epoch, transactional=True)
        return self.log.append(data, 0, NOW).base_offset

    def end(self, producer: int, *, commit: bool, epoch: int = 0, coordinator: int = 0) -> int:
        return self.log.append_marker(producer, epoch, coordinator, commit, 0, NOW).base_offset


def aborted(log: PartitionLog, offset: int = 0, bytes_max: int = 1 << 30) -> list[tuple[int, int, int]]:
    piece = log.slice(offset, log.next_offset, bytes_max, whole_first=True)
    assert piece is not None
    return [each[:3] for each in log.aborted(offset, log.next_offset, piece)]


def stable(log: PartitionLog) -> int:
    return log.last_stable_offset(log.next_offset)


def open_transactions(log: PartitionLog) -> list[tuple[int, int]]:
    return list(log.producers.transactions.open.items()) if log.producers.transactions else []


# --- in memory ----------------------------------------------------------------------------------------------------


def test_the_first_unstable_offset_is_that_of_a_plain_search() -> None:
    chance = random.Random(1)
    for _ in range(300):
        kept, begun, ended = Transactions(), dict[int, int](), list[tuple[int, int]]()
        watermark = 0
        for offset in range(1, 41):
            if begun and chance.random() < 0.5:
                first = chance.choice(list(begun))
                del begun[first]
                assert kept.end(first, offset) == min(begun, default=offset + 1)
                ended.append((first, offset))
            else:
                begun[offset] = offset
                kept.begin(offset, offset)
            watermark = chance.randint(watermark, offset + 1)
            ended = [each for each in ended if each[1] >= watermark]
            expected = min([*begun, *(first for first, _ in ended)], default=None)
            assert kept.first_unstable(watermark) == expected


# --- the file -----------------------------------------------------------------------------------------------------


@pytest.fixture
def index(tmp_path: Path) -> TransactionIndex:
    return TransactionIndex(CountingDisk(), str(tmp_path / INDEX))


def test_the_file_comes_with_the_first_entry_and_is_kafkas(index: TransactionIndex, tmp_path: Path) -> None:
    assert index.file is None and index.count == 0
    index.truncate(0)
    assert index.collect(0, 100, []) is False
    assert not list(tmp_path.iterdir())
    index.append(Ended(7, 1, 5, 3))
    assert (tmp_path / INDEX).read_bytes() == struct.pack(">hqqqq", 0, 7, 1, 5, 3)


def test_entries_are_found_by_the_offsets_they_reach_into(index: TransactionIndex) -> None:
    # 500 transactions in sequence, each of ten offsets.
    for at in range(500):
        index.append(Ended(7, at * 10, at * 10 + 9, at * 10 + 10))
    for low, high in ((0, 1), (0, 10), (9, 11), (10, 20), (4321, 4355), (4990, 5000), (0, 5000)):
        found: list[Ended] = []
        assert index.collect(low, high, found)
        assert [each.first_offset // 10 for each in found] == list(range(low // 10, (high - 1) // 10 + 1))
    assert not index.collect(4995, 5001, [])


def test_a_later_entry_of_an_earlier_transaction_is_found(index: TransactionIndex) -> None:
    # The second began first and was open when the first ended, as its last stable offset shows.
    index.append(Ended(1, 5, 8, 2))
    index.append(Ended(2, 2, 9, 10))
    found: list[Ended] = []
    assert index.collect(2, 4, found)
    assert [each.producer_id for each in found] == [2]


def test_truncation(index: TransactionIndex, tmp_path: Path) -> None:
    for at in range(20):
        index.append(Ended(7, at * 10, at * 10 + 9, at * 10 + 10))
    index.truncate(149)
    assert index.count == 14
    index.append(Ended(7, 140, 149, 150))
    again = TransactionIndex(CountingDisk(), str(tmp_path / INDEX))
    assert again.load(0) and again.count == 15
    again.truncate(0)
    assert again.count == 0 and (tmp_path / INDEX).stat().st_size == 0


def entry(version: int = 0, producer: int = 7, first: int = 12, last: int = 15, stable: int = 16) -> bytes:
    return struct.pack(">hqqqq", version, producer, first, last, stable)


@pytest.mark.parametrize(
    "data",
    [
        entry()[:-1],
        entry(version=1),
        entry(first=16),
        entry(first=-1),
        entry(stable=17),
        entry(first=3, last=9, stable=10),
        entry() + entry(),
        entry() + bytes(34),
    ],
)
def test_what_cannot_be_the_index_of_a_segment_is_not_believed(
    index: TransactionIndex, tmp_path: Path, data: bytes
) -> None:
    (tmp_path / INDEX).write_bytes(data)
    assert not index.load(10)
    assert index.count == 0 and (tmp_path / INDEX).stat().st_size == 0


def test_an_index_with_a_transaction_from_before_the_segment_is_sound(
    index: TransactionIndex, tmp_path: Path
) -> None:
    (tmp_path / INDEX).write_bytes(entry(first=3, last=10, stable=11) + entry(last=20, stable=4))
    assert index.load(10) and index.count == 2


# --- in a log -----------------------------------------------------------------------------------------------------


def test_a_log_without_transactions_has_nothing_of_them(bench: Bench) -> None:
    log = bench.create()
    log.append(sequenced(0, b"a"), 0, NOW)
    assert log.producers.transactions is None
    assert stable(log) == 1 and log.last_stable_offset(0) == 0
    assert aborted(log) == []
    bench.stop(log)
    assert bench.names(".txnindex") == []


def test_markers_are_control_batches_as_kafka_writes_them(bench: Bench) -> None:
    log = bench.create()
    writer = Writer(log)
    writer.write(7, b"a")
    for commit in (True, False):
        position = log.active.size
        assert log.append_marker(7, 3, 5, commit, 9, NOW) == (
            log.next_offset - 1,
            log.next_offset - 1,
            -1,
            False,
        )
        data = log.active.batch_at(position)
        head = HEADER.unpack_from(data)
        assert head[0] == log.next_offset - 1 and head[2] == 9
        assert head[5] == TRANSACTIONAL_BIT | CONTROL_BIT
        assert head[6:] == (0, NOW, NOW, 7, 3, -1, 1)
        key, value = struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 5)
        assert data[61:] == b"\x20\0\0\0\x08" + key + b"\x0c" + value + b"\0"


def test_the_last_stable_offset_follows_the_oldest_transaction(bench: Bench) -> None:
    log = bench.create()
    writer = Writer(log)
    log.append(batch(b"plain"), 0, NOW)
    assert stable(log) == 1
    assert writer.write(1, b"a", b"b") == 1
    assert writer.write(2, b"c") == 3
    assert stable(log) == 1
    writer.end(1, commit=True)
    assert stable(log) == 3
    writer.write(1, b"d")
    writer.end(2, commit=False)
    assert stable(log) == 5
    writer.end(1, commit=True)
    assert stable(log) == log.next_offset == 8
    assert aborted(log) == [(2, 3, 6)]


def test_a_marker_counts_once_the_high_watermark_has_passed_it(bench: Bench) -> None:
    log = bench.create()
    writer = Writer(log)
    writer.write(1, b"a")
    writer.end(1, commit=True)
    assert log.last_stable_offset(1) == 0
    assert log.last_stable_offset(2) == 2


def test_a_marker_without_a_transaction_is_written_and_says_nothing(bench: Bench) -> None:
    log = bench.create()
    writer = Writer(log)
    writer.end(9, commit=False, epoch=2, coordinator=4)
    assert log.next_offset == stable(log) == 1
    assert bench.names(".txnindex") == []
    producer = log.producers.by_id[9]
    assert (producer.epoch, producer.coordinator_epoch, producer.batches) == (2, 4, [])
    with pytest.raises(Refusal) as caught:
        log.append(sequenced(3, b"a", producer=9, epoch=2, transactional=True), 0, NOW)
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_markers_of_the_past_are_fenced(bench: Bench) -> None:
    log = bench.create()
    writer = Writer(log)
    writer.write(1, b"a", epoch=3)
    for epoch, coordinator, code in (
        (2, 9, ErrorCode.INVALID_PRODUCER_EPOCH),
        (3, 4, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    ):
        log.producers.by_id[1].coordinator_epoch = 5
        with pytest.raises(Refusal) as caught:
            writer.end(1, commit=True, epoch=epoch, coordinator=coordinator)
        assert caught.value.code == code
    assert log.next_offset == 1 and stable(log) == 0
    # The coordinator may fence the producer with the marker itself.
    writer.end(1, commit=False, epoch=4, coordinator=5)
    with pytest.raises(Refusal) as caught:
        writer.write(1, b"late", epoch=3)
    assert caught.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.append(sequenced(0, b"b", producer=1, epoch=4, transactional=True), 0, NOW).base_offset == 2


def test_batches_that_fit_no_transaction_are_refused(bench: Bench) -> None:
    log = bench.create()
    with pytest.raises(Refusal) as caught:
        log.append(batch(b"a", transactional=True), 0, NOW)
    assert caught.value.code == ErrorCode.INVALID_RECORD
    Writer(log).write(1, b"a")
    with pytest.raises(Refusal) as caught:
        log.append(sequenced(1, b"b", producer=1), 0, NOW)
    assert caught.value.code == ErrorCode.INVALID_TXN_STATE
    log.append(sequenced(0, b"of another", producer=2), 0, NOW)
    assert stable(log) == 0


def test_a_repeated_batch_opens_nothing(bench: Bench) -> None:
    log = bench.create()
    writer = Writer(log)
    writer.write(1, b"a")
    writer.end(1, commit=True)
    assert log.append(sequenced(0, b"a", producer=1, transactional=True), 0, NOW).duplicate
    assert stable(log) == 2


def test_aborted_transactions_are_found_across_segments_and_bounded_by_the_slice(bench: Bench) -> None:
    log = bench.create(segment_bytes=1000, index_interval_bytes=100)
    writer = Writer(log)
    # One that spans everything, and many short ones of which every second is aborted.
    writer.write(1, b"long")
    ended = []
    for at in range(60):
        first = writer.write(2, b"short" * 4)
        last = writer.end(2, commit=bool(at % 2))
        if not at % 2:
            ended.append((2, first, last))
    ended.append((1, 0, writer.end(1, commit=False)))
    assert len(log.segments) > 5
    for offset in range(log.next_offset):
        for bytes_max in (1, 300, 5000):
            piece = log.slice(offset, log.next_offset, bytes_max, whole_first=True)
            assert piece is not None
            end = log.segments[log.segment_for(offset)].next_offset
            whole = [each for each in ended if each[2] >= offset and each[1] < end]
            found = aborted(log, offset, bytes_max)
            assert set(found) <= set(whole)
            assert (1, 0, log.next_offset - 1) in found
            # All that begin in the slice, and none that begin far after it.
            last = offset
            position = piece.position
            while position < piece.position + piece.size:
                head = log.segments[log.segment_for(offset)].head_at(position)
                assert head is not None
                last, position = head.last_offset, position + head.size
            assert {each for each in whole if each[1] <= last} <= set(found)
            assert all(each[1] < last + 8 for each in found)


def test_no_room_for_the_index_does_not_lose_the_transaction(bench: Bench) -> None:
    log = bench.create()
    writer = Writer(log)
    writer.write(1, b"a")
    bench.disk.before_write = full(".txnindex")
    writer.end(1, commit=False)
    assert aborted(log) == [(1, 0, 1)]
    bench.disk.before_write = None
    bench.flush(log)
    assert bench.file(INDEX).stat().st_size == 34


# --- shortened, opened again ---------------------------------------------------------------------------------------


def history(log: PartitionLog) -> Writer:
    writer = Writer(log)
    writer.write(1, b"a")
    writer.write(2, b"b")
    writer.end(1, commit=False)
    writer.write(3, b"c")
    writer.end(2, commit=True)
    writer.write(1, b"d")
    writer.end(3, commit=False)
    return writer


EXPECTED = ([(1, 0, 2), (3, 3, 6)], [(5, 1)], 5)


def seen(log: PartitionLog) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]], int]:
    return aborted(log), open_transactions(log), stable(log)


@pytest.mark.parametrize("flushes", [(), (3,), (0, 1, 2, 3, 4, 5, 6, 7)])
@pytest.mark.parametrize("ending", ["stop", "kill", "lose", "tear", "invent", "zeros"])
def test_transactions_after_a_restart(bench: Bench, flushes: tuple[int, ...], ending: str) -> None:
    """Whatever a crash leaves of the index file after the recovery point: nothing, a part, or something else."""
    log = bench.create(segment_bytes=1 << 20)
    writer = Writer(log)
    steps = [
        lambda: writer.write(1, b"a"),
        lambda: writer.write(2, b"b"),
        lambda: writer.end(1, commit=False),
        lambda: writer.write(3, b"c"),
        lambda: writer.end(2, commit=True),
        lambda: writer.write(1, b"d"),
        lambda: writer.end(3, commit=False),
    ]
    durable = b""
    for at, step in enumerate(steps):
        step()
        if at + 1 in flushes:
            bench.flush(log)
            durable = bench.file(INDEX).read_bytes() if bench.file(INDEX).exists() else b""
    assert seen(log) == EXPECTED
    whole = bench.file(INDEX).read_bytes()
    if ending == "stop":
        bench.stop(log)
    elif ending == "lose":
        bench.file(INDEX).write_bytes(durable)
        if not durable:
            bench.file(INDEX).unlink()
    elif ending == "tear":
        bench.file(INDEX).write_bytes(whole[:-5])
    elif ending == "invent":
        bench.file(INDEX).write_bytes(durable + struct.pack(">hqqqq", 0, 8, 6, 9, 10))
    elif ending == "zeros":
        bench.file(INDEX).write_bytes(durable + bytes(len(whole) - len(durable)))
    again = bench.recover(clean=ending == "stop").log
    assert seen(again) == EXPECTED
    assert bench.file(INDEX).read_bytes() == whole
    # And it continues.
    Writer(again).end(1, commit=True)
    assert stable(again) == again.next_offset


@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_index_before_the_recovery_point_is_made_anew(bench: Bench, clean: bool) -> None:
    log = bench.create(segment_bytes=700)
    writer = Writer(log)
    for at in range(30):
        writer.write(1, b"x" * 30)
        writer.end(1, commit=bool(at % 3))
    before = seen(log)
    bench.stop(log)
    names = bench.names(".txnindex")
    assert len(names) > 3
    whole = {name: bench.file(name).read_bytes() for name in names}
    damaged = bytearray(whole[names[1]])
    damaged[0] ^= 1
    bench.file(names[1]).write_bytes(damaged)
    again = bench.recover(clean=clean).log
    assert seen(again) == before
    assert {name: bench.file(name).read_bytes() for name in names} == whole


@pytest.mark.parametrize("reopened", [False, True])
def test_truncation_takes_transactions_back(bench: Bench, reopened: bool) -> None:
    """What each prefix of a history leaves open or aborted is the state of the log when it is truncated
    there.
    """
    states = []
    log = bench.create(segment_bytes=200)
    writer = Writer(log)
    for at in range(24):
        producer = at % 3 + 1
        states.append((log.next_offset, open_transactions(log), stable(log)))
        if at % 5 == 4:
            writer.end(producer, commit=at % 2 == 0)
        else:
            writer.write(producer, b"x" * 20)
    all_aborted = aborted_of_all(log)
    for offset, opened, stable_then in reversed(states):
        bench.remove(log.truncate(offset, NOW))
        bench.recovery_point = log.recovery_point
        if reopened:
            log = bench.recover().log
        assert (open_transactions(log), stable(log)) == (opened, stable_then)
        assert aborted_of_all(log) == [each for each in all_aborted if each[2] < offset]


def aborted_of_all(log: PartitionLog) -> list[tuple[int, int, int]]:
    found: list[Ended] = []
    for segment in log.segments:
        segment.aborted.collect(0, 1 << 62, found)
    return [each[:3] for each in found]


def test_the_start_of_the_log_moves_past_an_open_transaction(bench: Bench) -> None:
    log = bench.create(segment_bytes=200)
    writer = Writer(log)
    writer.write(1, b"a" * 50)
    writer.write(2, b"b" * 50)
    writer.end(2, commit=False)
    log.append(batch(b"c" * 50), 0, NOW)
    assert stable(log) == 0
    log.delete_before(3)
    assert stable(log) == 3
    bench.log_start_offset = 3
    bench.remove(log.drop_segments(log.segment_for(3)))
    assert log.bases[0] > 0
    bench.stop(log)
    log = bench.recover(clean=True).log
    assert stable(log) == 3
    Writer(log).end(1, commit=False)
    assert stable(log) == log.next_offset
    assert aborted(log, 3) == [(1, 0, 4)]


def test_a_transaction_whose_beginning_was_deleted_is_still_open_after_a_crash(bench: Bench) -> None:
    """The rest of the log is read again, and the snapshot at its start has the transactions that were open
    before.
    """
    log = bench.create(segment_bytes=900)
    writer = Writer(log)
    writer.write(1, b"a")
    log.roll(NOW)
    bench.remove(log.drop_segments(1))
    bench.log_start_offset = 1
    writer.write(2, b"b")
    assert open_transactions(bench.recover().log) == [(0, 1), (1, 2)]


def test_the_index_is_durable_before_the_recovery_point_moves() -> None:
    """Recovery reads nothing before that point again, so a power cut must not take it."""
    disk = SimDisk(random.Random(1), strict=True)
    disk.make_dir("/t-0")
    disk.sync_dir("/")
    log = PartitionLog.create(
        disk, "/t-0", config(segment_bytes=300), start_offset=0, now_ms=NOW, topic_id_file=b""
    )
    history(log)
    expected, rest = aborted_of_all(log), (open_transactions(log), stable(log))
    flush = log.begin_flush()
    assert flush is not None
    for file in flush.files:
        disk.sync(file)
    disk.replace_file(log.snapshot_path(flush.end_offset), flush.snapshot)
    disk.crash()
    found = open_log(
        disk, "/t-0", config(), recovery_point=flush.end_offset, log_start_offset=0, clean=False, now_ms=NOW
    )
    assert found is not None and not found.damaged
    assert aborted_of_all(found.log) == expected == [(1, 0, 2), (3, 3, 6)]
    assert (open_transactions(found.log), stable(found.log)) == rest


def test_a_segment_goes_with_its_index(bench: Bench) -> None:
    log = bench.create(segment_bytes=200)
    history(log)
    bench.stop(log)
    stems = [name.partition(".")[0] for name in bench.names(".txnindex")]
    assert len(stems) == 2
    bench.file(f"{stems[0]}.log").unlink()
    bench.file("00000000000000000099.txnindex").write_bytes(entry())
    bench.file("00000000000000000098.txnindex.deleted").write_bytes(entry())
    bench.log_start_offset = int(stems[0]) + 1
    bench.recover(clean=True)
    assert bench.names(".txnindex") == [f"{stems[1]}.txnindex"]
    assert bench.names(".deleted") == []


def test_a_new_segment_does_not_inherit_an_index(bench: Bench) -> None:
    log = bench.create()
    log.append(batch(b"a"), 0, NOW)
    bench.file("00000000000000000001.txnindex").write_bytes(entry(first=1, last=1, stable=2))
    log.roll(NOW)
    log.append(batch(b"b"), 0, NOW)
    bench.stop(log)
    assert bench.recover(clean=True).log.has_aborted is False


# --- transactions of version 2 (KIP-890) ---------------------------------------------------------------------------


def test_a_late_copy_of_a_marker_does_not_end_the_next_transaction(bench: Bench) -> None:
    log = bench.create()
    writer = Writer(log)
    writer.write(7, b"a")

    def end(epoch: int) -> None:
        log.append_marker(7, epoch, 0, True, 0, NOW, raises_epoch=True)

    end(1)
    # No open transaction: a repetition does no harm.
    end(1)
    writer.sequences.clear()
    writer.write(7, b"b", epoch=1)
    before = log.next_offset
    with pytest.raises(Refusal) as refused:
        end(1)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH and log.next_offset == before
    assert log.producers.has_open(7, 1) and not log.producers.has_open(7, 0)
    end(2)
    assert not log.producers.has_open(7, 1)
    # In transactions v1 the epoch is that of the transaction.
    writer.sequences.clear()
    writer.write(7, b"c", epoch=2)
    writer.end(7, commit=True, epoch=2)
    assert stable(log) == log.next_offset


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("start", [1, 2, 100])
def test_a_log_that_begins_anew_has_nothing_open(bench: Bench, start: int, reopened: bool) -> None:
    """A follower was away until its leader had deleted the following records: the markers were among them,
    and never come.
    """
    log = bench.create(segment_bytes=900)
    writer = Writer(log)
    writer.write(1, b"a")
    log.roll(NOW)
    writer.write(1, b"b")
    assert stable(log) == 0
    dropped = log.begin_at(start, NOW)
    bench.remove([each for each in dropped if each.base_offset != start])
    bench.log_start_offset = bench.recovery_point = start
    if reopened:
        log = bench.recover().log
    assert log.next_offset == start
    writer = Writer(log)
    writer.write(2, b"c")
    writer.end(2, commit=True)
    assert open_transactions(log) == [] and stable(log) == start + 2
