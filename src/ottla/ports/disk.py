"""The disk as the core sees it: positional writes, names and syncs.

There are two adapters: `runtime/disk.py` on the operating system, and the simulator's, which tracks written
and durable bytes separately. Every method can raise `DiskError`, nothing else. Paths are strings joined by
"/".

Nothing is durable before a sync: the bytes of a file by `sync(file)`, its existence and name by
`sync_dir(directory)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class DiskError(Exception):
    """A disk operation failed.

    - `full`: the device or a quota has no space left.
    - `short`: descriptors or memory were missing, or a signal interrupted the call. Both can succeed later,
      and nothing is lost (`passing`).
    - `broken`: the device failed.
    - Without any of them the error concerns this path only.
    - `torn`: the file has changed, so its partition cannot continue.
    - `path`: the file, if it is known.
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
        """Whether the operation can succeed later."""
        return self.full or self.short


class DamagedFile(DiskError):
    """The content of a file is not what was written. The device works: other files are not affected."""


class File(Protocol):
    """An open file, or one that the adapter reopens at its next use. Opaque to the core."""

    @property
    def path(self) -> str: ...


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> File: ...
    def close(self, file: File) -> None: ...
    def write(self, file: File, position: int, parts: Sequence[Buffer]) -> int:
        """Write the parts at the position; returns the position after them. After a failure none of the bytes
        remain.
        """

    def read(self, file: File, position: int, size: int) -> bytes:
        """At most `size` bytes; fewer only at the end of the file."""

    def size(self, file: File) -> int: ...
    def truncate(self, file: File, size: int) -> None: ...
    def sync(self, file: File) -> None:
        """Make the bytes durable. A failure of the sync itself is `broken`, which is final. Any other failure
        came before it.
        """

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable. A directory that was removed meanwhile is not a failure."""

    def sync_device(self, path: str) -> None:
        """Make everything below a directory durable, names and bytes, and possibly more of its device."""

    def read_file(self, path: str) -> bytes | None:
        """The whole file, or None if it does not exist."""

    def replace_file(self, path: str, data: bytes) -> None:
        """Replace a file atomically and durably: after a crash it has either the old or the new content."""

    def copy(self, source: str, target: str, *, start: int, end: int) -> None:
        """Copy the bytes from `start` to `end` of one file to the same position of another, which is created
        if necessary.

        It uses paths only, so it can run while the source is appended to after `end`.
        """

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if it does not exist."""

    def make_dir(self, path: str) -> None:
        """Create a directory and its parents, if they do not exist."""

    def rename(self, source: str, target: str) -> None: ...
    def move(self, file: File, target: str) -> None:
        """Rename an open file; the handle stays valid."""

    def remove(self, path: str) -> None:
        """Remove a file if it exists."""

    def remove_dir(self, path: str) -> None:
        """Remove a directory with its content."""

    def free_bytes(self, path: str) -> tuple[int, int]:
        """(size of the device of a directory, bytes that this process can still write there)."""
