"""The table of disk errors: the meaning of each errno, and the broker's reaction at each call site.

- A device error takes the log directory offline.
- A shortage (descriptors, memory) is retried.
- A full device refuses requests that need disk space until some is free.
- Every other error is about one path: only its request or partition fails, and the other partitions go on.

`docs/disk-errors.md` is rendered from this table.
"""

from __future__ import annotations

import errno
import sys
from enum import Enum
from typing import Final, NamedTuple

from ottla.ports.disk import DiskError


class ErrnoClass(Enum):
    #: The process or the host has no descriptors or memory at the moment. Nothing is lost: retry.
    SHORTAGE = "shortage"
    #: The device, or a quota on it, has no space left.
    FULL = "full"
    #: The device failed or disappeared, or its file system is damaged or read-only.
    DEVICE = "device"
    #: This path or this call is wrong. Another path in the same directory may be fine.
    PATH = "path"


#: By name, because not every system has all of them. An unlisted errno is PATH: it does not show a device
#: failure.
ERRNO_CLASSES: Final[dict[str, tuple[ErrnoClass, str]]] = {
    "EMFILE": (ErrnoClass.SHORTAGE, "the process has no free descriptor; connections and files release some"),
    "ENFILE": (ErrnoClass.SHORTAGE, "the host has no free descriptor"),
    "ENOMEM": (ErrnoClass.SHORTAGE, "the kernel has no memory for this call"),
    "ENOBUFS": (ErrnoClass.SHORTAGE, "the kernel has no buffer for this call"),
    "EINTR": (ErrnoClass.SHORTAGE, "a signal interrupted the call"),
    "EAGAIN": (ErrnoClass.SHORTAGE, "the kernel asks to try again"),
    "ENOSPC": (ErrnoClass.FULL, "the device is full, or has no free inode"),
    "EDQUOT": (ErrnoClass.FULL, "the quota of this user is used up"),
    "EIO": (ErrnoClass.DEVICE, "the device failed"),
    "EREMOTEIO": (ErrnoClass.DEVICE, "the device failed"),
    "ENXIO": (ErrnoClass.DEVICE, "the device disappeared"),
    "ENODEV": (ErrnoClass.DEVICE, "the device disappeared"),
    "ENOMEDIUM": (ErrnoClass.DEVICE, "the device has no medium"),
    "ESHUTDOWN": (ErrnoClass.DEVICE, "the file system was shut down after an error"),
    "EROFS": (ErrnoClass.DEVICE, "the file system is read-only; ext4 becomes read-only after an error"),
    "ESTALE": (ErrnoClass.DEVICE, "the file server no longer knows the file"),
    "EUCLEAN": (ErrnoClass.DEVICE, "the file system is damaged"),
    "EBADMSG": (ErrnoClass.DEVICE, "a checksum of the file system is wrong"),
    "ENAMETOOLONG": (ErrnoClass.PATH, "the topic name is too long for this file system"),
    "EACCES": (ErrnoClass.PATH, "permissions of one file or directory; can be fixed while the broker runs"),
    "EPERM": (ErrnoClass.PATH, "like EACCES; also a file that is marked immutable"),
    "ENOENT": (ErrnoClass.PATH, "someone removed this file or directory"),
    "ENOTDIR": (ErrnoClass.PATH, "a file has the name of this directory"),
    "EISDIR": (ErrnoClass.PATH, "a directory has the name of this file"),
    "ELOOP": (ErrnoClass.PATH, "this path has a loop of symbolic links"),
    "EEXIST": (ErrnoClass.PATH, "something else has this name"),
    "ENOTEMPTY": (ErrnoClass.PATH, "something else has this name"),
    "EINVAL": (ErrnoClass.PATH, "the call is wrong for this file"),
    "EBADF": (ErrnoClass.PATH, "the call is wrong for this file"),
    "EFBIG": (ErrnoClass.PATH, "the file has reached the size limit of the file system or of the process"),
    "EXDEV": (ErrnoClass.PATH, "this rename crosses devices"),
    "EMLINK": (ErrnoClass.PATH, "this directory has too many subdirectories"),
    "EBUSY": (ErrnoClass.PATH, "this name is a mount point or in use"),
}  # fmt: skip

_BY_NUMBER: Final = {
    getattr(errno, name): kind for name, (kind, _why) in ERRNO_CLASSES.items() if hasattr(errno, name)
}
#: Errors that a socket cannot return: sendfile got them from the file.
DEVICE_ERRNOS: Final = frozenset(number for number, kind in _BY_NUMBER.items() if kind is ErrnoClass.DEVICE)


class CallSite(NamedTuple):
    """A call into the operating system, and the broker's reaction to each class of error."""

    does: str
    shortage: str
    full: str
    device: str
    path: str


_OFFLINE: Final = "the log directory goes offline until the next start"
_REFUSED_LATER: Final = "the request fails with KAFKA_STORAGE_ERROR, which clients retry; nothing was written"
_NO_SPACE: Final = "the request fails; logged once; a probe every 2 s detects free disk space"
_REFUSED: Final = "the request fails with KAFKA_STORAGE_ERROR; other partitions go on"
_CLOSED: Final = "the connection closes; the client fetches again"

