"""The disk as the core sees it: files it can write at a position, names it can change, and syncs.

Two adapters serve it: `runtime/disk.py` on the operating system, and the simulator's, which keeps written and
durable bytes apart. Every method may raise `DiskError`; nothing else. Paths are strings joined by "/".

Nothing is durable until it is synced: a file's bytes by `sync(file)`, its existence and name by
`sync_dir(directory)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class DiskError(Exception):
    """A disk operation failed.

    `full`: the device or a quota has no space left. `short`: descriptors, memory or a signal were in the way.
    Both may work later, and nothing is lost (`passing`). `broken`: the device itself failed. With none of
    them the error is about this path alone. `torn`: the file is not as it was before, so its partition cannot
    go on. `path`: the file, if it is one.
    """

    def __init__(
        self,
        message: str,
        *,
        full: bool = False,
        short: bool = False,
        broken: bool = False,
        torn: bool = False,
        path: str = "",
    ) -> None:
        super().__init__(message)
        self.full = full
        self.short = short
        self.broken = broken
        self.torn = torn
        self.path = path

    @property
    def passing(self) -> bool:
        """Whether the same may work later."""
        return self.full or self.short


class DamagedFile(DiskError):
    """What stands in a file is not what was written to it. The device works: others in its directory are not
    concerned.
    """


class File(Protocol):
    """An open file, or one that the adapter opens again when it is used. Opaque to the core."""

    @property
    def path(self) -> str: ...


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> File: ...
    def close(self, file: File) -> None: ...
    def write(self, file: File, position: int, parts: Sequence[Buffer]) -> int:
        """Write the parts at the position and return the position after them; on failure nothing of them
        stays.
        """

    def read(self, file: File, position: int, size: int) -> bytes:
        """At most `size` bytes; fewer only at the end of the file."""

    def size(self, file: File) -> int: ...
    def truncate(self, file: File, size: int) -> None: ...
    def sync(self, file: File) -> None:
        """Make its bytes durable. A failure of the sync itself is `broken`: final. Any other failure came
        before it.
        """

    def sync_dir(self, path: str) -> None:
        """Make its names durable. One that was removed meanwhile has nothing to keep: no failure."""

    def sync_device(self, path: str) -> None:
        """Make everything in a directory durable, names and bytes, all the way down, and perhaps more of its
        device.
        """

    def read_file(self, path: str) -> bytes | None:
        """The whole file, or None if there is none."""

    def replace_file(self, path: str, data: bytes) -> None:
        """Write a file so that after a crash it holds the old content or the new one, durably, never a
        mixture.
        """

    def copy(self, source: str, target: str, *, start: int, end: int) -> None:
        """Write the bytes from `start` to `end` of one file to the same place in another, made if it is not
        there.

        By paths alone, so that it may run beside whoever appends to the source behind `end`.
        """

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if there is none."""

    def make_dir(self, path: str) -> None:
        """Create it, and what is above it, if it is not there."""

    def rename(self, source: str, target: str) -> None: ...
    def move(self, file: File, target: str) -> None:
        """Rename an open file; the handle follows it."""

    def remove(self, path: str) -> None:
        """Remove a file if it is there."""

    def remove_dir(self, path: str) -> None:
        """Remove a directory and what is in it."""

    def free_bytes(self, path: str) -> tuple[int, int]:
        """(how much the device of a directory holds in all, how much of it this process may still write)."""
