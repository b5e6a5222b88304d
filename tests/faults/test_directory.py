"""Whose directory it is, and what else lies in it: nothing of anybody's is taken for ours, and nothing is deleted that is not."""

import shutil
import socket
from pathlib import Path

import pytest

from tests.crash.broker_process import DELETE_TOPICS, BrokerProcess, Wire
from tests.faults.broken import Ledger, told


def free_port_now() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def test_a_second_process_is_refused_and_the_first_does_not_notice(tmp_path: Path, free_port: int) -> None:
    ledger = Ledger("orders")
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, free_port) as first, Wire(first.address) as wire:
        wire.create("orders")
        before = {path: path.stat().st_mtime_ns for path in data_dir.rglob("*")}
        second = BrokerProcess(data_dir, free_port_now())
        for _ in range(2):
            second.spawn()
            assert second.end() == 1
            assert str(data_dir) in told(second, "another broker is running")
        assert {path: path.stat().st_mtime_ns for path in data_dir.rglob("*")} == before, (
            "it touched something"
        )
        ledger.produce(wire, b"0")
        first.kill()
        # A lock that a dead process held is no lock: the second takes over at once.
        with second, Wire(second.address) as taken_over:
            assert ledger.check(taken_over) == [b"0"]
            ledger.produce(taken_over, b"1")
            first.spawn()
            assert first.end() == 1
            told(first, "another broker is running")


@pytest.mark.parametrize("line", ["cluster.id=AAAAAAAAAAAAAAAAAAAAAA", "node.id=7"])
def test_a_directory_of_another_broker_is_refused(line: str, tmp_path: Path, free_port: int) -> None:
    ledger = Ledger("orders")
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, free_port) as broker:
        with Wire(broker.address) as wire:
            wire.create("orders")
            ledger.produce(wire, b"kept")
        assert broker.stop() == 0
        properties = data_dir / "meta.properties"
        ours = properties.read_text()
        name = line.partition("=")[0]
        lines = [line if old.startswith(name) else old for old in ours.splitlines()]
        properties.write_text("\n".join(lines) + "\n")
        broker.spawn()
        assert broker.end() == 1
        said = told(broker, "belongs to")
        assert str(data_dir) in said and name in said and line.partition("=")[2] in said
        properties.write_text(ours)
        broker.start()
        with Wire(broker.address) as wire:
            assert ledger.check(wire) == [b"kept"]
        # Without the file it is made anew: the metadata knows whose directory it is.
        broker.kill()
        properties.unlink()
        broker.start()
        with Wire(broker.address) as wire:
            assert ledger.check(wire) == [b"kept"]


def test_what_does_not_belong_is_left_alone(tmp_path: Path, free_port: int) -> None:
    ledger = Ledger("orders")
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, free_port) as broker:
        with Wire(broker.address) as wire:
            wire.create("orders")
            ledger.produce(wire, b"kept")
        assert broker.stop() == 0
        (data_dir / "README").write_text("notes")
        (data_dir / "lost+found").mkdir()
        (data_dir / "old stuff").mkdir()
        (data_dir / "old stuff" / "orders-0").mkdir()
        (data_dir / "link").symlink_to(tmp_path)
        (data_dir / "orders-0" / "notes.txt").write_text("mine")
        (data_dir / "orders-0" / "00000000000000000000.log.bak").write_text("mine")
        (data_dir / "orders-0" / "1.log").write_text("no segment of ours")
        # Indexes without their log, and what an interrupted run leaves, are ours to remove.
        (data_dir / "orders-0" / "00000000000000000777.index").write_bytes(bytes(8))
        (data_dir / "orders-0" / "00000000000000000777.log.deleted").write_bytes(bytes(8))
        broker.start()
        with Wire(broker.address) as wire:
            assert ledger.check(wire) == [b"kept"]
        assert broker.stop() == 0
        names = {path.name for path in data_dir.iterdir()} | {
            path.name for path in (data_dir / "orders-0").iterdir()
        }
        assert {"README", "lost+found", "old stuff", "link", "notes.txt", "1.log"} <= names
        assert "00000000000000000000.log.bak" in names
        assert not any("777" in name for name in names)


