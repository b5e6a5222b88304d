"""The folders that a table of files is made of: which are there, how one comes to count, which may go.

    table/ottla_batch=41/part-….parquet       the rows of a batch, of a plain table
    table/changes-0000000041/part-….parquet   the last row of each key of a batch, of a current table
    table/state-0000000040/part-….parquet     a whole current table; it stands for all changes up to its number
    table/…/_ottla.json                       sink id, batch id, query id, the source's offsets, the key's columns
    table/_arriving-…/                        what is being written, or was left: it does not count, and the next batch removes it
    table/_arriving-…/_owner                  there as long as nobody has removed the folder
    table/_removing-…/                        what is on its way out

A folder is written under another name, synced, and then renamed: that one rename is the commit of rows, batch id and offsets together. A name
can be taken only once, so of two drivers one comes too late. One that is still writing may lose its folder to the other at any moment, and its tasks
then make it anew, with what is left of the batch; so a folder without the file that it was made with is refused. A reader lists the table once, and so sees whole batches. This needs a
file system whose rename is atomic: a disk or NFS, not an object store. Folders are numbered as they come, which is a batch's id
unless another query took the table over.
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
    """Where that is on this machine; None if it is elsewhere."""
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
    """What a table's folder held at one moment, each part in order."""

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
        """That of the last batch."""
        return max((*self.plain, *self.changes, *self.states), default=None)

    @property
    def read(self) -> tuple[Folder, ...]:
        """What makes the table, the oldest first."""
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
    """The number of a plain table's folder is the value of a column to whoever reads it, and has no zeros before it."""
    return root / (f"{kind}{number}" if kind == PLAIN else f"{kind}{number:010}")


def spark_path(path: Path) -> str:
    """For Spark, to which a path alone would be one of its default file system."""
    return f"file://{path}"


def arriving_folder(root: Path) -> Path:
    """A new one, to add files to."""
    folder = root / f"{ARRIVING}{secrets.token_hex(8)}"
    folder.mkdir(parents=True)
    (folder / _OWNER).touch()
    return folder


def let_count(arriving: Path, folder: Path, mark: Mapping[str, Any]) -> None:
    """The commit; raises `BatchRefused` if another was first."""
    try:
        (arriving / _MARK).write_text(json.dumps(mark))
        # Whoever removes the folder takes this along; what is there without it is not all that was written.
        (arriving / _OWNER).unlink()
        for path in arriving.iterdir():
            _sync(path)
        _sync(arriving)
        arriving.rename(folder)
    except FileNotFoundError:
        raise BatchRefused(
            f"what was written for {folder} has been removed: another driver has gone on with this query, and this one must end"
        ) from None
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise BatchRefused(
            f"{folder} is there already: another driver has gone on with this query, and this one must end"
        ) from None
    _sync(folder.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(root: Path) -> None:
    """Whoever was writing into one of them cannot make it count any more."""
    for path in root.glob(f"{ARRIVING}*"):
        _take_away(path)
    for path in root.glob(f"{REMOVING}*"):
        shutil.rmtree(path, ignore_errors=True)


def _take_away(path: Path) -> None:
    """Out of sight at once, then away: what is removed piece by piece under its name could be renamed, and count, before the last piece is gone."""
    gone = path.with_name(f"{REMOVING}{secrets.token_hex(8)}")
    # Another may have been first, or it counts now.
    with contextlib.suppress(FileNotFoundError):
        path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def remove_superseded(root: Path, before_s: float) -> None:
    """Remove what a state from before that time stands for: whoever still reads it has begun before then."""
    listing = list_table(root)
    old = [state for state in listing.states if state.path.stat().st_mtime < before_s]
    if not old:
        return
    for each in (*listing.changes, *listing.states):
        if each.number < old[-1].number or (
            each.number == old[-1].number and each.path.name.startswith(CHANGES)
        ):
            _take_away(each.path)
