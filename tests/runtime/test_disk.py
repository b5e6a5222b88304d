import errno
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ottla.ports.disk import DiskError
from ottla.runtime import disk as module
from ottla.runtime.disk import SystemDisk


@pytest.fixture
def disk() -> Iterator[SystemDisk]:
    made = SystemDisk(files_max=4)
    yield made
    made.release()


def descriptors(path: Path) -> int:
    """The number of descriptors of this process in a directory."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith(str(path))
        except FileNotFoundError:
            continue
    return count


def test_bytes_are_read_at_the_position_where_they_were_written(disk: SystemDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)
    assert disk.write(file, 0, (b"abc", memoryview(b"def"), bytearray(b"gh"))) == 8
    assert disk.write(file, 2, (b"XY",)) == 4
    assert disk.read(file, 0, 100) == b"abXYefgh"
    assert disk.read(file, 3, 2) == b"Ye"
    assert disk.read(file, 8, 5) == b""
    assert disk.size(file) == 8
    disk.truncate(file, 3)
    assert (tmp_path / "f").read_bytes() == b"abX"


def test_a_missing_file_is_an_error_on_use(disk: SystemDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "f"))
    for use in (lambda: disk.read(file, 0, 1), lambda: disk.write(file, 0, (b"x",)), lambda: disk.size(file)):
        with pytest.raises(DiskError, match="No such file"):
            use()
    (tmp_path / "f").write_bytes(b"here now")
    assert disk.read(file, 0, 4) == b"here"


def test_more_files_than_descriptors(disk: SystemDisk, tmp_path: Path) -> None:
    files = [disk.open(str(tmp_path / f"{at}"), create=True) for at in range(20)]
    for round_ in range(3):
        for at, file in enumerate(files):
            disk.write(file, round_, (b"%d" % (at % 10),))
        assert descriptors(tmp_path) <= 4
    for at, file in enumerate(files):
        assert disk.read(file, 0, 9) == b"%d" % (at % 10) * 3
        assert disk.size(file) == 3
        disk.sync(file)
    assert descriptors(tmp_path) <= 4


def test_a_pinned_file_keeps_its_descriptor_through_everything(disk: SystemDisk, tmp_path: Path) -> None:
    file = disk.open(str(tmp_path / "pinned"), create=True)
    disk.write(file, 0, (b"content",))
    fd = disk.pin(file)
    for at in range(10):
        disk.open(str(tmp_path / f"{at}"), create=True)
    disk.close(file)
    disk.remove(str(tmp_path / "pinned"))
    assert os.pread(fd, 99, 0) == b"content"
    disk.pin(file)
    disk.unpin(file)
    assert os.pread(fd, 99, 0) == b"content"
    disk.unpin(file)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_pinned_files_leave_descriptors_for_the_log(disk: SystemDisk, tmp_path: Path) -> None:
    """At most half of the descriptors: clients that do not read must not block the log."""
    files = [disk.open(str(tmp_path / f"{at}"), create=True) for at in range(12)]
    for file in files[:2]:
        assert file.fd == -1
        disk.pin(file)
    for file in (files[2], files[11]):
        # Open or not.
        with pytest.raises(DiskError) as refused:
            disk.pin(file)
        assert refused.value.short
    disk.pin(files[0])
    for file in files[4:]:
        disk.read(file, 0, 1)
    assert descriptors(tmp_path) == 4 and files[0].fd >= 0 and files[1].fd >= 0
    disk.unpin(files[0])
    disk.unpin(files[1])
    disk.pin(files[2])
    with pytest.raises(DiskError):
        disk.pin(files[3])


def test_a_sync_opens_nothing_that_stays_open_and_takes_nothing_back(
    disk: SystemDisk, tmp_path: Path
) -> None:
    """A sync runs in any thread, and a file that it would close may be in use."""
    files = [disk.open(str(tmp_path / f"{at}"), create=True) for at in range(12)]
    kept = [file.fd for file in files[8:]]
    assert min(kept) >= 0
    for file in files:
        disk.sync(file)
    assert [file.fd for file in files[:8]] == [-1] * 8
    assert [file.fd for file in files[8:]] == kept


@pytest.mark.parametrize("is_locked", [True, False])
def test_all_of_a_directory_is_synced(
    disk: SystemDisk, tmp_path: Path, is_locked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With syncfs if available, otherwise file by file."""
    for name in ("a/0.log", "a/1.log", "b/0.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    synced: list[str] = []

    def record(fd: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), tmp_path))

    for name in ("sync_data", "sync_all", "sync_file_system"):
        monkeypatch.setattr(module, name, record)
    if is_locked:
        assert disk.lock(str(tmp_path))
    disk.sync_device(str(tmp_path))
    if is_locked and module.HAS_SYNCFS:
        assert synced == [".lock"]
    else:
        names = {name for name in synced if name != ".lock"}
        assert names == {"a/0.log", "a/1.log", "b/0.log", "a", "b", "."}
        assert synced[-1] == "."


