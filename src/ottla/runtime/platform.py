"""What this machine's kernel offers, chosen once. Each choice has a fallback, and setting the environment variable
OTTLA_PORTABLE=1 chooses all fallbacks, so that the tests can run them on a machine that would not need them.
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

#: Tells the kernel that more follows, so that a header does not travel alone.
MSG_MORE: Final[int] = getattr(socket, "MSG_MORE", 0) if not PORTABLE else 0
#: Whether os.sendfile(socket, file, position, size) has Linux's meaning; elsewhere files are read and sent.
HAS_SENDFILE: Final = _LINUX and hasattr(os, "sendfile")


#: Whether there is epoll.
HAS_EPOLL: Final = _LINUX

#: Reads only what is in memory; 0 where the kernel cannot say.
RWF_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0) if _LINUX else 0


def in_memory(fd: int, position: int, size: int) -> bool:
    """Whether a read of this range would not wait for the device, judged by its first and last byte."""
    if not RWF_NOWAIT:
        return True
    byte = bytearray(1)
    try:
        os.preadv(fd, [byte], position, RWF_NOWAIT)
        os.preadv(fd, [byte], position + size - 1, RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True  # this file system cannot say: read as if it were
    return True


def load(fd: int, position: int, size: int) -> None:
    """Bring a range into memory. Takes as long as the device takes."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, position, size, os.POSIX_FADV_WILLNEED)
    end = position + size
    while position < end and (data := os.pread(fd, min(1 << 18, end - position), position)):
        position += len(data)


def _join_and_write(fd: int, parts: Sequence[Any], position: int) -> int:
    return os.pwrite(fd, b"".join(parts), position)


def _full_sync(fd: int) -> None:
    """fsync, and on macOS the call that reaches the platter: fsync alone stops at the drive's cache there."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


#: struct flock: type, whence, start, length (0: all of it), process id (0 is asked for), padded to its end.
_FLOCK: Final = "hhqqi0q"


def lock_against_java(fd: int) -> None:
    """Take the lock that Kafka takes on the same file, of another kind than flock's. BlockingIOError if it is taken.

    Of the open file where the kernel offers it; else of the process, which loses it when it closes the file elsewhere.
    """
    import fcntl

    if hasattr(fcntl, "F_OFD_SETLK") and not PORTABLE:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    else:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: str) -> bool:
    """Whether another process holds the lock of `lock_against_java` on a file, without taking it.

    Where the kernel cannot tell, it counts as locked while it exists.
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


#: Whether syncfs tells of writes that failed; before Linux 5.8 it said nothing.
HAS_SYNCFS: Final = _LINUX and _kernel() >= (5, 8)


def sync_file_system(fd: int) -> None:
    """Make everything on the file system of an open file durable. OSError if a write failed since it was opened."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).syncfs(fd):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


#: `mallopt` of glibc: how many heaps threads may use.
_M_ARENA_MAX: Final = -8


def use_one_heap() -> None:
    """All threads allocate from one heap (glibc). `trim_memory` gives back less of the heaps of other threads."""
    _call_c("mallopt", _M_ARENA_MAX, 1)


def trim_memory() -> None:
    """Give freed memory back to the system, where the C library keeps it (glibc)."""
    _call_c("malloc_trim", 0)


def _call_c(name: str, *arguments: int) -> None:
    """Call a function that only some C libraries on Linux have."""
    if not _LINUX:
        return
    import ctypes

    with suppress(OSError, AttributeError):
        getattr(ctypes.CDLL(None), name)(*arguments)


def resident_bytes() -> int:
    """The memory of this process that is in use now; 0 where the system does not tell."""
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
