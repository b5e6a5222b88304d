"""`ottla log verify` finds each kind of damage in real files, and says what to do."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ottla
from ottla.cli.verify import WORDS, ReadOnlyFiles, in_use, worded
from ottla.log.log_check import Expected, verify_partition
from ottla.records.batch import HEADER, LENGTH_OVERHEAD, PREFIX, crc_of
from ottla.server.data_dir_check import verify
from tests.kafka_fixture import SERIES, kafka_directory

LOG, INDEX, TIMES = ".log", ".index", ".timeindex"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory of a stopped broker, with a partition of a few segments."""
    data_dir = tmp_path_factory.mktemp("written") / "data"
    with ottla.Broker(str(data_dir), config={"log.index.interval.bytes": "200"}) as broker:
        with ottla.Admin(broker.address) as admin:
            admin.create_topic("t", 2, 1, {"segment.bytes": "2000"})
            admin.create_topic("kept", 1, 1, {"cleanup.policy": "compact"})
        for number in range(6):
            with ottla.Producer(broker.address) as producer:
                for _ in range(8):
                    producer.send("t", b"value %d" % number * 30, b"key", partition=0)
                    producer.flush()
    return data_dir


@pytest.fixture
def data(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "data")
    return tmp_path / "data"


def segments(data: Path, suffix: str = LOG) -> list[Path]:
    return sorted((data / "t-0").glob(f"*{suffix}"))


def found(*paths: Path, deep: bool = False, changing: bool = False) -> dict[str, Any]:
    """The kinds of findings, each with the report of its first one."""
    reports: dict[str, Any] = {}
    for finding in verify(ReadOnlyFiles(), [str(path) for path in paths], changing=changing, deep=deep):
        reports.setdefault(finding.kind, worded(finding))
    return reports


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def batches(path: Path) -> list[bytes]:
    content, at, cut = path.read_bytes(), 0, []
    while at < len(content):
        size = HEADER.unpack_from(content, at)[1] + LENGTH_OVERHEAD
        cut.append(content[at : at + size])
        at += size
    return cut


def test_a_sound_directory_is_0(run_anywhere: Any, data: Path) -> None:
    ended = run_anywhere("log", "verify", str(data), "--deep")
    assert (ended.code, ended.out) == (0, ""), ended.out
    assert "no damage found" in ended.err


@pytest.mark.parametrize("series", SERIES)
def test_a_directory_of_kafkas_is_sound(tmp_path: Path, series: str) -> None:
    assert set(found(kafka_directory(series, tmp_path), deep=True)) == {"folder-delete"}


def test_damage_is_1_with_place_meaning_and_advice(run_anywhere: Any, data: Path) -> None:
    log = segments(data)[0]
    flip(log, len(batches(log)[0]) + 80)
    ended = run_anywhere("log", "verify", str(data))
    assert ended.code == 1
    assert f"LOSS  {log}, byte {len(batches(log)[0])}, offset 1" in ended.out
    assert "means: " in ended.out and "do:    restore" in ended.out
    ended = run_anywhere("log", "verify", str(data / "t-0"), "--json")
    [row] = ended.json_lines
    assert (ended.code, row["kind"], row["level"], row["offset"]) == (1, "bad-crc", "loss", 1)


def test_usage_and_missing_directories(run_anywhere: Any, data: Path) -> None:
    assert run_anywhere("log", "verify").code == 2
    assert run_anywhere("log", "verify", str(data / "meta.properties")).code == 2
    assert run_anywhere("log", "verify", str(data / "nowhere")).code == 4


def _torn(data: Path) -> None:
    log = segments(data)[-1]
    log.write_bytes(log.read_bytes()[:-5])


def _torn_after_a_crash(data: Path) -> None:
    (data / ".kafka_cleanshutdown").unlink()
    log = segments(data)[-1]
    log.write_bytes(log.read_bytes() + batches(log)[-1][:30])


def _zeros(data: Path) -> None:
    log = segments(data)[0]
    *whole, last = batches(log)
    log.write_bytes(b"".join(whole) + bytes(len(last)))


