"""Apache's DumpLogSegments reads the files of a partition: logs, both indexes, the producer snapshots.

A Java producer writes them through a broker; they are read while the broker has them open, and again after it was killed
and has recovered them.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.process import free_port
from tests.crash.broker_process import BrokerProcess
from tests.interop.programs import Java, Program
from tests.interop.test_java_client import TIME, create, expected

CODECS = ["none", "lz4"]
COUNT = 1_500

#: What the tool says of a file that it does not like; it ends with 0 all the same.
TROUBLE = re.compile(
    r"mismatch|out of order|non-consecutive|log offset:|isvalid: false|invalid|corrupt|exception|expected",
    re.IGNORECASE,
)
BATCH = re.compile(
    r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (\d+) lastSequence: (\d+) producerId: (\d+)",
    re.MULTILINE,
)
RECORD = re.compile(
    r"^\| offset: (\d+) CreateTime: (\d+) keySize: (-?\d+) valueSize: (-?\d+) sequence: \d+ headerKeys: \[(.*?)\]"
    r"(?: key: (\S+))?(?: payload: (\S+))?$",
    re.MULTILINE,
)


@pytest.fixture(scope="module", params=["running", "recovered"])
def partition(
    request: pytest.FixtureRequest, java: Java, java_classes: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The folder of a partition of many segments, with an index entry every few batches."""
    with BrokerProcess(tmp_path_factory.mktemp("dump") / "data", free_port()) as broker:
        create(broker, "dumped", segment_bytes="40000", index_interval_bytes="1024")
        client = Program(java.command(java_classes, "ClientTour"))
        for codec in CODECS:
            assert client.see(broker.address, "produce", "dumped", codec, str(COUNT))["failed"] == []
        if request.param == "recovered":
            broker.kill()
            broker.start()
        yield broker.data_dir / "dumped-0"


def dump(java: Java, files: list[Path], *options: str) -> str:
    assert files
    said = java.tool("DumpLogSegments", *options, "--files", ",".join(map(str, files)))
    assert said.out.count("Dumping ") == len(files)
    troubles = [line for line in said.lines if TROUBLE.search(line) and not line.startswith("| ")]
    # The tool counts from -1 in each file, and so finds a gap before the first record of any but the first, Kafka's
    # own included.
    gaps = re.sub(r"Non-consecutive offsets in .*?0*(\d+)\.log\n  -1 is followed by \1\n", "", said.errors)
    assert (troubles, gaps) == ([], "")
    return said.out


def check_sanity(java: Java, indexes: list[Path]) -> None:
    said = dump(java, indexes, "--index-sanity-check")
    sound = re.findall(r"^(\S+) (?:passed sanity check|is empty)\.$", said, re.MULTILINE)
    assert sorted(sound) == [str(index) for index in indexes]
    assert said.count("is empty") < len(indexes)
    dump(java, indexes, "--verify-index-only")


def files(partition: Path, kind: str) -> list[Path]:
    return sorted(partition.glob(f"*.{kind}"))


def test_logs(java: Java, partition: Path) -> None:
    said = dump(java, files(partition, "log"), "--deep-iteration", "--print-data-log")
    assert len(files(partition, "log")) > 2
    batches = [tuple(map(int, found)) for found in BATCH.findall(said)]
    assert [base for base, *_ in batches] == [0] + [last + 1 for _, last, *_ in batches[:-1]]
    assert len({producer for *_, producer in batches}) == len(CODECS)
    assert set(re.findall(r"compresscodec: (\w+)", said)) == set(CODECS)

    def row(number: int) -> tuple[Any, ...]:
        seen = expected(number % COUNT, 1)
        sizes = [-1 if seen[part] is None else len(seen[part]) for part in ("key", "value")]
        names = ",".join(name for name, _value in seen["headers"])
        texts = [seen[part] or "" for part in ("key", "value")]
        return (str(number), str(seen["time"]), *map(str, sizes), names, *texts)

    assert RECORD.findall(said) == [row(number) for number in range(len(CODECS) * COUNT)]


def test_offset_indexes(java: Java, partition: Path) -> None:
    indexes = files(partition, "index")
    said = dump(java, indexes)
    entries = re.findall(r"^offset: (\d+) position: (\d+)", said, re.MULTILINE)
    assert len(entries) > len(indexes)
    check_sanity(java, indexes)


def test_time_indexes(java: Java, partition: Path) -> None:
    indexes = files(partition, "timeindex")
    said = dump(java, indexes)
    entries = [
        tuple(map(int, found)) for found in re.findall(r"^timestamp: (\d+) offset: (\d+)", said, re.MULTILINE)
    ]
    assert len(entries) > len(indexes)
    # A record's time tells its number; the second half of them has the times of the first.
    assert all(time - TIME in (offset, offset - COUNT) for time, offset in entries if time > 0)
    check_sanity(java, indexes)


def test_producer_snapshots(java: Java, partition: Path) -> None:
    snapshots = files(partition, "snapshot")
    said = dump(java, snapshots[-1:])
    rows = re.findall(
        r"producerId: (\d+) producerEpoch: (\d+) .*?lastSequence: (\d+) lastOffset: (\d+)", said
    )
    last = {
        int(producer): (int(epoch), int(sequence), int(offset)) for producer, epoch, sequence, offset in rows
    }
    end = int(snapshots[-1].stem)
    # A producer numbers its records from zero, and the second one began where the first had ended.
    producers = sorted(last)
    assert last[producers[0]] == (0, min(end, COUNT) - 1, min(end, COUNT) - 1)
    if end > COUNT:
        assert last[producers[1]] == (0, end - COUNT - 1, end - 1)
