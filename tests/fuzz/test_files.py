"""Damaged data directories: some hundred of them; and the process that finds one."""

import subprocess
import sys
from pathlib import Path

import pytest

from ottla.records.record import whole_batches
from testkit.fuzz.files import DAMAGES, Case, make_originals, run_files
from testkit.fuzz.outcome import Failed, Tally, resident_bytes

DIRECTORIES = 200


def test_damaged_directories(seed: int, scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = resident_bytes()
    tally = run_files(DIRECTORIES, seed, scratch)
    with capsys.disabled():
        print(f"\n  seed {seed}: {tally}")
    assert tally["started"] + tally["refused"] == tally["damaged directories"] == DIRECTORIES
    assert tally["started"] > DIRECTORIES // 2
    assert resident_bytes() - before < 300 << 20


@pytest.mark.parametrize("name", ["metadata.journal", "meta.properties", "ottla.pid", "plain-0"])
@pytest.mark.parametrize("how", ["directory", "noise"])
def test_the_process_says_in_a_line_why_it_does_not_start(scratch: Path, name: str, how: str) -> None:
    """Or it starts. A damaged file never causes a traceback."""
    [_killed, stopped] = make_originals(scratch)
    victim = stopped.path / name
    if victim.is_dir():
        victim.rename(scratch / "gone")
    elif victim.exists():
        victim.unlink()
    if how == "directory":
        victim.mkdir()
    else:
        victim.write_bytes(b"\xff\x00noise")
    arguments = ["up", "--listen", "127.0.0.1:0", "--data-dir", str(stopped.path), "--no-console"]
    with subprocess.Popen(
        [sys.executable, "-m", "ottla.cli", *arguments], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        words = ""
        # It logs what it found first; then it listens, or exits.
        for line in process.stderr:
            words += line
            if " listens on " in line:
                process.terminate()
    assert "Traceback" not in words
    assert " listens on " in words or (process.returncode == 1 and str(stopped.path) in words), words


def damaged(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, name: str, old: bytes, new: bytes, which: int = 1
) -> Tally:
    """Open a directory in which some bytes of one file were changed."""

    def change(_random: object, path: Path) -> list[tuple[str, str]]:
        file = path / name
        data = file.read_bytes()
        assert old in data and len(old) == len(new)
        file.write_bytes(data.replace(old, new, 1))
        return [("change", name)]

    original = make_originals(scratch)[which]
    monkeypatch.setattr("testkit.fuzz.files.damage", change)
    tally = Tally()
    case = Case(original, scratch / "case", "1")
    case.run(tally)
    tally.add("\n".join(case.said))
    return tally


def test_a_damaged_entry_in_the_middle_of_an_index_leads_past_no_record(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ends of the index are valid, so the index is used; but an entry is only followed to a matching
    batch.
    """
    name = "synced-0/00000000000000000139.index"
    [_killed, stopped] = make_originals(scratch / "first")
    entries = (stopped.path / name).read_bytes()
    # Its second entry has an offset that does not exist, and the position of the third.
    assert len(entries) == 32
    new = entries[:8] + bytes(4) + entries[20:24] + entries[16:]
    assert damaged(scratch, monkeypatch, name, entries, new)["started"] == 1


def test_another_topic_id_sets_a_partition_aside_instead_of_removing_it(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [_killed, stopped] = make_originals(scratch / "first")
    text = (stopped.path / "plain-0/partition.metadata").read_bytes()
    at = text.index(b"topic_id: ") + 10
    tally = damaged(scratch, monkeypatch, "plain-0/partition.metadata", text[at : at + 6], b"AAAAAA")
    assert tally["started"] == 1
    [kept] = (scratch / "case").glob("plain-0.*-stray")
    assert any(file.stat().st_size for file in kept.glob("*.log"))


def test_a_journal_that_lost_its_end_keeps_the_partitions_it_does_not_know_any_more(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = damaged(scratch, monkeypatch, "metadata.journal", b'"keyed"', b'"kexed"')
    assert tally["refused"] or tally["topics kept aside"]


@pytest.mark.parametrize("text", [b"directory.id=A", b"directory.id=_"])
def test_a_directory_id_that_is_none_is_made_anew(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    [_killed, stopped] = make_originals(scratch / "first")
    old = (stopped.path / "meta.properties").read_bytes()
    at = old.index(b"directory.id=")
    new = old[:at] + text.ljust(len(old) - at, b"\n")
    assert damaged(scratch, monkeypatch, "meta.properties", old, new)["started"] == 1


def test_an_offset_far_beyond_its_segment_is_damage(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "rolled-0/00000000000000000060.log"
    [_killed, stopped] = make_originals(scratch / "first")
    # Of the last batch: those before the last index entry are not read after a clean shutdown.
    *_, last = whole_batches((stopped.path / name).read_bytes())
    tally = damaged(scratch, monkeypatch, name, bytes(last), b"\x00\x08" + bytes(last[2:]))
    assert tally["started"] == 1
    assert any("DAMAGED" in kind for kind in tally.kinds)


def test_records_that_are_lost_or_altered_are_found(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzzer itself: it must distinguish a damaged index from a missing record."""
    [_killed, stopped] = make_originals(scratch)
    stopped.written["plain", 0][3] = (b"k", b"another", 1)
    monkeypatch.setattr("testkit.fuzz.files.damage", lambda *_arguments: [("none", "x")])
    with pytest.raises(Failed, match="plain-0 serves"):
        Case(stopped, scratch / "case", "1").run(Tally())
    stopped.written["plain", 0][10_000] = (b"k", b"never", 1)
    del stopped.written["plain", 0][3]
    with pytest.raises(Failed, match="plain-0"):
        Case(stopped, scratch / "case", "1").run(Tally())


def test_there_is_every_kind_of_damage() -> None:
    assert len(set(DAMAGES)) >= 10