def _magic(data: Path) -> None:
    log = segments(data)[0]
    flip(log, len(batches(log)[0]) + 16)


def _old_format(data: Path) -> None:
    log = segments(data)[0]
    content = bytearray(log.read_bytes())
    content[16] = 1
    log.write_bytes(content)


def _out_of_order(data: Path) -> None:
    log = segments(data)[-1]
    log.write_bytes(log.read_bytes() + batches(log)[0])


def _foreign_base(data: Path) -> None:
    shutil.copy(segments(data)[0], segments(data)[1])


def _gap_between(data: Path) -> None:
    for suffix in (LOG, INDEX, TIMES):
        segments(data, suffix)[1].unlink()


def _gap_within(data: Path) -> None:
    log = segments(data)[-1]
    parts = batches(log)
    log.write_bytes(b"".join(parts[:1] + parts[2:]))


def _overlap(data: Path) -> None:
    log = segments(data)[0]
    last = bytearray(batches(log)[-1])
    base, length, epoch = PREFIX.unpack_from(last)
    PREFIX.pack_into(last, 0, base + 1, length, epoch)
    log.write_bytes(log.read_bytes() + last)


def _undecodable(data: Path) -> None:
    log = segments(data)[0]
    first = bytearray(batches(log)[0])
    first[61] ^= 0x7F  # the length of the first record
    struct.pack_into(">I", first, 17, crc_of(first))
    log.write_bytes(bytes(first) + log.read_bytes()[len(first) :])


def _checkpoint_beyond(name: str) -> Callable[[Path], None]:
    def damage(data: Path) -> None:
        (data / name).write_text("0\n1\nt 0 9999\n")

    return damage


def _index_missing(data: Path) -> None:
    segments(data, INDEX)[0].unlink()


def _index_odd(data: Path) -> None:
    index = segments(data, INDEX)[0]
    index.write_bytes(index.read_bytes() + b"abc")


def _index_order(data: Path) -> None:
    index = segments(data, INDEX)[0]
    content = index.read_bytes()
    index.write_bytes(content[8:16] + content[:8] + content[16:])


def _index_beyond(data: Path) -> None:
    index = segments(data, INDEX)[0]
    index.write_bytes(index.read_bytes() + struct.pack(">ii", 5000, 1 << 20))


def _index_of_another(data: Path) -> None:
    index = segments(data, INDEX)[0]
    content = bytearray(index.read_bytes())
    struct.pack_into(">i", content, 4, struct.unpack_from(">i", content, 4)[0] + 7)
    index.write_bytes(content)


def _index_without_log(data: Path) -> None:
    shutil.copy(segments(data, INDEX)[0], data / "t-0" / "00000000000000009999.index")


def _time_wrong(data: Path) -> None:
    times = segments(data, TIMES)[0]
    content = bytearray(times.read_bytes())
    struct.pack_into(">q", content, 0, 5)
    times.write_bytes(content)


def _time_beyond(data: Path) -> None:
    times = segments(data, TIMES)[0]
    times.write_bytes(times.read_bytes() + struct.pack(">qi", 1 << 60, 9000))


def _txn_index(data: Path) -> None:
    segments(data)[0].with_suffix(".txnindex").write_bytes(struct.pack(">hqqqq", 0, 1, 0, 9000, 0))


def _snapshot(data: Path) -> None:
    flip(segments(data, ".snapshot")[-1], 12)


def _snapshot_beyond(data: Path) -> None:
    shutil.copy(segments(data, ".snapshot")[-1], data / "t-0" / "00000000000000009999.snapshot")


def _file(name: str, text: str) -> Callable[[Path], None]:
    def damage(data: Path) -> None:
        (data / name).write_text(text)

    return damage


def _epochs_missing(data: Path) -> None:
    (data / "t-0" / "leader-epoch-checkpoint").write_text("0\n0\n")


def _foreign_folder(data: Path) -> None:
    shutil.copy(data / "kept-0" / "partition.metadata", data / "t-0" / "partition.metadata")


