"""The metadata log of a single node: a journal in its own directory, behind the same port as a cluster's store.

    metadata.journal     entries:  length u32 | CRC-32C u32 of the payload | payload: one JSON record a line

An entry is what was proposed together: it is there whole or, after a crash, not at all. `append` returns once it is
durable. A torn last entry is cut off at start (and kept beside it); damage before the end is refused, because later
records depend on it. Synchronous over the Disk port: the shell calls it in a thread, the simulator directly.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from crc32c import crc32c

from ottla.metadata.records import Record, decode, encode
from ottla.ports.disk import Disk, DiskError, File

JOURNAL: Final = "metadata.journal"
#: Beside the journal: what the last start that had to cut it cut off.
_CUT: Final = ".cut"
_HEAD: Final = struct.Struct(">II")
#: What the payload of every entry begins with.
_FIRST_BYTES: Final = b'{"kind":'


class DamagedJournal(Exception):
    """The journal has a bad entry with good ones behind it."""


class EmbeddedStore:
    def __init__(
        self, disk: Disk, directory: str, *, say: Callable[[str], None] = lambda _text: None
    ) -> None:
        self._disk = disk
        self._say = say
        self._directory = directory
        self._path = f"{directory}/{JOURNAL}"
        self._file: File
        self._size = 0
        #: Why nothing more can be written, once a sync has failed.
        self._failed: str | None = None
        self.records_on_disk = 0

    def load(self) -> list[Record | None]:
        """All records, oldest first."""
        self._disk.make_dir(self._directory)
        data = self._disk.read_file(self._path)
        self._file = self._disk.open(self._path, create=True)
        if not data:
            # The first start, or one after it that died before its first entry: no name is durable yet.
            self._disk.sync_dir(_above(self._directory))
            data = b""
        records, at = read_journal(data)
        if at < len(data):
            if entry_after(data, at):
                raise DamagedJournal(
                    f"{self._path} is damaged at byte {at} of {len(data)}: restore it from a copy, "
                    "or move the data directory away and start anew"
                )
            kept = self._keep_aside(data[at:])
            self._disk.truncate(self._file, at)
            self._say(
                f"{self._path}: the last {len(data) - at} of {len(data)} bytes were not a whole entry, most likely half "
                f"written when the broker ended, and were cut off; {len(records)} records before them are whole. "
                + (f"The bytes are kept in {self._path}{_CUT}" if kept else "The bytes could not be kept")
            )
        # A process that was killed may have left its last entry, or the name of a journal written anew, in the page cache
        # alone, and we act on it from now on.
        self._disk.sync(self._file)
        self._disk.sync_dir(self._directory)
        self._size = at
        self.records_on_disk = len(records)
        return records

    def _keep_aside(self, rest: bytes) -> bool:
        """What is cut off is most likely half an entry that nobody relied on; but if it was damage, people may want it."""
        try:
            file = self._disk.open(f"{self._path}{_CUT}", create=True)
            self._disk.truncate(file, self._disk.write(file, 0, (rest,)))
            self._disk.close(file)
        except DiskError:
            return False
        return True

    def append(self, records: list[Record]) -> None:
        """Make one entry durable. Raises DiskError; then the journal is as before."""
        if self._failed is not None:
            raise DiskError(self._failed)
        payload = b"\n".join(encode(record) for record in records)
        end = self._disk.write(self._file, self._size, (_HEAD.pack(len(payload), crc32c(payload)), payload))
        try:
            self._disk.sync(self._file)
        except DiskError as error:
            if not error.short:
                # R11: a failed sync is final, whatever a second one would say.
                self._failed = f"the metadata journal is not written any more since a sync failed: {error}"
            try:
                self._disk.truncate(self._file, self._size)
            except DiskError as second:
                # A start would find an entry that was refused.
                self._failed = self._failed or f"the metadata journal could not be cut back: {second}"
            raise
        self._size = end
        self.records_on_disk += len(records)

    def rewrite(self, records: list[Record]) -> None:
        """Replace the journal by these records: what a long history amounts to."""
        if self._failed is not None:
            raise DiskError(self._failed)
        payload = b"\n".join(encode(record) for record in records)
        data = _HEAD.pack(len(payload), crc32c(payload)) + payload if records else b""
        try:
            self._disk.replace_file(self._path, data)
        except DiskError as error:
            if not error.passing:
                # Which of the two files has the name is not known any more.
                self._failed = f"the metadata journal could not be replaced: {error}"
            raise
        self._disk.close(self._file)
        self._file = self._disk.open(self._path)
        self._size = len(data)
        self.records_on_disk = len(records)

    def close(self) -> None:
        self._disk.close(self._file)


def read_journal(data: bytes) -> tuple[list[Record | None], int]:
    """The records of all whole entries, and where the last of them ends."""
    records: list[Record | None] = []
    at = 0
    while (payload := _payload(data, at)) is not None:
        records += [decode(line) for line in payload.split(b"\n")]
        at += _HEAD.size + len(payload)
    return records, at


def _payload(data: bytes, at: int) -> bytes | None:
    """The payload of the entry at a position, or None if there is no whole one."""
    if len(data) - at < _HEAD.size:
        return None
    length, crc = _HEAD.unpack_from(data, at)
    payload = data[at + _HEAD.size : at + _HEAD.size + length]
    # Zeros, which is what a power cut may leave of a last entry, would be an empty payload and its right CRC.
    return payload if payload and len(payload) == length and crc32c(payload) == crc else None


def entry_after(data: bytes, at: int) -> bool:
    """Whether a whole entry stands anywhere behind a bad one, whose length may be the very thing that is wrong."""
    found = data.find(_FIRST_BYTES, at + _HEAD.size)
    while found >= 0:
        start = found - _HEAD.size
        if start > at and _payload(data, start) is not None:
            return True
        found = data.find(_FIRST_BYTES, found + 1)
    return False


def _above(directory: str) -> str:
    above, slash, _ = directory.rstrip("/").rpartition("/")
    return above or slash or "."
