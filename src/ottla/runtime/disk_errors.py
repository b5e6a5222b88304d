"""What each errno of a disk operation means, and what the broker then does. The one table of it.

A device error takes the log directory offline. A shortage (descriptors, memory) is retried. A full device refuses what
needs space until there is some. Every other error fails its own request or partition: the device works, so the other
partitions in the directory go on.
"""

from __future__ import annotations

import errno
import sys
from enum import Enum
from typing import Final, NamedTuple

from ottla.ports.disk import DiskError


class ErrnoClass(Enum):
    #: The process or the host is short of something for the moment. Nothing is lost: retry.
    SHORT = "short"
    #: The device, or a quota on it, has no space left.
    FULL = "full"
    #: The device failed, is gone, or its file system is damaged or read-only.
    DEVICE = "device"
    #: This path or this call is wrong. Another path in the same directory may be fine.
    OWN = "own"


#: By name, because not every system has all of them. An errno that is not listed is OWN: nothing says that the device failed.
ERRNO_CLASSES: Final[dict[str, tuple[ErrnoClass, str]]] = {
    "EMFILE": (ErrnoClass.SHORT, "this process has no descriptor left; connections and files come and go"),
    "ENFILE": (ErrnoClass.SHORT, "the host has no descriptor left"),
    "ENOMEM": (ErrnoClass.SHORT, "the kernel has no memory for this call"),
    "ENOBUFS": (ErrnoClass.SHORT, "the kernel has no buffer for this call"),
    "EINTR": (ErrnoClass.SHORT, "a signal interrupted the call"),
    "EAGAIN": (ErrnoClass.SHORT, "the kernel asks to try again"),
    "ENOSPC": (ErrnoClass.FULL, "the device is full, or has no inode left"),
    "EDQUOT": (ErrnoClass.FULL, "the quota of this user is used up"),
    "EIO": (ErrnoClass.DEVICE, "the device failed"),
    "EREMOTEIO": (ErrnoClass.DEVICE, "the device failed"),
    "ENXIO": (ErrnoClass.DEVICE, "the device is gone"),
    "ENODEV": (ErrnoClass.DEVICE, "the device is gone"),
    "ENOMEDIUM": (ErrnoClass.DEVICE, "the device has no medium"),
    "ESHUTDOWN": (ErrnoClass.DEVICE, "the file system was shut down after an error"),
    "EROFS": (ErrnoClass.DEVICE, "the file system is read-only, as ext4 becomes after an error"),
    "ESTALE": (ErrnoClass.DEVICE, "the file server does not know the file any more"),
    "EUCLEAN": (ErrnoClass.DEVICE, "the file system is damaged"),
    "EBADMSG": (ErrnoClass.DEVICE, "a checksum of the file system is wrong"),
    "ENAMETOOLONG": (ErrnoClass.OWN, "one topic's name is too long here"),
    "EACCES": (ErrnoClass.OWN, "permissions are set by file and directory, and can be mended while the broker runs"),
    "EPERM": (ErrnoClass.OWN, "as EACCES; also one file that is marked immutable"),
    "ENOENT": (ErrnoClass.OWN, "someone removed this file or directory"),
    "ENOTDIR": (ErrnoClass.OWN, "a file has the name of this directory"),
    "EISDIR": (ErrnoClass.OWN, "a directory has the name of this file"),
    "ELOOP": (ErrnoClass.OWN, "this path has a loop of symbolic links"),
    "EEXIST": (ErrnoClass.OWN, "something else has this name"),
    "ENOTEMPTY": (ErrnoClass.OWN, "something else has this name"),
    "EINVAL": (ErrnoClass.OWN, "the call is wrong for this file"),
    "EBADF": (ErrnoClass.OWN, "the call is wrong for this file"),
    "EFBIG": (ErrnoClass.OWN, "this file is as large as the file system or a limit of the process allows"),
    "EXDEV": (ErrnoClass.OWN, "this rename crosses devices"),
    "EMLINK": (ErrnoClass.OWN, "this directory has too many subdirectories"),
    "EBUSY": (ErrnoClass.OWN, "this name is a mount point or in use"),
}  # fmt: skip

_BY_NUMBER: Final = {
    getattr(errno, name): kind for name, (kind, _why) in ERRNO_CLASSES.items() if hasattr(errno, name)
}
#: What a socket cannot answer, so that sendfile's other end must have.
DEVICE_ERRNOS: Final = frozenset(number for number, kind in _BY_NUMBER.items() if kind is ErrnoClass.DEVICE)


class CallSite(NamedTuple):
    """Where the operating system is called, and what the broker does with an error of each class."""

    does: str
    short: str
    full: str
    device: str
    own: str


