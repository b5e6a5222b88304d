"""The Disk port on the operating system.

Files are opened on use and closed again when too many are open, so the number of partitions is not bounded by
the number of descriptors. A pinned file (being sent, or synced in a thread) keeps its descriptor, even if it
is closed or deleted meanwhile; the last unpin closes it.

Threads: one thread opens, reads, writes and pins through file handles. Other threads may only `sync` and call
methods that take a path. Only the first thread closes descriptors, so a descriptor cannot disappear or be
reused during a read or write. Code that uses handles in a second thread (the metadata journal) has its own
SystemDisk.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Sequence
from contextlib import suppress
from errno import EMFILE, ENFILE
from itertools import count, islice
from typing import Final

from ottla.ports.disk import Buffer, DiskError, File
from ottla.runtime.disk_errors import DEVICE_ERRNOS, disk_error, sync_error
from ottla.runtime.platform import (
    HAS_SYNCFS,
    lock_against_java,
    sync_all,
    sync_data,
    sync_file_system,
    write_parts,
)

#: Bytes per read of a copy.
_COPY_BYTES: Final = 1 << 20
#: Only the user of the broker may read records, keys and metadata. Existing directories keep their mode.
_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700


class OpenFile:
    __slots__ = ("closed", "fd", "path", "pins")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        self.pins = 0
        self.closed = False


class SystemDisk:
    def __init__(self, *, files_max: int = 4096) -> None:
        self._files_max = files_max
        self._pins_max = max(1, files_max // 2)
        self._pinned = 0
        #: Open files, the least recently opened first.
        self._open: dict[OpenFile, None] = {}
        self._lock = threading.RLock()
        #: Locked directories, with the descriptors of their locks.
        self._locks: dict[str, int] = {}
        self._temporaries = count()

    # --- files ----------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> OpenFile:
        file = OpenFile(path, -1)
        if create:
            with failures(path), self._lock:
                # Created now, so that its name exists; the descriptor may be closed again like any other.
                file.fd = self._new_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
                self._open[file] = None
                self._take_back(file)
        return file

    def close(self, file: File) -> None:
        assert isinstance(file, OpenFile)
        with self._lock:
            file.closed = True
            if not file.pins:
                self._release(file)

    def pin(self, file: OpenFile) -> int:
        """Keep the file open until `unpin`; returns its descriptor.

        At most half of the allowed files can be pinned, so that the log can go on; beyond that, a `short`
        DiskError.
        """
        with self._lock:
            if file.pins:
                # It is open and counted already.
                file.pins += 1
                return file.fd
            if self._pinned >= self._pins_max:
                raise DiskError(
                    f"{file.path}: no free descriptor, {self._pinned} files are being sent", short=True
                )
            fd = file.fd if file.fd >= 0 else self._reopen(file)
            self._pinned += 1
            file.pins = 1
            return fd

    def _pin(self, file: OpenFile) -> int:
        fd = file.fd if file.fd >= 0 else self._reopen(file)
        if not file.pins:
            self._pinned += 1
        file.pins += 1
        return fd

    def unpin(self, file: OpenFile) -> None:
        with self._lock:
            file.pins -= 1
            if not file.pins:
                self._pinned -= 1
                if file.closed:
                    self._release(file)

    def write(self, file: File, position: int, parts: Sequence[Buffer]) -> int:
        assert isinstance(file, OpenFile)
        fd = file.fd
        if fd < 0:
            fd = self._reopen(file)
        end = position + sum(map(len, parts))
        try:
            written = position + write_parts(fd, parts, position)
            if written != end:
                rest = memoryview(b"".join(parts))
                while written < end:
                    written += os.pwrite(fd, rest[written - position :], written)
        except OSError as error:
            try:
                os.ftruncate(fd, position)
            except OSError as second:
                raise DiskError(
                    f"{file.path}: {error.strerror}, and truncating it failed: {second.strerror}",
                    broken=error.errno in DEVICE_ERRNOS or second.errno in DEVICE_ERRNOS,
                    torn=True,
                    path=file.path,
                ) from error
            raise disk_error(file.path, error) from error
        return end

    def read(self, file: File, position: int, size: int) -> bytes:
        assert isinstance(file, OpenFile)
        fd = file.fd
        if fd < 0:
            fd = self._reopen(file)
        try:
            data = os.pread(fd, size, position)
            if len(data) < size and data:
                parts = [data]
                while more := os.pread(fd, size - len(data), position + len(data)):
                    parts.append(more)
                    data = b"".join(parts)
                    if len(data) == size:
                        break
        except OSError as error:
            raise disk_error(file.path, error) from error
        return data

    def size(self, file: File) -> int:
        assert isinstance(file, OpenFile)
        with failures(file.path):
            return os.stat(file.path).st_size if file.fd < 0 else os.fstat(file.fd).st_size

    def truncate(self, file: File, size: int) -> None:
        assert isinstance(file, OpenFile)
        fd = file.fd if file.fd >= 0 else self._reopen(file)
        with failures(file.path):
            os.ftruncate(fd, size)

    def sync(self, file: File) -> None:
        assert isinstance(file, OpenFile)
        with self._lock:
            is_open = file.fd >= 0
            if is_open:
                fd = self._pin(file)
            elif file.closed:
                # Deleted while the sync was waiting.
                return
            else:
                with failures(file.path):
                    # A separate descriptor, closed at once: a round over a thousand closed files must not
                    # open them all, and this thread may not close others.
                    fd = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            sync_data(fd)
        except OSError as error:
            raise sync_error(file.path, error) from error
        finally:
            if is_open:
                self.unpin(file)
            else:
                os.close(fd)

    def sync_dir(self, path: str) -> None:
        with failures(path):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                # Deleted while the sync was waiting.
                return
        try:
            with sync_failures(path):
                sync_all(fd)
        finally:
            os.close(fd)

    def sync_device(self, path: str) -> None:
        # syncfs reports every failed write since the descriptor was opened, and the lock was opened at the
        # start.
        lock = self._locks.get(path)
        if HAS_SYNCFS and lock is not None:
            with sync_failures(path):
                sync_file_system(lock)
            return
        for above, _, files in os.walk(path, topdown=False):
            for name in files:
                with failures(f"{above}/{name}"):
                    fd = os.open(f"{above}/{name}", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    with sync_failures(f"{above}/{name}"):
                        sync_data(fd)
                finally:
                    os.close(fd)
            self.sync_dir(above)

    # --- names ----------------------------------------------------------------------------------------------

    def read_file(self, path: str) -> bytes | None:
        with failures(path):
            try:
                with open(path, "rb") as file:
                    return file.read()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def replace_file(self, path: str, data: bytes) -> None:
        # A unique name: two threads may replace the same file.
        temporary = f"{path}.{next(self._temporaries)}.tmp"
        with failures(path):
            try:
                fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
                try:
                    view = memoryview(data)
                    while view:
                        view = view[os.write(fd, view) :]
                    sync_data(fd)
                finally:
                    os.close(fd)
                os.replace(temporary, path)
            except OSError:
                with suppress(OSError):
                    os.unlink(temporary)
                raise
        self.sync_dir(os.path.dirname(path))

    def copy(self, source: str, target: str, *, start: int, end: int) -> None:
        with failures(source):
            reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with failures(target):
                writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
            try:
                while start < end:
                    with failures(source):
                        data = os.pread(reader, min(_COPY_BYTES, end - start), start)
                    if not data:
                        raise DiskError(f"{source} ends at {start}, before {end}")
                    with failures(target):
                        start += os.pwrite(writer, data, start)
            finally:
                os.close(writer)
        finally:
            os.close(reader)

    def list(self, path: str) -> list[str]:
        with failures(path):
            try:
                return sorted(os.listdir(path))
            except FileNotFoundError:
                return []

    def make_dir(self, path: str) -> None:
        with failures(path):
            os.makedirs(path, _DIRECTORY_MODE, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        with failures(source):
            os.replace(source, target)

    def move(self, file: File, target: str) -> None:
        assert isinstance(file, OpenFile)
        # Under the lock, so that no thread opens it by its old name between the two steps.
        with self._lock:
            self.rename(file.path, target)
            file.path = target

    def remove(self, path: str) -> None:
        with failures(path), suppress(FileNotFoundError):
            os.unlink(path)

    def remove_dir(self, path: str) -> None:
        with failures(path):
            shutil.rmtree(path)

    def free_bytes(self, path: str) -> tuple[int, int]:
        with failures(path):
            device = os.statvfs(path)
        return device.f_blocks * device.f_frsize, device.f_bavail * device.f_frsize

    # --- not part of the port -------------------------------------------------------------------------------

    def lock(self, path: str) -> bool:
        """Lock a directory for this process; False if another process has locked it."""
        with failures(path):
            os.makedirs(path, _DIRECTORY_MODE, exist_ok=True)
            fd = os.open(f"{path}/.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                lock_against_java(fd)
            except (BlockingIOError, PermissionError):
                os.close(fd)
                return False
        self._locks[path.rstrip("/") or "/"] = fd
        return True

    def release(self) -> None:
        """Close all files and unlock all directories."""
        with self._lock:
            for file in list(self._open):
                self._release(file)
            for fd in self._locks.values():
                os.close(fd)
            self._locks.clear()

    def _reopen(self, file: OpenFile) -> int:
        with self._lock:
            fd = self._open_again(file)
            self._take_back(file)
            return fd

    def _open_again(self, file: OpenFile) -> int:
        with failures(file.path):
            if file.fd < 0:
                file.fd = self._new_descriptor(file.path, os.O_RDWR | os.O_CLOEXEC)
                self._open[file] = None
            return file.fd

    def _new_descriptor(self, path: str, flags: int) -> int:
        try:
            return os.open(path, flags, _FILE_MODE)
        except OSError as error:
            if error.errno not in (EMFILE, ENFILE):
                raise
            # Close unused files of this disk first.
            for file in [file for file in self._open if not file.pins][: max(1, len(self._open) // 2)]:
                self._release(file)
            return os.open(path, flags, _FILE_MODE)

    def _take_back(self, keep: OpenFile) -> None:
        """Close the files that were opened first, down to the allowed number."""
        excess = len(self._open) - self._files_max
        if excess > 0:
            idle = (file for file in self._open if not file.pins and file is not keep)
            for file in list(islice(idle, excess)):
                self._release(file)

    def _release(self, file: OpenFile) -> None:
        self._open.pop(file, None)
        if file.fd >= 0:
            os.close(file.fd)
            file.fd = -1


class failures:  # noqa: N801  (reads as what it is: `with failures(path):`)
    """Turn an OSError into a DiskError.

    Not a generator, for speed: opening ten thousand logs uses this a hundred thousand times.
    """

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, OSError):
            raise disk_error(self._path, error) from error


class sync_failures(failures):  # noqa: N801
    """The same for a sync itself."""

    __slots__ = ()

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, OSError):
            raise sync_error(self._path, error) from error
