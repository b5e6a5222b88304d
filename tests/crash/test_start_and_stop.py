import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from ottla.ports.disk import File
from ottla.runtime.disk import SystemDisk
from ottla.server import node
from ottla.server.embedded import Broker
from tests.crash.broker_process import PRODUCE, BrokerProcess, Wire, batch_of, producing

CLEAN_MARK = ".kafka_cleanshutdown"


def other_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class CountingDisk(SystemDisk):
    """Counts the bytes that are read from logs."""

    log_bytes_read = 0

    def read(self, file: File, position: int, size: int) -> bytes:
        data = super().read(file, position, size)
        if file.path.endswith(".log"):
            CountingDisk.log_bytes_read += len(data)
        return data


def write_some(broker: BrokerProcess, *, batches: int = 256) -> None:
    """4 MiB in one partition, all acknowledged."""
    with Wire(broker.address) as wire:
        wire.create("kept")
        for number in range(batches):
            wire.produce("kept", batch_of(b"%d" % number, bytes(16_000)))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_and_the_next_start_reads_nothing_again(
    number: signal.Signals, tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, free_port) as process:
        write_some(process)
        assert not (data_dir / CLEAN_MARK).exists()
        process.signal(number)
        assert process.end() == 0
        assert process.said[-1] == "stopped cleanly"
    assert (data_dir / CLEAN_MARK).is_file()
    assert not (data_dir / "ottla.pid").exists()
    monkeypatch.setattr(node, "SystemDisk", CountingDisk)
    monkeypatch.setattr(CountingDisk, "log_bytes_read", 0)
    said: list[str] = []
    with Broker(str(data_dir), say=said.append) as broker:
        # The header of a first or last batch, at most: not the log.
        assert CountingDisk.log_bytes_read < 64 * 1024
        assert not (data_dir / CLEAN_MARK).exists(), "a crash from now on must not look like a clean stop"
        with Wire(broker.address) as wire:
            assert wire.end_offset("kept") == 512
    assert [line for line in said if "recovered" in line] == []


def test_the_counting_disk_sees_a_recovery(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the test above relies on: after kill -9 the unflushed tail is read, and the broker says so."""
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, free_port, {"log.flush.policy": "page-cache"}) as process:
        write_some(process, batches=16)
        process.kill()
    monkeypatch.setattr(node, "SystemDisk", CountingDisk)
    monkeypatch.setattr(CountingDisk, "log_bytes_read", 0)
    said: list[str] = []
    with Broker(str(data_dir), say=said.append) as broker:
        assert CountingDisk.log_bytes_read >= 16 * 16_000
        assert any("recovered after an unclean shutdown" in line for line in said)
        with Wire(broker.address) as wire:
            assert wire.end_offset("kept") == 32


def test_what_was_acknowledged_is_visible_to_the_first_who_asks_after_kill_9(
    tmp_path: Path, free_port: int
) -> None:
    """Durable policy: recovery must have synced what it read again before the broker serves."""
    with BrokerProcess(tmp_path / "data", free_port, {"log.flush.policy": "durable"}) as process:
        write_some(process, batches=64)
        process.kill()
        process.start()
        with Wire(process.address) as wire:
            assert wire.end_offset("kept") == 128


def test_a_signal_during_a_produce_answers_or_closes_and_keeps_what_was_answered(
    tmp_path: Path, free_port: int
) -> None:
    with BrokerProcess(tmp_path / "data", free_port) as process:
        with Wire(process.address) as wire:
            wire.create("kept")
            answered = 0
            for number in range(50):
                wire.send(PRODUCE, 9, **producing("kept", batch_of(b"%d" % number)))
            for _ in range(10):
                wire.receive()
                answered += 1
            process.signal(signal.SIGTERM)
            with suppress(ConnectionError):
                while True:
                    wire.receive()
                    answered += 1
                    wire.send(PRODUCE, 9, **producing("kept", batch_of(b"more")))
        assert process.end() == 0
        process.start()
        with Wire(process.address) as wire:
            end = wire.end_offset("kept")
            assert end >= answered
            values = [record.value for record in wire.fetch("kept", 0)]
            assert values[:50] == [b"%d" % number for number in range(50)][:end]


def test_a_second_broker_on_the_same_directory_is_refused(tmp_path: Path, free_port: int) -> None:
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, free_port) as first:
        write_some(first, batches=1)
        second = BrokerProcess(data_dir, other_port()).spawn()
        assert second.end() not in (0, None)
        assert f"another broker is running on {data_dir}" in second.words
        assert "--data-dir" in second.words, "it says what to do"
        assert "Traceback" not in second.words
        with Wire(first.address) as wire:
            assert wire.produce("kept", batch_of(b"still serving")) == 2
        # A lock held by a dead process is no lock.
        first.kill()
        first.start()


def test_a_taken_port_is_said_plainly(tmp_path: Path, free_port: int) -> None:
    with BrokerProcess(tmp_path / "one", free_port):
        second = BrokerProcess(tmp_path / "two", free_port).spawn()
        assert second.end() not in (0, None)
        assert f"127.0.0.1:{free_port}" in second.words and "--listen" in second.words
        assert "Traceback" not in second.words


def kill_at_every_step(broker: BrokerProcess, steps_max: int) -> int:
    """Start again and again, dying one step later each time, until a start comes through; how many died."""
    for died in range(steps_max):
        broker.spawn(kill_at=died + 1)
        try:
            broker.wait_for("listens on")
        except AssertionError:
            assert broker.end() == -signal.SIGKILL, broker.words
        else:
            # It would still die at its next change of a file: one without that fuse takes over.
            broker.kill()
            broker.start()
            return died
    raise AssertionError(f"no start came through in {steps_max} tries")


def test_kill_9_at_every_step_of_the_first_start(tmp_path: Path, free_port: int) -> None:
    broker = BrokerProcess(tmp_path / "data", free_port)
    try:
        assert kill_at_every_step(broker, 100) >= 5
        with Wire(broker.address) as wire:
            wire.create("first")
            assert wire.produce("first", batch_of(b"1")) == 0
    finally:
        broker.kill()


def test_kill_9_at_every_step_of_a_recovery(tmp_path: Path, free_port: int) -> None:
    """A start after a crash has work to do: a torn tail to cut, a half-deleted topic to remove, indexes to make anew."""
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, free_port, {"log.segment.bytes": "20000"}) as broker:
        write_some(broker, batches=2)
        with Wire(broker.address) as wire:
            wire.create("gone")
            wire.produce("gone", batch_of(b"1"))
        broker.kill()
    (data_dir / "gone-0").rename(data_dir / f"gone-0.{'0' * 32}-delete")
    newest = max(data_dir.glob("kept-0/*.log"))
    with newest.open("ab") as log:
        log.write(batch_of(bytes(5_000))[:3_000])
    with (data_dir / "metadata.journal").open("ab") as journal:
        journal.write(b"\0\0\1\0torn")
    try:
        died = kill_at_every_step(broker, 100)
        assert died >= 5
        print(f"a recovery of {died} steps")
        with Wire(broker.address) as wire:
            assert wire.end_offset("kept") == 4
            assert [wire.fetch("kept", offset)[0].value for offset in (0, 2)] == [b"0", b"1"]
            assert wire.produce("kept", batch_of(b"after")) == 4
    finally:
        broker.kill()
