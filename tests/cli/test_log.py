import shutil
from pathlib import Path
from typing import Any

import pytest

import ottla


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory of a stopped broker, with a partition of a few segments."""
    data_dir = tmp_path_factory.mktemp("written") / "data"
    with ottla.Broker(str(data_dir), config={"log.index.interval.bytes": "200"}) as broker:
        with ottla.Admin(broker.address) as admin:
            admin.create_topic("t", 1, 1, {"segment.bytes": "2000"})
        for number in range(6):
            with ottla.Producer(broker.address) as producer:
                for _ in range(40):
                    producer.send("t", b"value %d" % number, b"key")
    return data_dir


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy of the partition's folder that a test may damage."""
    shutil.copytree(written, tmp_path / "data")
    return tmp_path / "data" / "t-0"


def test_a_whole_partition_reads_well(run_anywhere: Any, folder: Path) -> None:
    ended = run_anywhere("log", "dump", str(folder), "--json")
    assert ended.code == 0, ended.err
    rows = ended.json_lines
    offsets = [record["offset"] for row in rows for record in row.get("records", ())]
    assert offsets == list(range(240))
    kinds = {Path(row["file"]).suffix or Path(row["file"]).name for row in rows}
    assert {".log", ".index", ".timeindex", "leader-epoch-checkpoint", ".snapshot"} <= kinds
    assert len({row["file"] for row in rows if row["file"].endswith(".log")}) > 1


def test_every_index_entry_points_to_a_batch(run_anywhere: Any, folder: Path) -> None:
    for log in sorted(folder.glob("*.log")):
        batches = run_anywhere("log", "dump", str(log), "--no-records", "--json").json_lines
        places = {row["position"]: row for row in batches}
        for entry in run_anywhere("log", "dump", str(log.with_suffix(".index")), "--json").json_lines:
            row = places[entry["position"]]
            assert row["base_offset"] <= entry["offset"] <= row["last_offset"]


def test_text_for_people(run_anywhere: Any, folder: Path) -> None:
    text = run_anywhere("log", "dump", str(min(folder.glob("*.log")))).out
    assert "batch 0.." in text and "key key  value value 0" in text


def test_a_damaged_file_is_1_and_says_where(run_anywhere: Any, folder: Path) -> None:
    log = min(folder.glob("*.log"))
    data = bytearray(log.read_bytes())
    # A byte of the first batch that its CRC covers.
    data[70] ^= 0xFF
    log.write_bytes(data)
    ended = run_anywhere("log", "dump", str(log))
    assert ended.code == 1
    assert "PROBLEM: the CRC is" in ended.out


def test_the_files_of_the_data_directory(run_anywhere: Any, folder: Path) -> None:
    ended = run_anywhere("log", "dump", str(folder.parent), "--json")
    assert ended.code == 0, ended.err
    assert any(row.get("topic") == "t" and row.get("offset") == 240 for row in ended.json_lines)


def test_other_files_are_refused_and_missing_ones_are_4(run_anywhere: Any, tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("hello")
    assert run_anywhere("log", "dump", str(other)).code == 1
    assert run_anywhere("log", "dump", str(tmp_path / "no.log")).code == 4