def test_what_bears_the_name_of_a_partition_is_set_aside(tmp_path: Path, free_port: int) -> None:
    """A copy somebody made, a folder and a file of his, a partition of another cluster: nothing of it is deleted or served."""
    ledger = Ledger("orders")
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, free_port) as broker:
        with Wire(broker.address) as wire:
            wire.create("orders")
            ledger.produce(wire, b"kept")
            wire.create("foreign")
            Ledger("foreign").produce(wire, b"of another cluster")
        assert broker.stop() == 0
        shutil.copytree(data_dir / "foreign-0", tmp_path / "foreign-0")
        broker.start()
        with Wire(broker.address) as wire:
            [row] = wire.ask(DELETE_TOPICS, 4, topic_names=["foreign"], timeout=30_000).responses
            assert row.error_code.value == 0
        assert broker.stop() == 0
        metadata = tmp_path / "foreign-0" / "partition.metadata"
        metadata.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
        shutil.copytree(tmp_path / "foreign-0", data_dir / "foreign-0")
        shutil.copytree(data_dir / "orders-0", data_dir / "orders-1")
        (data_dir / "notes-2024").mkdir()
        (data_dir / "notes-2024" / "monday.txt").write_text("mine")
        (data_dir / "report-2").write_text("mine too")
        broker.start()
        told(broker, "no topic owns")
        with Wire(broker.address) as wire:
            assert ledger.check(wire) == [b"kept"]
            # New topics of these names begin empty.
            for topic in ("foreign", "notes", "report"):
                wire.create(topic, partitions=3)
                assert wire.end_offset(topic, 0) == wire.end_offset(topic, 2) == 0
        aside = {path.name.partition(".")[0]: path for path in data_dir.glob("*-stray")}
        assert sorted(aside) == ["foreign-0", "notes-2024", "orders-1", "report-2"]
        assert (aside["notes-2024"] / "monday.txt").read_text() == "mine"
        assert aside["report-2"].read_text() == "mine too"
        for name in ("foreign-0", "orders-1"):
            log = (aside[name] / "00000000000000000000.log").read_bytes()
            assert log.count(b"kept") + log.count(b"of another cluster") == 1
        # Told once: the next start takes them for what they are.
        assert broker.stop() == 0
        broker.start()
        assert "no topic owns" not in broker.words


def test_a_topic_that_was_deleted_as_the_broker_died_stays_deleted(tmp_path: Path, free_port: int) -> None:
    """The same folder as above, but the metadata remembers whose it was."""
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, free_port) as broker:
        with Wire(broker.address) as wire:
            wire.create("gone")
            Ledger("gone").produce(wire, b"gone")
            shutil.copytree(data_dir / "gone-0", tmp_path / "gone-0")
            wire.ask(DELETE_TOPICS, 4, topic_names=["gone"], timeout=30_000)
        broker.kill()
        shutil.copytree(tmp_path / "gone-0", data_dir / "gone-0", dirs_exist_ok=True)
        broker.start()
        assert not list(data_dir.glob("gone-*"))
        assert "stray" not in broker.words


def test_a_partition_half_made(tmp_path: Path, free_port: int) -> None:
    """A folder without files, one with some of them, and none at all, of topics that are there: each begins empty."""
    data_dir = tmp_path / "data"
    topics = ("nothing", "bare", "named", "indexed")
    with BrokerProcess(data_dir, free_port) as broker:
        with Wire(broker.address) as wire:
            for topic in topics:
                wire.create(topic)
                assert wire.end_offset(topic) == 0
        broker.kill()
        shutil.rmtree(data_dir / "nothing-0")
        for path in (data_dir / "bare-0").iterdir():
            path.unlink()
        for topic in ("named", "indexed"):
            (data_dir / f"{topic}-0" / "00000000000000000000.log").unlink()
        for path in (data_dir / "named-0").glob("0*"):
            path.unlink()
        broker.start()
        ledgers = [Ledger(topic) for topic in topics]
        for _ in range(2):
            with Wire(broker.address) as wire:
                for ledger in ledgers:
                    ledger.produce(wire, b"kept")
                    ledger.check(wire)
            broker.kill()
            broker.start()


def test_a_partition_behind_a_symbolic_link(tmp_path: Path, free_port: int) -> None:
    ledger = Ledger("orders")
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, free_port) as broker:
        with Wire(broker.address) as wire:
            wire.create("orders")
            ledger.produce(wire, b"kept")
        assert broker.stop() == 0
        shutil.move(data_dir / "orders-0", tmp_path / "elsewhere")
        (data_dir / "orders-0").symlink_to(tmp_path / "elsewhere")
        broker.start()
        with Wire(broker.address) as wire:
            ledger.produce(wire, b"more")
            assert ledger.check(wire) == [b"kept", b"more"]


def test_a_data_directory_that_is_a_file(tmp_path: Path, free_port: int) -> None:
    (tmp_path / "data").write_text("mine")
    broker = BrokerProcess(tmp_path / "data", free_port).spawn()
    assert broker.end() == 1
    assert str(tmp_path / "data") in told(broker, "cannot use the metadata directory")
    assert (tmp_path / "data").read_text() == "mine"