_OFFLINE: Final = "the log directory goes offline until the next start"
_REFUSED_LATER: Final = (
    "the request is refused with KAFKA_STORAGE_ERROR, which clients retry; nothing was written"
)
_NO_SPACE: Final = "the request is refused; logged once; a probe every 2 s tells when there is space again"
_REFUSED: Final = "the request is refused with KAFKA_STORAGE_ERROR; other partitions go on"
_CLOSED: Final = "the connection is closed; the client fetches again"

#: The call sites of `runtime/disk.py` and `runtime/transport.py`.
CALL_SITES: Final[dict[str, CallSite]] = {
    "open": CallSite(
        "open a file to read or write it, or create a segment", _REFUSED_LATER, _NO_SPACE, _OFFLINE, _REFUSED
    ),
    "open for sync": CallSite(
        "open a file or a directory to sync it",
        "the sync is repeated every 0.2 s; its produces wait, at most until their own time-out",
        "cannot happen; as short",
        _OFFLINE,
        "the partition is offline until the next start",
    ),
    "sync": CallSite(
        "fsync, fdatasync or syncfs itself (R11: final, whatever the errno, because the kernel drops what it could not "
        "write). Only EINTR is repeated",
        _OFFLINE,
        _OFFLINE,
        _OFFLINE,
        _OFFLINE,
    ),
    "write": CallSite(
        "append; the file is cut back to its length before. If cutting back fails too, the partition is offline until "
        "the next start",
        _REFUSED_LATER,
        _NO_SPACE,
        _OFFLINE,
        _REFUSED,
    ),
    "read": CallSite("read a segment or an index", _REFUSED_LATER, _REFUSED, _OFFLINE, _REFUSED),
    "truncate": CallSite("cut a log, an index or a small file", _REFUSED_LATER, _NO_SPACE, _OFFLINE, _REFUSED),
    "stat": CallSite("size of a file, free space of a device", _REFUSED_LATER, _REFUSED, _OFFLINE, _REFUSED),
    "replace": CallSite(
        "write, sync and rename a checkpoint, a snapshot or meta.properties. The old file stays until the rename",
        "repeated after 2 s",
        "repeated after 2 s",
        _OFFLINE,
        "logged once, repeated after 2 s",
    ),
    "mkdir": CallSite("create a partition's directory", _REFUSED_LATER, _NO_SPACE, _OFFLINE, _REFUSED),
    "rename": CallSite(
        "set a deleted partition's directory aside, or a segment",
        "repeated after 2 s",
        "repeated after 2 s",
        _OFFLINE,
        "repeated after 2 s; a new topic of the same name waits for it",
    ),
    "remove": CallSite(
        "remove files of deleted segments and topics, off the loop",
        "logged; the next start removes them",
        "logged; the next start removes them",
        "logged; the next write or sync takes the directory offline",
        "logged; the next start removes them",
    ),
    "sendfile": CallSite("send a slice of a segment to a consumer", _CLOSED, _CLOSED, f"{_CLOSED}; {_OFFLINE}", _CLOSED),
    "start": CallSite(
        "any of these while the broker starts",
        "the start is refused: raise `ulimit -n`",
        _OFFLINE,
        _OFFLINE,
        "the partition is offline until the next start; the directory, if it is about the directory itself",
    ),
}  # fmt: skip


def errno_class(number: int | None) -> ErrnoClass:
    return _BY_NUMBER.get(number or 0, ErrnoClass.OWN)


def disk_error(path: str, error: OSError) -> DiskError:
    """An error of the operating system as the port's own."""
    kind = errno_class(error.errno)
    return DiskError(
        f"{path}: {error.strerror}",
        full=kind is ErrnoClass.FULL,
        short=kind is ErrnoClass.SHORT,
        broken=kind is ErrnoClass.DEVICE,
        path=path,
    )


def sync_error(path: str, error: OSError) -> DiskError:
    """The same for a sync itself, which is final (R11) unless a signal interrupted it."""
    interrupted = error.errno == errno.EINTR
    return DiskError(f"{path}: {error.strerror}", short=interrupted, broken=not interrupted, path=path)


def render() -> str:
    """`docs/disk-errors.md`."""
    lines = [
        "# Disk errors",
        "",
        "<!-- Rendered by `python -m ottla.runtime.disk_errors`; edit `src/ottla/runtime/disk_errors.py` instead. -->",
        "",
        "What each errno means, and what the broker does with it at each call site.",
        "",
        "| errno | class | because |",
        "|---|---|---|",
        *(f"| `{name}` | {kind.value} | {why} |" for name, (kind, why) in ERRNO_CLASSES.items()),
        "| any other | own | nothing says that the device failed |",
        "",
        "| call site | short | full | device | own |",
        "|---|---|---|---|---|",
        *(
            f"| **{name}**: {site.does} | {site.short} | {site.full} | {site.device} | {site.own} |"
            for name, site in CALL_SITES.items()
        ),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
