"""The folders of a Parquet table: how they are listed, committed and removed.

    table/ottla_batch=41/part-….parquet       the rows of a batch, in a plain table
    table/changes-0000000041/part-….parquet   the last row of each key of a batch, in a current table
    table/state-0000000040/part-….parquet     a whole current table; replaces all changes up to its number
    table/…/_ottla.json                       sink id, batch id, query id, source offsets, key columns
    table/_arriving-…/                        not committed: being written or abandoned; removed by the next batch
    table/_arriving-…/_owner                  exists until the folder is removed
    table/_removing-…/                        being removed

A folder is written under a temporary name, synced, and renamed. The rename commits rows, batch id and offsets
together. A name can be taken only once, so the second of two drivers fails. While a driver writes, another
may remove its folder, and its tasks re-create the folder with the rest of the batch. A folder without its
`_owner` file is therefore refused. A reader lists the table once, and so sees only whole batches. The file
system needs an atomic rename: a disk or NFS, not an object store. Folders are numbered consecutively. The
number is the batch id, unless another query took over the table.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ottla.spark.table_sinks.errors import BatchRefused

BATCH: Final = "ottla_batch"
PLAIN: Final = f"{BATCH}="
CHANGES: Final = "changes-"
STATE: Final = "state-"
ARRIVING: Final = "_arriving-"
REMOVING: Final = "_removing-"
_OWNER: Final = "_owner"
_MARK: Final = "_ottla.json"
_NAMES: Final = re.compile(rf"({PLAIN}|{CHANGES}|{STATE})(\d+)")


def local_path(path: str) -> Path | None:
    """The path on this machine; None if it is remote."""
    scheme, colon, rest = path.partition(":")
    if not colon or "/" in scheme:
        return Path(path)
    return Path("/" + rest.lstrip("/")) if scheme == "file" else None


@dataclass(frozen=True, slots=True, order=True)
class Folder:
    number: int
    path: Path

    def mark(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / _MARK).read_text())
        return found


@dataclass(frozen=True, slots=True)
class TableFolders:
    """The folders of a table at one moment, each kind sorted."""

    plain: tuple[Folder, ...]
    changes: tuple[Folder, ...]
    states: tuple[Folder, ...]

    @property
    def kind(self) -> str | None:
        if self.plain:
            return "plain"
        return "current" if self.changes or self.states else None

    @property
    def last(self) -> Folder | None:
        """The folder of the last batch."""
        return max((*self.plain, *self.changes, *self.states), default=None)

    @property
    def read(self) -> tuple[Folder, ...]:
        """The folders that make up the table, oldest first."""
        if not self.states:
            return (*self.plain, *self.changes)
        state = self.states[-1]
        return (state, *(each for each in self.changes if each.number > state.number))


def list_table(root: Path) -> TableFolders:
    found: dict[str, list[Folder]] = {PLAIN: [], CHANGES: [], STATE: []}
    for name in os.listdir(root) if root.is_dir() else ():
        match = _NAMES.fullmatch(name)
        if match is not None:
            found[match[1]].append(Folder(int(match[2]), root / name))
    return TableFolders(*(tuple(sorted(found[each])) for each in (PLAIN, CHANGES, STATE)))


def folder_of(root: Path, kind: str, number: int) -> Path:
    """The path of a committed folder.

    In a plain table the number is a partition column, without leading zeros.
    """
    return root / (f"{kind}{number}" if kind == PLAIN else f"{kind}{number:010}")


def spark_path(path: Path) -> str:
    """The path with a scheme: Spark would resolve it on its default file system."""
    return f"file://{path}"


def arriving_folder(root: Path) -> Path:
    """Create a new folder to write to."""
    folder = root / f"{ARRIVING}{secrets.token_hex(8)}"
    folder.mkdir(parents=True)
    (folder / _OWNER).touch()
    return folder


def commit_folder(arriving: Path, folder: Path, mark: Mapping[str, Any]) -> None:
    """Commit a folder. Raises `BatchRefused` if another driver was first."""
    try:
        (arriving / _MARK).write_text(json.dumps(mark))
        # Removing the folder also removes this file. A folder without it is incomplete.
        (arriving / _OWNER).unlink()
        for path in arriving.iterdir():
            _sync(path)
        _sync(arriving)
        arriving.rename(folder)
    except FileNotFoundError:
        raise BatchRefused(
            f"the files for {folder} were removed, because another driver runs this query: stop this one"
        ) from None
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise BatchRefused(
            f"{folder} already exists, because another driver runs this query: stop this one"
        ) from None
    _sync(folder.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(root: Path) -> None:
    """Remove abandoned folders. A driver that still writes to one of them can no longer commit it."""
    for path in root.glob(f"{ARRIVING}*"):
        _take_away(path)
    for path in root.glob(f"{REMOVING}*"):
        shutil.rmtree(path, ignore_errors=True)


def _take_away(path: Path) -> None:
    """Rename a folder, then remove it: a half-removed folder must not be committed under its old name."""
    gone = path.with_name(f"{REMOVING}{secrets.token_hex(8)}")
    # Another process removed or committed it first.
    with contextlib.suppress(FileNotFoundError):
        path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def remove_superseded(root: Path, before_s: float) -> None:
    """Remove folders that a state from before that time replaces.

    Readers that still use them started earlier.
    """
    listing = list_table(root)
    old = [state for state in listing.states if state.path.stat().st_mtime < before_s]
    if not old:
        return
    for each in (*listing.changes, *listing.states):
        if each.number < old[-1].number or (
            each.number == old[-1].number and each.path.name.startswith(CHANGES)
        ):
            _take_away(each.path)