def _no_segments(data: Path) -> None:
    shutil.rmtree(data / "t-1")
    (data / "t-1").mkdir()


def _renamed(suffix: str) -> Callable[[Path], None]:
    def damage(data: Path) -> None:
        shutil.copytree(data / "t-1", data / f"t-1.{'a' * 32}-{suffix}")

    return damage


def _stray_folder(data: Path) -> None:
    shutil.copytree(data / "t-1", data / "other-0")


def _partition_missing(data: Path) -> None:
    shutil.rmtree(data / "t-0")


def _journal_damaged(data: Path) -> None:
    flip(data / "metadata.journal", 12)


def _journal_torn(data: Path) -> None:
    journal = data / "metadata.journal"
    journal.write_bytes(journal.read_bytes() + b"\0\0\1\0torn")


def _journal_missing(data: Path) -> None:
    (data / "metadata.journal").unlink()


def _properties_missing(data: Path) -> None:
    (data / "meta.properties").unlink()


DAMAGE: list[tuple[str, Callable[[Path], None]]] = [
    ("torn", _torn),
    ("torn-tail", _torn_after_a_crash),
    ("zeros", _zeros),
    ("not-a-batch", _magic),
    ("old-format", _old_format),
    ("out-of-order", _out_of_order),
    ("foreign-base", _foreign_base),
    ("gap", _gap_between),
    ("gap", _gap_within),
    ("overlap", _overlap),
    ("records", _undecodable),
    ("recovery-point-beyond", _checkpoint_beyond("recovery-point-offset-checkpoint")),
    ("watermark-beyond", _checkpoint_beyond("replication-offset-checkpoint")),
    ("start-beyond", _checkpoint_beyond("log-start-offset-checkpoint")),
    ("index-missing", _index_missing),
    ("index-odd", _index_odd),
    ("index-order", _index_order),
    ("index-beyond", _index_beyond),
    ("index-wrong", _index_of_another),
    ("index-without-log", _index_without_log),
    ("time-wrong", _time_wrong),
    ("index-beyond", _time_beyond),
    ("txn-index-wrong", _txn_index),
    ("snapshot-damaged", _snapshot),
    ("snapshot-beyond", _snapshot_beyond),
    ("epochs-damaged", _file("t-0/leader-epoch-checkpoint", "0\n2\n1 5\n0 3\n")),
    ("epochs-beyond", _file("t-0/leader-epoch-checkpoint", "0\n2\n0 0\n3 9999\n")),
    ("epochs-missing", _epochs_missing),
    ("partition-metadata-damaged", _file("t-0/partition.metadata", "version: 0\n")),
    ("partition-metadata-foreign", _foreign_folder),
    ("no-segments", _no_segments),
    ("leftover", _file("t-0/00000000000000000000.log.cleaned", "x")),
    ("leftover", _file("t-0/00000000000000000000.log.swap", "x")),
    ("leftover", _file("meta.properties.0.tmp", "x")),
    ("stray-file", _file("t-0/notes.txt", "x")),
    ("stray-file", _file("notes.txt", "x")),
    ("stray-folder", _stray_folder),
    ("folder-delete", _renamed("delete")),
    ("folder-stray", _renamed("stray")),
    ("folder-future", _renamed("future")),
    ("partition-missing", _partition_missing),
    ("checkpoint-damaged", _file("recovery-point-offset-checkpoint", "0\n7\nt 0 3\n")),
    ("properties-missing", _properties_missing),
    ("properties-damaged", _file("meta.properties", "node.id=1\n")),
    ("properties-foreign", _file("meta.properties", "version=1\ncluster.id=other\nnode.id=1\n")),
    ("journal-missing", _journal_missing),
    ("journal-damaged", _journal_damaged),
    ("journal-torn", _journal_torn),
]


@pytest.mark.parametrize(
    ("kind", "damage"), DAMAGE, ids=[f"{kind}{at}" for at, (kind, _) in enumerate(DAMAGE)]
)
def test_each_kind_of_damage(data: Path, kind: str, damage: Callable[[Path], None]) -> None:
    damage(data)
    reports = found(data, deep=True)
    assert kind in reports, reports
    report = reports[kind]
    assert "{" not in report.what + report.means + report.do
    assert "None" not in report.what + report.means + report.do