def test_a_failed_device_sync_is_reported(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_fd: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    for name in ("sync_data", "sync_all", "sync_file_system"):
        monkeypatch.setattr(module, name, fail)
    assert disk.lock(str(tmp_path))
    with pytest.raises(DiskError) as caught:
        disk.sync_device(str(tmp_path))
    assert caught.value.broken


def test_a_whole_file_system_is_synced_for_real(disk: SystemDisk, tmp_path: Path) -> None:
    assert disk.lock(str(tmp_path))
    (tmp_path / "file").write_bytes(b"x")
    disk.sync_device(str(tmp_path))


def test_syncing_and_writing_at_once_never_mixes_files_up(disk: SystemDisk, tmp_path: Path) -> None:
    files = [disk.open(str(tmp_path / f"{at}"), create=True) for at in range(12)]
    stop = threading.Event()
    errors: list[Exception] = []

    def sync() -> None:
        while not stop.is_set():
            for file in files:
                try:
                    disk.sync(file)
                except Exception as error:
                    errors.append(error)
                    return

    threads = [threading.Thread(target=sync) for _ in range(3)]
    for thread in threads:
        thread.start()
    for round_ in range(300):
        for at, file in enumerate(files):
            disk.write(file, round_, (b"%c" % (65 + at),))
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []
    for at, file in enumerate(files):
        assert Path(file.path).read_bytes() == b"%c" % (65 + at) * 300


def test_a_write_that_fails_leaves_nothing(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R13"""
    file = disk.open(str(tmp_path / "f"), create=True)
    disk.write(file, 0, (b"before",))

    def half(fd: int, parts: Sequence[bytes], position: int) -> int:
        os.pwrite(fd, b"".join(parts)[:2], position)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "write_parts", half)
    with pytest.raises(DiskError) as caught:
        disk.write(file, 6, (b"after",))
    assert caught.value.full
    assert (tmp_path / "f").read_bytes() == b"before"


def test_a_write_that_is_taken_in_pieces_is_finished(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)
    monkeypatch.setattr(
        module, "write_parts", lambda fd, parts, position: os.pwrite(fd, b"".join(parts)[:3], position)
    )
    assert disk.write(file, 0, (b"abcd", b"efgh")) == 8
    assert (tmp_path / "f").read_bytes() == b"abcdefgh"


@pytest.mark.parametrize(
    ("number", "is_full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)]
)
def test_only_missing_room_may_pass(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_full: bool
) -> None:
    file = disk.open(str(tmp_path / "f"), create=True)

    def fail(*_arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(module, "write_parts", fail)
    with pytest.raises(DiskError) as caught:
        disk.write(file, 0, (b"x",))
    assert caught.value.full == is_full
    assert str(tmp_path / "f") in str(caught.value)


def test_a_file_is_replaced_whole_or_not_at_all(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    assert disk.read_file(str(path)) is None
    disk.replace_file(str(path), b"old")

    def fail(_fd: int) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patched:
        patched.setattr(module, "sync_data", fail)
        with pytest.raises(DiskError):
            disk.replace_file(str(path), b"new")
    assert disk.read_file(str(path)) == b"old"
    assert disk.list(str(tmp_path)) == ["f"], "nothing half written stays behind"
    disk.replace_file(str(path), b"new")
    assert disk.read_file(str(path)) == b"new"


def test_two_threads_may_replace_the_same_file(disk: SystemDisk, tmp_path: Path) -> None:
    path = str(tmp_path / "f")
    errors: list[Exception] = []

    def replace(content: bytes) -> None:
        try:
            for _ in range(30):
                disk.replace_file(path, content)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=replace, args=(bytes([65 + at]) * 5000,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    data = disk.read_file(path)
    assert data is not None and len(data) == 5000 and len(set(data)) == 1


def test_syncing_a_deleted_file_does_nothing(disk: SystemDisk, tmp_path: Path) -> None:
    """A topic may be deleted while a sync of its files waits; that is no disk error."""
    folder = tmp_path / "t-0"
    disk.make_dir(str(folder))
    file = disk.open(str(folder / "f"), create=True)
    disk.close(file)
    disk.remove_dir(str(folder))
    disk.sync(file)
    disk.sync_dir(str(folder))


def test_names(disk: SystemDisk, tmp_path: Path) -> None:
    folder = str(tmp_path / "a" / "b")
    assert disk.list(folder) == []
    disk.make_dir(folder)
    disk.make_dir(folder)
    for name in ("z", "y"):
        disk.open(f"{folder}/{name}", create=True)
    assert disk.list(folder) == ["y", "z"]
    disk.rename(f"{folder}/y", f"{folder}/x")
    disk.remove(f"{folder}/z")
    disk.remove(f"{folder}/z")
    assert disk.list(folder) == ["x"]
    disk.remove_dir(folder)
    assert disk.list(folder) == []


def test_the_room_on_the_device(disk: SystemDisk, tmp_path: Path) -> None:
    total, usable = disk.free_bytes(str(tmp_path))
    assert 0 < usable <= total
    device = os.statvfs(tmp_path)
    assert total == device.f_blocks * device.f_frsize
    with pytest.raises(DiskError, match="nowhere"):
        disk.free_bytes(str(tmp_path / "nowhere"))


def test_one_process_has_a_directory(disk: SystemDisk, tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    assert disk.lock(path)
    other = SystemDisk()
    assert not other.lock(path)
    disk.release()
    assert other.lock(path)
    other.release()


def test_everything_is_closed_at_the_end(tmp_path: Path) -> None:
    disk = SystemDisk()
    for at in range(5):
        disk.open(str(tmp_path / f"{at}"), create=True)
    assert descriptors(tmp_path) == 5
    disk.release()
    assert descriptors(tmp_path) == 0
