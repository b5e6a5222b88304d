"""The faults of tests/faults, as the kernel itself makes them: a file system that is full, read-only, or loses its power.

Each needs what not every machine allows; those that cannot be here are skipped with a listed reason.
"""

import fcntl
import os
import random
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.crash.broker_process import BrokerProcess, Wire
from tests.faults.broken import STORAGE_ERROR, Ledger, fetch_row, told, values_of

#: Linux: cut the file system off from its device at once, without writing what it holds (include/uapi/linux/fs.h).
FS_IOC_SHUTDOWN = 0x8004587D
WITHOUT_FLUSHING_THE_LOG = 2
POWER_CUTS = 8


@contextmanager
def mounted(where: Path, *arguments: str) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    where.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *arguments, str(where)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no loop device can be had" if "loop" in arguments else "mounting needs root")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


@contextmanager
def injected(broker: BrokerProcess, *faults: str) -> Iterator[None]:
    """System calls of the running broker fail."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not here")
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-p", str(broker.pid)]
    for fault in faults:
        command += ["-e", f"inject={fault}"]
    strace = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for thread in Path(f"/proc/{broker.pid}/task").iterdir():
            wait_for_tracer(thread, strace)
        yield
    finally:
        strace.terminate()
        strace.wait(30)


def wait_for_tracer(thread: Path, strace: "subprocess.Popen[bytes]") -> None:
    pause = threading.Event()
    for _ in range(2000):
        with suppress(FileNotFoundError):
            if f"TracerPid:\t{strace.pid}" in (thread / "status").read_text():
                return
        assert strace.poll() is None, "strace ended"
        pause.wait(0.005)
    raise AssertionError("strace does not trace")


def test_a_tmpfs_that_fills_up(tmp_path: Path, free_port: int) -> None:
    ledger = Ledger("orders")
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=16m", "tmpfs") as disk:
        filler = disk / "filler"
        filler.write_bytes(bytes(8 << 20))
        with BrokerProcess(disk / "data", free_port, {"log.segment.bytes": "1000000"}) as broker:
            with Wire(broker.address) as wire:
                wire.create("orders")
                for number in range(1000):
                    if ledger.try_to_produce(wire, b"%d" % number, os.urandom(50_000)):
                        break
                assert 20 < number < 999
                told(broker, "is out of disk space")
                ledger.check(wire)
                filler.unlink()
                ledger.produce(wire, b"after")
                ledger.check(wire)
                told(broker, "has disk space again")
            assert broker.stop() == 0
            broker.start()
            with Wire(broker.address) as wire:
                ledger.check(wire)


def test_a_file_system_that_is_mounted_read_only(tmp_path: Path, free_port: int) -> None:
    ledger = Ledger("orders")
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=16m", "tmpfs") as disk:
        broker = BrokerProcess(disk / "data", free_port)
        with broker, Wire(broker.address) as wire:
            wire.create("orders")
            ledger.produce(wire, b"kept")
            broker.stop()
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            broker.spawn()
            assert broker.end() == 1
            assert "Read-only file system" in told(broker, "cannot use the metadata directory")
            subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
            broker.start()
            with Wire(broker.address) as again:
                assert ledger.check(again) == [b"kept"]


@pytest.mark.parametrize(
    "faults",
    [("fdatasync:error=EIO",), ("pwritev:error=EIO", "pwritev2:error=EIO", "pwrite64:error=EIO")],
    ids=["sync", "write"],
)
def test_system_calls_that_fail(faults: tuple[str, ...], tmp_path: Path, free_port: int) -> None:
    ledger = Ledger("orders")
    with BrokerProcess(tmp_path / "data", free_port) as broker:
        with Wire(broker.address) as wire:
            wire.create("orders")
            ledger.produce(wire, b"kept")
            with injected(broker, *faults):
                assert ledger.try_to_produce(wire, b"refused") == STORAGE_ERROR
                told(broker, "is offline")
        assert broker.stop() == 1
        broker.start()
        with Wire(broker.address) as wire:
            ledger.check(wire)
            ledger.produce(wire, b"after")
            ledger.check(wire)


def test_a_sendfile_that_fails(tmp_path: Path, free_port: int) -> None:
    ledger = Ledger("orders")
    with BrokerProcess(tmp_path / "data", free_port) as broker:
        with Wire(broker.address) as wire:
            wire.create("orders")
            ledger.produce(wire, os.urandom(300_000))
            with injected(broker, "sendfile:error=EIO"):
                got = b""
                with suppress(ConnectionError):
                    _code, got = fetch_row(wire, "orders", 0)
                assert values_of(got) == []
                told(broker, "is offline")
        broker.stop()
        broker.start()
        with Wire(broker.address) as wire:
            ledger.check(wire)


def test_power_cuts(tmp_path: Path, free_port: int) -> None:
    """An ext4 that is cut off from its device in the middle of appends, again and again; what was acknowledged is there."""
    drawn = random.randrange(1 << 32)
    print(f"seed {drawn}")
    random_ = random.Random(drawn)
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("no loop device can be had")
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(256 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    ledgers = [Ledger("orders", number) for number in range(3)]
    broker = BrokerProcess(tmp_path / "disk" / "data", free_port, {"log.segment.bytes": "200000"})
    for cut in range(POWER_CUTS):
        with mounted(tmp_path / "disk", "-o", "loop", str(image)) as disk, broker:
            with Wire(broker.address) as wire:
                if cut == 0:
                    wire.create("orders", partitions=len(ledgers))
                for ledger in ledgers:
                    ledger.check(wire)
            timer = threading.Timer(random_.uniform(0.05, 0.6), lambda at=disk: shut_down(at))  # type: ignore[misc]
            timer.start()
            produce_until_it_fails(broker, ledgers, cut, random_)
            timer.join()
            broker.kill()
    with mounted(tmp_path / "disk", "-o", "loop", str(image)), broker, Wire(broker.address) as wire:
        kept = sum(len(ledger.check(wire)) for ledger in ledgers)
        broker.kill()
    print(f"{POWER_CUTS} power cuts, {kept} records")
    assert kept > POWER_CUTS


def produce_until_it_fails(
    broker: BrokerProcess, ledgers: list[Ledger], cut: int, random_: random.Random
) -> None:
    with suppress(ConnectionError), Wire(broker.address) as wire:
        for number in range(1_000_000):
            ledger = random_.choice(ledgers)
            value = b"%d/%d/%d " % (cut, ledger.partition, number) + random_.randbytes(
                random_.randrange(3000)
            )
            if ledger.try_to_produce(wire, value):
                return


def shut_down(disk: Path) -> None:
    fd = os.open(disk, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, FS_IOC_SHUTDOWN, struct.pack("I", WITHOUT_FLUSHING_THE_LOG))
    finally:
        os.close(fd)
