import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.log.index import SparseIndex, offset_index, time_index
from tests.log.log_bench import CountingDisk, full


def make(path: Path, entries: int = 0, bytes_max: int = 1 << 20) -> tuple[CountingDisk, SparseIndex]:
    disk = CountingDisk()
    index = offset_index(disk, str(path / "00.index"), bytes_max, create=True)
    for at in range(entries):
        index.append(10 * at + 10, 100 * at + 100)
    return disk, index


def test_offset_entries_are_two_int32_big_endian(tmp_path: Path) -> None:
    _disk, index = make(tmp_path)
    index.append(17, 4242)
    index.append(99, 5000)
    index.flush()
    assert (tmp_path / "00.index").read_bytes() == struct.pack(">iiii", 17, 4242, 99, 5000)


def test_time_entries_are_an_int64_and_an_int32(tmp_path: Path) -> None:
    disk = CountingDisk()
    index = time_index(disk, str(tmp_path / "00.timeindex"), 1 << 20, create=True)
    index.append(1_700_000_000_123, 7)
    index.flush()
    assert (tmp_path / "00.timeindex").read_bytes() == struct.pack(">qi", 1_700_000_000_123, 7)


@pytest.mark.parametrize("flushed", [0, 1, 2, 3])
def test_neighbours_are_found_in_the_file_in_memory_and_across_both(tmp_path: Path, flushed: int) -> None:
    _disk, index = make(tmp_path)
    for at in range(3):
        if at == flushed:
            index.flush()
        index.append(10 * at + 10, at + 1)
    if flushed == 3:
        index.flush()
    assert index.place(9) == (0, None, (10, 1))
    assert index.place(10) == (1, (10, 1), (20, 2))
    assert index.place(19) == (1, (10, 1), (20, 2))
    assert index.place(20) == (2, (20, 2), (30, 3))
    assert index.place(30) == (3, (30, 3), None)
    assert index.place(10**6).floor == (30, 3)
    assert index.last() == (30, 3)
    assert index.count == 3


def test_an_empty_index_has_no_neighbours(tmp_path: Path) -> None:
    _disk, index = make(tmp_path)
    assert index.place(5) == (0, None, None)
    assert index.last() is None
    assert index.last_key is None


@given(st.sets(st.integers(0, 3000), max_size=1500), st.integers(0, 1500), st.lists(st.integers(-1, 3001)))
def test_a_look_up_says_what_a_sorted_list_says(keys: set[int], flushed: int, asked: list[int]) -> None:
    import tempfile

    entries = [(key, 2 * key + 1) for key in sorted(keys)]
    with tempfile.TemporaryDirectory() as folder:
        disk, index = make(Path(folder))
        for at, entry in enumerate(entries):
            index.append(*entry)
            if at == flushed:
                index.flush()
        for key in asked:
            below = [entry for entry in entries if entry[0] <= key]
            above = [entry for entry in entries if entry[0] > key]
            expected = (len(below), below[-1] if below else None, above[0] if above else None)
            assert index.place(key) == expected
        disk.release()


def test_a_cold_look_up_reads_a_logarithm_of_the_index(tmp_path: Path) -> None:
    disk, index = make(tmp_path, entries=300_000, bytes_max=10 << 20)
    index.flush()
    for key in (11, 1_500_003, 2_999_999):
        disk.reads.clear()
        floor = index.floor(key)
        assert floor is not None and floor[0] == key // 10 * 10
        assert len(disk.reads) <= 12
        assert disk.bytes_read <= 4096 + 32 + 12 * 8


@pytest.mark.parametrize("cut", [0, 1, 499, 511, 512, 513, 600, 601])
def test_truncating_by_key_cuts_file_and_memory(tmp_path: Path, cut: int) -> None:
    # 512 entries are written at once, the others wait in memory.
    _disk, index = make(tmp_path, entries=601)
    index.truncate_keys(10 * cut + 10)
    assert index.count == cut
    assert index.last() == ((10 * cut, 100 * cut) if cut else None)
    assert index.last_key == (10 * cut if cut else None)
    assert (tmp_path / "00.index").stat().st_size == 8 * cut
    index.append(10 * cut + 10, 1 << 20)
    assert index.floor(10**6) == (10 * cut + 10, 1 << 20)