#: These need more than one directory, or more than a few KB.
ELSEWHERE = {"bad-crc", "gap-unknown", "duplicate-partition", "index-short"}


def test_every_kind_that_has_words_has_a_test() -> None:
    assert {kind for kind, _damage in DAMAGE} | ELSEWHERE == set(WORDS)


def test_a_compacted_topic_may_have_gaps_and_an_unknown_one_gets_a_note(data: Path) -> None:
    _gap_within(data)
    folder = str(data / "t-0")
    assert {f.kind for f in verify_partition(ReadOnlyFiles(), folder, Expected())} >= {"gap-unknown"}
    kinds = {f.kind for f in verify_partition(ReadOnlyFiles(), folder, Expected(compacted=True))}
    assert not any(kind.startswith("gap") for kind in kinds)


def test_a_partition_in_two_directories(data: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    shutil.copy(data / "meta.properties", second)
    shutil.copytree(data / "t-0", second / "t-0")
    assert set(found(data, second)) == {"duplicate-partition"}
    (second / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\n")
    assert "properties-foreign" in found(data, second)


def test_a_short_index(data: Path) -> None:
    log = segments(data)[0]
    parts, big = batches(log), 17 << 20
    wide = bytearray(parts[-1] + bytes(big - len(parts[-1])))
    base, _length, epoch = PREFIX.unpack_from(wide)
    PREFIX.pack_into(wide, 0, base, big - LENGTH_OVERHEAD, epoch)
    struct.pack_into(">I", wide, 17, crc_of(wide))
    log.write_bytes(b"".join(parts[:-1]) + wide)
    index = segments(data, INDEX)[0]
    index.write_bytes(index.read_bytes()[:8])
    assert set(found(data)) == {"index-short"}


def test_a_changing_tail_of_a_running_broker_is_no_damage(run_anywhere: Any, data: Path) -> None:
    with ottla.Broker(str(data)) as broker:
        assert in_use(str(data))
        with ottla.Producer(broker.address) as producer:
            producer.send("t", b"new", partition=0)
        ended = run_anywhere("log", "verify", str(data), "--json")
        assert ended.code == 0, ended.out
        assert "a broker is running" in ended.err
    assert not in_use(str(data))
    log = segments(data)[-1]
    log.write_bytes(log.read_bytes() + b"\0\0\0\0\0\0\0\xff\0\0\1")
    assert found(data, changing=True) == {}
    assert set(found(data)) == {"torn"}


def test_nothing_is_written(data: Path) -> None:
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    found(data, deep=True)
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


def test_the_dump_of_metadata(run_anywhere: Any, data: Path, tmp_path: Path) -> None:
    rows = run_anywhere("log", "dump", str(data / "metadata.journal"), "--json").json_lines
    assert [row["name"] for row in rows if row["kind"] == "Topic"] == ["t", "kept"]
    _journal_damaged(data)
    ended = run_anywhere("log", "dump", str(data / "metadata.journal"))
    assert ended.code == 1 and "with whole entries after them" in ended.out
    kafka = kafka_directory("4", tmp_path / "kafka")
    ended = run_anywhere("log", "dump", str(kafka), "--json")
    assert ended.code == 0, ended.err
    names = {Path(row["file"]).name for row in ended.json_lines}
    assert {"quorum-state", "bootstrap.checkpoint", "meta.properties", "partition.metadata"} <= names
    said = [
        record["metadata"]
        for row in ended.json_lines
        for record in row.get("records", ())
        if "metadata" in record
    ]
    assert {"LeaderChange", "Topic", "Partition", "RemoveTopic", "Config"} <= {each["type"] for each in said}
    assert json.loads(json.dumps(said)) == said
    text = run_anywhere("log", "dump", str(kafka / "__cluster_metadata-0")).out
    assert "Topic  version 0  name orders" in text
