"""Kernel features of this machine, chosen once. Each has a fallback. OTTLA_PORTABLE=1 in the environment
selects all fallbacks, so that the tests can run them on any machine.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

PORTABLE: Final = os.environ.get("OTTLA_PORTABLE") == "1"
_LINUX: Final = sys.platform == "linux" and not PORTABLE

#: Tells the kernel that more data follows, so that a header is not sent alone.
MSG_MORE: Final[int] = getattr(socket, "MSG_MORE", 0) if not PORTABLE else 0
#: Whether os.sendfile(socket, file, position, size) has Linux's meaning; elsewhere files are read and sent.
HAS_SENDFILE: Final = _LINUX and hasattr(os, "sendfile")


#: Whether there is epoll.
HAS_EPOLL: Final = _LINUX

#: A read with this flag fails if the data is not in the page cache; 0 if the kernel does not support it.
RWF_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0) if _LINUX else 0


def in_memory(fd: int, position: int, size: int) -> bool:
    """Whether this range is in the page cache, judged by its first and last byte."""
    if not RWF_NOWAIT:
        return True
    byte = bytearray(1)
    try:
        os.preadv(fd, [byte], position, RWF_NOWAIT)
        os.preadv(fd, [byte], position + size - 1, RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True  # the file system does not support the flag: assume that it is
    return True


def load(fd: int, position: int, size: int) -> None:
    """Read a range into the page cache. Waits for the device."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, position, size, os.POSIX_FADV_WILLNEED)
    end = position + size
    while position < end and (data := os.pread(fd, min(1 << 18, end - position), position)):
        position += len(data)


def _join_and_write(fd: int, parts: Sequence[Any], position: int) -> int:
    return os.pwrite(fd, b"".join(parts), position)


def _full_sync(fd: int) -> None:
    """fsync; on macOS F_FULLFSYNC, because fsync stops at the drive's cache there."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


#: struct flock: type, whence, start, length (0: all), process id (must be 0), padding.
_FLOCK: Final = "hhqqi0q"


def lock_against_java(fd: int) -> None:
    """Take the lock that Kafka takes on the same file (fcntl, not flock). BlockingIOError if it is taken.

    The lock belongs to the open file if the kernel supports that; otherwise to the process, which loses it
    when it closes another descriptor of the file.
    """
    import fcntl

    if hasattr(fcntl, "F_OFD_SETLK") and not PORTABLE:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    else:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: str) -> bool:
    """Whether another process holds the lock of `lock_against_java` on a file, without taking it.

    If the kernel does not support the query, an existing file counts as locked.
    """
    import fcntl

    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if not hasattr(fcntl, "F_OFD_GETLK") or PORTABLE:
            return True
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        found: int = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0]
        return found != fcntl.F_UNLCK
    finally:
        os.close(fd)


def _kernel() -> tuple[int, int]:
    major, _, rest = os.uname().release.partition(".")
    return int(major), int(rest.partition(".")[0])


#: Whether syncfs reports failed writes, as it does from Linux 5.8 on.
HAS_SYNCFS: Final = _LINUX and _kernel() >= (5, 8)


def sync_file_system(fd: int) -> None:
    """Sync the file system of an open file. OSError if a write has failed since the file was opened."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).syncfs(fd):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


#: Parameter of glibc's `mallopt`: the maximum number of heaps.
_M_ARENA_MAX: Final = -8


def use_one_heap() -> None:
    """Let all threads allocate from one heap (glibc), because `trim_memory` returns less of other heaps."""
    _call_c("mallopt", _M_ARENA_MAX, 1)


def trim_memory() -> None:
    """Return freed memory to the system (glibc)."""
    _call_c("malloc_trim", 0)


def _call_c(name: str, *arguments: int) -> None:
    """Call a function that only some C libraries on Linux have."""
    if not _LINUX:
        return
    import ctypes

    with suppress(OSError, AttributeError):
        getattr(ctypes.CDLL(None), name)(*arguments)


def resident_bytes() -> int:
    """The resident memory of this process; 0 if unknown."""
    try:
        with open("/proc/self/statm", "rb") as status:
            return int(status.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


#: Write several buffers at a position.
write_parts: Final = os.pwritev if hasattr(os, "pwritev") and not PORTABLE else _join_and_write
#: Make a file's bytes and size durable.
sync_data: Final = os.fdatasync if hasattr(os, "fdatasync") and not PORTABLE else _full_sync
sync_all: Final = _full_sync if sys.platform == "darwin" else os.fsync