@pytest.mark.parametrize("cut", [0, 300, 512, 601])
def test_truncating_by_value(tmp_path: Path, cut: int) -> None:
    _disk, index = make(tmp_path, entries=601)
    index.truncate_values(100 * cut + 50)
    assert index.count == cut


def test_it_is_full_when_no_whole_entry_fits(tmp_path: Path) -> None:
    _disk, index = make(tmp_path, bytes_max=31)
    full_after = []
    for at in range(1, 4):
        index.append(at, at)
        full_after.append(index.full)
    assert full_after == [False, False, True]


def test_the_time_index_keeps_one_entry_free_for_the_roll(tmp_path: Path) -> None:
    disk = CountingDisk()
    index = time_index(disk, str(tmp_path / "00.timeindex"), 36, create=True)
    full_after = []
    for at in range(1, 4):
        index.append(at, at)
        full_after.append(index.full)
    assert full_after == [False, True, True]
    index.flush()
    assert (tmp_path / "00.timeindex").stat().st_size == 36


def test_a_loaded_index_goes_on(tmp_path: Path) -> None:
    disk, index = make(tmp_path, entries=5)
    index.flush()
    index.close()
    again = offset_index(disk, str(tmp_path / "00.index"), 1 << 20, create=True)
    assert again.load()
    assert again.count == 5
    again.append(1000, 10_000)
    assert again.place(999) == (5, (50, 500), (1000, 10_000))


@pytest.mark.parametrize(
    "content",
    [
        struct.pack(">ii", 5, 50) + b"\0\0\0",
        struct.pack(">iiii", 5, 50, 0, 0),
        struct.pack(">iiii", 0, 0, 0, 0),
        struct.pack(">iiii", 9, 50, 5, 60),
        struct.pack(">iiii", 5, 60, 9, 50),
        struct.pack(">ii", -1, 50),
        struct.pack(">ii", 5, -50),
    ],
    ids=[
        "half an entry",
        "zeros behind",
        "all zeros",
        "keys fall",
        "values fall",
        "negative key",
        "negative value",
    ],
)
def test_a_file_that_cannot_be_an_index_is_not_believed(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "00.index").write_bytes(content)
    _disk, index = make(tmp_path)
    assert not index.load()
    index.reset()
    assert index.count == 0
    assert (tmp_path / "00.index").read_bytes() == b""


def test_salvage_keeps_what_stands_before_the_damage(tmp_path: Path) -> None:
    good = struct.pack(">iiii", 5, 50, 9, 90)
    (tmp_path / "00.index").write_bytes(good + bytes(16) + struct.pack(">ii", 20, 200) + b"\1\2\3")
    _disk, index = make(tmp_path)
    index.salvage()
    assert (tmp_path / "00.index").read_bytes() == good
    assert index.last() == (9, 90) and index.last_key == 9
    index.append(11, 110)
    assert index.floor(12) == (11, 110)


def test_without_room_entries_wait_in_memory(tmp_path: Path) -> None:
    """R13: the batch they belong to is in the log already."""
    disk, index = make(tmp_path)
    disk.before_write = full(".index")
    for at in range(600):
        index.append(10 * at + 10, 100 * at + 100)
    assert (tmp_path / "00.index").stat().st_size == 0
    assert index.floor(5005) == (5000, 50_000)
    disk.before_write = None
    index.append(6010, 60_100)
    assert (tmp_path / "00.index").stat().st_size == 601 * 8
    assert index.floor(6010) == (6010, 60_100)


@pytest.mark.parametrize(
    "entries", [[(10, 100), (20, 200)], [(10, 100)], [(10, 100), (21, 200)], []], ids=str
)
def test_begun_anew_it_holds_what_comes_then_and_is_written_only_if_that_differs(
    tmp_path: Path, entries: list[tuple[int, int]]
) -> None:
    disk, index = make(tmp_path, 2)
    index.flush()
    written: list[str] = []
    disk.before_write = written.append
    index.begin_rebuild()
    assert index.count == 0 and index.last() is None and index.place(10**6).floor is None
    for key, value in entries:
        index.append(key, value)
    index.flush()
    assert index.count == len(entries)
    assert (tmp_path / "00.index").read_bytes() == b"".join(struct.pack(">ii", *entry) for entry in entries)
    assert bool(written) == (entries not in ([(10, 100), (20, 200)], []))
