"""The Disk port in memory, with separate written and durable states, and power cuts (R11, R12, R13).

A file has the bytes that readers see and those that a power cut leaves; only `sync(file)` changes the latter.
A directory has the same two states for its names, and only `sync_dir` changes the durable one. Syncing a file
does not make its name durable, nor the other way round. `crash` drops what is not durable, in one of two
ways:

    strict   exactly the durable state remains
    nasty    what POSIX allows beyond it: any unsynced write may remain, complete, in part (zeros in place of
             the rest) or not at all, and any unsynced change of a name, for each file and directory separately

A failed sync is final, as on Linux: what it covered stays visible, and no later sync makes it durable.

Every operation that changes something is a step. `cut_after` makes a step the last one: it raises PowerCut,
which the core does not catch, so a cut can fall between any two operations. Each sync has a site, the line
that requested it. The syncs of one site can be skipped (`ignored_site`), to prove that a test notices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Final, TypeAlias, TypeVar, cast

from ottla.ports.disk import Buffer, DiskError, File

#: The unit of a torn write: some sectors remain, with zeros in place of the others. Smaller than a real
#: sector (512), because the simulated batches are small.
_SECTOR_BYTES: Final = 64
#: The reported size of the device. It is full when a test says so, not when this much is written.
_DEVICE_BYTES: Final = 1 << 40


_Change = TypeVar("_Change")


class PowerCut(BaseException):
    """The machine stopped during an operation. Not an Exception: nothing may handle it."""


class Content:
    """The bytes of a file: written, durable, and the changes in between, oldest first."""

    __slots__ = ("changes", "data", "durable")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        #: (position, bytes) of a write; (size, None) of a truncation.
        self.changes: list[tuple[int, bytes | None]] = []


class Directory:
    """Names, likewise. A change is (removed name or "", added name or "", the file)."""

    __slots__ = ("changes", "durable", "names")

    def __init__(self) -> None:
        self.names: dict[str, Entry] = {}
        self.durable: dict[str, Entry] = {}
        self.changes: list[tuple[str, str, Entry]] = []

    def change(self, gone: str, come: str, entry: Entry) -> None:
        _rename(self.names, gone, come, entry)
        self.changes.append((gone, come, entry))


Entry: TypeAlias = Content | Directory


class SimFile:
    """A handle. It refers to the file that it opened, whatever happens to the name."""

    __slots__ = ("content", "path")

    def __init__(self, path: str, content: Content | None) -> None:
        self.path = path
        self.content = content


class SimDisk:
    def __init__(self, random: Random, *, strict: bool, log: Callable[[str], None] | None = None) -> None:
        self._random = random
        self._log = log
        self.strict = strict
        self.root = Directory()
        #: Number of changing operations so far, and the last one before a cut.
        self.steps = 0
        self.cut_after: int | None = None
        #: The same for syncs of some paths only: most can be lost just before a sync.
        self.cut_before_sync: tuple[int, str] | None = None
        #: Whether the device is full: writes that need space fail.
        self.full = False
        #: The sync that fails: a part of its path, or None.
        self.failing_sync: str | None = None
        #: Sites of all syncs, in order of appearance; the skipped one, and how often it was skipped.
        self.sites: dict[str, int] = {}
        self.ignored_site: str | None = None
        self.ignored = 0
        self.on_ignored: Callable[[], None] | None = None
        self._site: str | None = None

    # --- files ------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimFile:
        found = self._find(path)
        if found is None and create:
            self._step("create", path)
            if self.full:
                raise DiskError(f"{path}: no space left on device", full=True)
            parent, name = self._parent(path)
            found = Content()
            parent.change("", name, found)
        # As on a real disk, an existing file is looked up at its first use.
        return SimFile(path, found if isinstance(found, Content) else None)

    def close(self, file: File) -> None:
        pass

    def write(self, file: File, position: int, parts: Sequence[Buffer]) -> int:
        content = self._content(file)
        data = b"".join(parts)
        end = position + len(data)
        self._step("write", file.path, f" {position}..{end}")
        if self.full and end > len(content.data):
            raise DiskError(f"{file.path}: no space left on device", full=True)
        _write(content.data, position, data)
        content.changes.append((position, data))
        return end

    def read(self, file: File, position: int, size: int) -> bytes:
        return bytes(self._content(file).data[position : position + size])

    def size(self, file: File) -> int:
        return len(self._content(file).data)

    def truncate(self, file: File, size: int) -> None:
        content = self._content(file)
        if len(content.data) == size:
            return
        self._step("truncate", file.path, f" to {size}")
        _truncate(content.data, size)
        content.changes.append((size, None))

    def sync(self, file: File) -> None:
        site = self._asked()
        content = self._content(file)
        self._step("sync", file.path)
        if self.failing_sync is not None and self.failing_sync in file.path:
            content.changes.clear()
            raise DiskError(f"{file.path}: input/output error", broken=True, path=file.path)
        if self._leaves_out(site):
            return
        for position, data in content.changes:
            _apply(content.durable, position, data)
        content.changes.clear()

    def sync_dir(self, path: str) -> None:
        site = self._asked()
        directory = self._directory(path)
        if directory is None:
            return  # removed meanwhile: nothing to sync
        self._step("sync_dir", path)
        if self._leaves_out(site):
            return
        directory.durable = dict(directory.names)
        directory.changes.clear()

    def sync_device(self, path: str) -> None:
        site = self._asked()
        self._step("sync_device", path)
        with self.at(site):
            self._sync_below(path)

    def _sync_below(self, path: str) -> None:
        directory = self._directory(path)
        for name, entry in list(directory.names.items()) if directory is not None else ():
            if isinstance(entry, Directory):
                self._sync_below(f"{path}/{name}")
            else:
                self.sync(self.open(f"{path}/{name}"))
        self.sync_dir(path)

    # --- names ------------------------------------------------------------------------------------------------

    def read_file(self, path: str) -> bytes | None:
        found = self._find(path)
        return bytes(found.data) if isinstance(found, Content) else None

    def replace_file(self, path: str, data: bytes) -> None:
        """The same steps as the real one, so that skipping one of its syncs is noticed."""
        temporary = f"{path}.tmp"
        file = self.open(temporary, create=True)
        self.truncate(file, 0)
        self.write(file, 0, (data,))
        with self.at("replace_file:sync"):
            self.sync(file)
        self.rename(temporary, path)
        with self.at("replace_file:sync_dir"):
            self.sync_dir(path.rpartition("/")[0])

    def copy(self, source: str, target: str, *, start: int, end: int) -> None:
        data = self.read(self.open(source), start, end - start)
        if len(data) < end - start:
            raise DiskError(f"{source} ends before {end}")
        file = self.open(target, create=True)
        if data:
            self.write(file, start, (data,))

    def list(self, path: str) -> list[str]:
        directory = self._directory(path)
        return sorted(directory.names) if directory is not None else []

    def make_dir(self, path: str) -> None:
        directory = self.root
        for name in _parts(path):
            entry = directory.names.get(name)
            if entry is None:
                self._step("make_dir", path)
                entry = Directory()
                directory.change("", name, entry)
            if not isinstance(entry, Directory):
                raise DiskError(f"{path}: not a directory")
            directory = entry

    def rename(self, source: str, target: str) -> None:
        entry = self._find(source)
        if entry is None:
            raise DiskError(f"{source}: no such file or directory")
        self._step("rename", source, f" to {target}")
        parent, old = self._parent(source)
        parent_of_target, new = self._parent(target)
        if parent is not parent_of_target:
            raise DiskError(f"{source}: renaming into another directory is not simulated")
        there = parent.names.get(new)
        if isinstance(there, Directory) and there.names:
            raise DiskError(f"{target}: directory not empty")
        parent.change(old, new, entry)

    def move(self, file: File, target: str) -> None:
        file = cast(SimFile, file)
        self.rename(file.path, target)
        file.path = target

    def remove(self, path: str) -> None:
        entry = self._find(path)
        if entry is not None:
            self._step("remove", path)
            parent, name = self._parent(path)
            parent.change(name, "", entry)

    def remove_dir(self, path: str) -> None:
        directory = self._directory(path)
        if directory is None:
            raise DiskError(f"{path}: no such file or directory")
        for name in sorted(directory.names):
            if isinstance(directory.names[name], Directory):
                self.remove_dir(f"{path}/{name}")
            else:
                self.remove(f"{path}/{name}")
        self.remove(path)

    def free_bytes(self, path: str) -> tuple[int, int]:
        if self._directory(path) is None:
            raise DiskError(f"{path}: no such file or directory")
        return _DEVICE_BYTES, 0 if self.full else _DEVICE_BYTES

    # --- not part of the port -----------------------------------------------------------------------------------

    @contextmanager
    def at(self, site: str) -> Iterator[None]:
        """Syncs inside belong to this site, whatever line calls them."""
        before, self._site = self._site, site
        try:
            yield
        finally:
            self._site = before

    def crash(self) -> None:
        """Power cut: what was not durable is gone, or, on a nasty disk, perhaps gone."""
        self._crash_directory(self.root, {})

    def _crash_directory(self, directory: Directory, seen: dict[int, None]) -> None:
        names = dict(directory.durable)
        for gone, come, entry in self._survivors(directory.changes):
            _rename(names, gone, come, entry)
        directory.names = names
        directory.durable = dict(names)
        directory.changes = []
        for name in sorted(names):
            entry = names[name]
            if id(entry) in seen:
                continue
            seen[id(entry)] = None
            if isinstance(entry, Directory):
                self._crash_directory(entry, seen)
            else:
                self._crash_content(entry)

    def _crash_content(self, content: Content) -> None:
        for position, data in self._survivors(content.changes):
            if data is None or self._random.random() < 0.6:
                _apply(content.durable, position, data)
            else:
                self._tear(content.durable, position, data)
        content.data = bytearray(content.durable)
        content.changes = []

    def _survivors(self, changes: Sequence[_Change]) -> Sequence[_Change]:
        """The unsynced changes that remain: none, all, the oldest few, or any."""
        if self.strict or not changes:
            return ()
        choice = self._random.randrange(6)
        if choice == 0:
            return ()
        if choice == 1:
            return changes
        if choice <= 3:
            return changes[: self._random.randrange(len(changes) + 1)]
        return [change for change in changes if self._random.random() < 0.5]

    def _tear(self, durable: bytearray, position: int, data: bytes) -> None:
        """Parts of a write remain; the file may have its full size nevertheless."""
        if self._random.random() < 0.5:
            _write(durable, position + len(data), b"")
        start = 0
        while start < len(data):
            end = min(len(data), start + _SECTOR_BYTES - (position + start) % _SECTOR_BYTES)
            if self._random.random() < 0.5:
                _write(durable, position + start, data[start:end])
            start = end

    # --- inside -------------------------------------------------------------------------------------------------

    def _step(self, kind: str, path: str, more: str = "") -> None:
        self.steps += 1
        if self._log is not None:
            self._log(f"disk: {kind} {path}{more}")
        if self.cut_after is not None and self.steps >= self.cut_after:
            raise PowerCut
        if self.cut_before_sync is not None and kind in ("sync", "sync_dir"):
            left, part = self.cut_before_sync
            if part in path:
                self.cut_before_sync = left - 1, part
                if left <= 1:
                    raise PowerCut

    def _asked(self) -> str:
        if self._site is not None:
            site = self._site
        else:
            frame = sys._getframe(2)
            path = frame.f_code.co_filename.rpartition("/ottla/")[2]
            site = f"{path}:{frame.f_code.co_name}:{frame.f_lineno}"
        self.sites[site] = self.sites.get(site, 0) + 1
        return site

    def _leaves_out(self, site: str) -> bool:
        if site != self.ignored_site:
            return False
        self.ignored += 1
        if self.on_ignored is not None:
            self.on_ignored()
        return True

    def heal(self) -> None:
        """No more cuts and faults from here on."""
        self.cut_after = self.cut_before_sync = self.failing_sync = None
        self.full = False

    def _find(self, path: str) -> Entry | None:
        entry: Entry | None = self.root
        for name in _parts(path):
            entry = entry.names.get(name) if isinstance(entry, Directory) else None
        return entry

    def _directory(self, path: str) -> Directory | None:
        found = self._find(path)
        return found if isinstance(found, Directory) else None

    def _parent(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rpartition("/")
        directory = self._directory(parent)
        if directory is None:
            raise DiskError(f"{parent}: no such file or directory")
        return directory, name

    def _content(self, file: File) -> Content:
        file = cast(SimFile, file)
        if file.content is None:
            found = self._find(file.path)
            if not isinstance(found, Content):
                raise DiskError(f"{file.path}: no such file or directory")
            file.content = found
        return file.content


def _parts(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def _write(target: bytearray, position: int, data: bytes) -> None:
    if position > len(target):
        target.extend(bytes(position - len(target)))
    target[position : position + len(data)] = data


def _truncate(target: bytearray, size: int) -> None:
    if size > len(target):
        target.extend(bytes(size - len(target)))
    else:
        del target[size:]


def _apply(target: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        _truncate(target, position)
    else:
        _write(target, position, data)


def _rename(names: dict[str, Entry], gone: str, come: str, entry: Entry) -> None:
    if gone and names.get(gone) is entry:
        del names[gone]
    if come:
        names[come] = entry