#: The call sites of `runtime/disk.py` and `runtime/transport.py`.
CALL_SITES: Final[dict[str, CallSite]] = {
    "open": CallSite(
        "open a file to read or write it, or create a segment", _REFUSED_LATER, _NO_SPACE, _OFFLINE, _REFUSED
    ),
    "open for sync": CallSite(
        "open a file or a directory to sync it",
        "the sync is retried every 0.2 s; waiting produce requests end at their timeout at the latest",
        "cannot happen; handled like a shortage",
        _OFFLINE,
        "the partition is offline until the next start",
    ),
    "sync": CallSite(
        "fsync, fdatasync or syncfs itself. R11: any error is final, because the kernel drops the pages "
        "that it could "
        "not write. Only EINTR is retried",
        _OFFLINE,
        _OFFLINE,
        _OFFLINE,
        _OFFLINE,
    ),
    "write": CallSite(
        "append. After an error the file is truncated to its length before the append. If that fails too, "
        "the partition "
        "is offline until the next start",
        _REFUSED_LATER,
        _NO_SPACE,
        _OFFLINE,
        _REFUSED,
    ),
    "read": CallSite("read a segment or an index", _REFUSED_LATER, _REFUSED, _OFFLINE, _REFUSED),
    "truncate": CallSite("truncate a log, an index or a small "
        "file", _REFUSED_LATER, _NO_SPACE, _OFFLINE, _REFUSED),
    "stat": CallSite("size of a file, free space of a device", _REFUSED_LATER, _REFUSED, _OFFLINE, _REFUSED),
    "replace": CallSite(
        "write, sync and rename a checkpoint, a snapshot or meta.properties. The old file stays until the "
        "rename",
        "retried after 2 s",
        "retried after 2 s",
        _OFFLINE,
        "logged once, retried after 2 s",
    ),
    "mkdir": CallSite("create a partition's directory", _REFUSED_LATER, _NO_SPACE, _OFFLINE, _REFUSED),
    "rename": CallSite(
        "rename the directory of a deleted partition, or a deleted segment",
        "retried after 2 s",
        "retried after 2 s",
        _OFFLINE,
        "retried after 2 s; a new topic of the same name waits for it",
    ),
    "remove": CallSite(
        "delete the files of deleted segments and topics, in a thread",
        "logged; the next start deletes them",
        "logged; the next start deletes them",
        "logged; the next write or sync takes the directory offline",
        "logged; the next start deletes them",
    ),
    "sendfile": CallSite("send a slice of a segment to a "
        "consumer", _CLOSED, _CLOSED, f"{_CLOSED}; {_OFFLINE}", _CLOSED),
    "start": CallSite(
        "any of these while the broker starts",
        "the broker does not start: raise `ulimit -n`",
        _OFFLINE,
        _OFFLINE,
        "the partition is offline until the next start; an error of the log directory itself takes the "
        "directory offline",
    ),
}  # fmt: skip


def errno_class(number: int | None) -> ErrnoClass:
    return _BY_NUMBER.get(number or 0, ErrnoClass.PATH)


def disk_error(path: str, error: OSError) -> DiskError:
    """An error of the operating system as a `DiskError`."""
    kind = errno_class(error.errno)
    return DiskError(
        f"{path}: {error.strerror}",
        full=kind is ErrnoClass.FULL,
        short=kind is ErrnoClass.SHORTAGE,
        broken=kind is ErrnoClass.DEVICE,
        path=path,
    )


def sync_error(path: str, error: OSError) -> DiskError:
    """The error of a sync itself: final (R11) unless a signal interrupted it."""
    interrupted = error.errno == errno.EINTR
    return DiskError(f"{path}: {error.strerror}", short=interrupted, broken=not interrupted, path=path)


def render() -> str:
    """`docs/disk-errors.md`."""
    lines = [
        "# Disk errors",
        "",
        "<!-- Rendered by `python -m ottla.runtime.disk_errors`; edit src/ottla/runtime/disk_errors.py. -->",
        "",
        "The first table has the class of each errno, the second the broker's reaction at each call site.",
        "",
        "- **shortage**: no descriptors or memory at the moment; retried.",
        "- **full**: no disk space; requests that need space fail until some is free.",
        "- **device**: the device or its file system failed; the log directory goes offline.",
        "- **path**: one file or directory is wrong; only its request or partition fails.",
        "",
        "| errno | class | meaning |",
        "|---|---|---|",
        *(f"| `{name}` | {kind.value} | {why} |" for name, (kind, why) in ERRNO_CLASSES.items()),
        "| any other | path | it does not show a device failure |",
        "",
        "| call site | shortage | full | device | path |",
        "|---|---|---|---|---|",
        *(
            f"| **{name}**: {site.does} | {site.shortage} | {site.full} | {site.device} | {site.path} |"
            for name, site in CALL_SITES.items()
        ),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
