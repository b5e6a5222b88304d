import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from ottla.metadata import records as r
from ottla.ports.disk import DiskError, File
from ottla.runtime.disk import SystemDisk
from ottla.runtime.embedded_store import JOURNAL, DamagedJournal, EmbeddedStore

ID = bytes(range(16))
FIRST: list[r.Record] = [r.Cluster("c"), r.BrokerRegistration(1, 1, "h", 9092)]
SECOND: list[r.Record] = [r.Topic("t", ID), r.Partition(ID, 0, (1,), (1,), 1)]
THIRD: list[r.Record] = [r.ProducerIds(1000)]


def opened(path: Path, disk: SystemDisk | None = None) -> tuple[EmbeddedStore, list[r.Record | None]]:
    store = EmbeddedStore(disk or SystemDisk(), str(path))
    return store, store.load()


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    store, found = opened(tmp_path)
    assert found == []
    for records in (FIRST, SECOND, THIRD):
        store.append(records)
    store.close()
    return tmp_path / JOURNAL


def test_appended_records_are_loaded_again(journal: Path) -> None:
    store, found = opened(journal.parent)
    assert found == [*FIRST, *SECOND, *THIRD]
    assert store.records_on_disk == 5
    store.append(FIRST)
    assert opened(journal.parent)[1] == [*FIRST, *SECOND, *THIRD, *FIRST]


def test_an_entry_is_length_crc_and_one_record_a_line(tmp_path: Path) -> None:
    store, _found = opened(tmp_path)
    store.append(FIRST)
    payload = b"\n".join(r.encode(record) for record in FIRST)
    assert (tmp_path / JOURNAL).read_bytes() == struct.pack(">II", len(payload), crc32c(payload)) + payload


@pytest.mark.parametrize("filled", [False, True], ids=["cut", "zeros"])
def test_a_last_entry_torn_at_any_byte_is_cut_off(journal: Path, filled: bool) -> None:
    whole = journal.read_bytes()
    last = len(whole) - 8 - len(r.encode(THIRD[0]))
    for cut in range(last, len(whole)):
        journal.write_bytes(whole[:cut] + (bytes(len(whole) - cut + 50) if filled else b""))
        store, found = opened(journal.parent)
        assert found == [*FIRST, *SECOND], cut
        assert journal.stat().st_size == last
        store.append(THIRD)
        assert journal.read_bytes() == whole


def test_damage_before_the_end_is_refused_whatever_is_damaged(journal: Path) -> None:
    whole = journal.read_bytes()
    second = 8 + struct.unpack_from(">I", whole)[0]
    third = second + 8 + struct.unpack_from(">I", whole, second)[0]
    for at in range(third):
        damaged = bytearray(whole)
        damaged[at] ^= 0x41
        journal.write_bytes(damaged)
        with pytest.raises(DamagedJournal, match="is damaged at byte"):
            opened(journal.parent)
        assert journal.read_bytes() == damaged


def test_a_long_history_is_replaced_by_its_current_state(journal: Path) -> None:
    store, _found = opened(journal.parent)
    store.rewrite(SECOND)
    assert store.records_on_disk == 2
    store.append(THIRD)
    assert opened(journal.parent)[1] == [*SECOND, *THIRD]
    store.rewrite([])
    assert opened(journal.parent)[1] == []


class FailingDisk(SystemDisk):
    fails = ""
    full = False

    def _maybe(self, what: str) -> None:
        if self.fails == what:
            raise DiskError(f"{what} failed", full=self.full)

    def sync(self, file: File) -> None:
        self._maybe("sync")
        super().sync(file)

    def replace_file(self, path: str, data: bytes) -> None:
        self._maybe("replace")
        super().replace_file(path, data)


def test_a_failed_sync_is_final(journal: Path) -> None:
    """R11: its entry is rejected, and nothing is written after it."""
    disk = FailingDisk()
    store, _found = opened(journal.parent, disk)
    before = journal.read_bytes()
    disk.fails = "sync"
    with pytest.raises(DiskError):
        store.append(THIRD)
    disk.fails = ""
    assert journal.read_bytes() == before
    with pytest.raises(DiskError, match="sync failed"):
        store.append(THIRD)
    with pytest.raises(DiskError, match="sync failed"):
        store.rewrite(FIRST)
    assert journal.read_bytes() == before


def test_without_disk_space_for_a_rewrite_the_journal_goes_on(journal: Path) -> None:
    disk = FailingDisk()
    store, found = opened(journal.parent, disk)
    disk.fails, disk.full = "replace", True
    with pytest.raises(DiskError):
        store.rewrite(FIRST)
    disk.fails = ""
    store.append(THIRD)
    assert opened(journal.parent)[1] == [*found, *THIRD]


def test_a_rewrite_that_failed_otherwise_is_final(journal: Path) -> None:
    disk = FailingDisk()
    store, _found = opened(journal.parent, disk)
    disk.fails = "replace"
    with pytest.raises(DiskError):
        store.rewrite(FIRST)
    disk.fails = ""
    with pytest.raises(DiskError, match="could not be replaced"):
        store.append(THIRD)


def test_truncated_bytes_are_kept_in_a_file_beside_the_journal(journal: Path) -> None:
    """If it was damage and no torn write, these bytes are all that is left of the topics."""
    damaged = journal.read_bytes()[:-3] + b"\0\0\0"
    journal.write_bytes(damaged)
    _store, found = opened(journal.parent)
    assert found == [*FIRST, *SECOND]
    kept = journal.with_suffix(".journal.cut").read_bytes()
    assert kept and journal.read_bytes() + kept == damaged


def test_the_truncation_of_a_damaged_tail_is_logged(tmp_path: Path) -> None:
    said: list[str] = []
    store = EmbeddedStore(SystemDisk(), str(tmp_path), say=said.append)
    store.load()
    store.append([r.Cluster("c")])
    assert said == []
    with open(tmp_path / "metadata.journal", "ab") as file:
        file.write(b"half an entry")
    size = (tmp_path / "metadata.journal").stat().st_size
    assert EmbeddedStore(SystemDisk(), str(tmp_path), say=said.append).load() == [r.Cluster("c")]
    [line] = said
    assert (
        line.startswith(f"{tmp_path}/metadata.journal: truncated 13 of {size} bytes") and "1 records" in line
    )
    assert (tmp_path / "metadata.journal.cut").read_bytes() == b"half an entry"
