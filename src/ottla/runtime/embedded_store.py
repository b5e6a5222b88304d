"""The metadata journal of a single broker.

    metadata.journal     entries:  length u32 | CRC-32C u32 of the payload | payload: one JSON record per line

The records of an entry were proposed together: after a crash all of them exist, or none. `append` returns
once the entry is durable. At the start an incomplete last entry is truncated (and kept in a file beside the
journal). Damage before the end stops the start, because later records depend on earlier ones. Synchronous
over the Disk port: the runtime calls it in a thread, the simulator directly.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from crc32c import crc32c

from ottla.metadata.records import Record, decode, encode
from ottla.ports.disk import Disk, DiskError, File

JOURNAL: Final = "metadata.journal"
#: Suffix of the file beside the journal with the bytes of the last truncation.
_CUT: Final = ".cut"
_HEAD: Final = struct.Struct(">II")
#: Every payload starts with these bytes.
_FIRST_BYTES: Final = b'{"kind":'


class DamagedJournal(Exception):
    """The journal has a damaged entry with whole entries after it."""


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
            # The first start, or a start after a crash before the first entry: no name is durable yet.
            self._disk.sync_dir(_above(self._directory))
            data = b""
        records, at = read_journal(data)
        if at < len(data):
            if entry_after(data, at):
                raise DamagedJournal(
                    f"{self._path} is damaged at byte {at} of {len(data)}: restore it from a backup, "
                    "or move the data directory away and start with an empty one"
                )
            kept = self._keep_aside(data[at:])
            self._disk.truncate(self._file, at)
            self._say(
                f"{self._path}: truncated {len(data) - at} of {len(data)} bytes at the end, an incomplete "
                "entry, most likely "
                f"of a write that a crash interrupted; {len(records)} records before it are complete. "
                + (f"The bytes are kept in {self._path}{_CUT}" if kept else "The bytes could not be kept")
            )
        # After a kill the last entry, or the name of a rewritten journal, may be only in the page cache. Both
        # are used from here on, so they must be durable.
        self._disk.sync(self._file)
        self._disk.sync_dir(self._directory)
        self._size = at
        self.records_on_disk = len(records)
        return records

    def _keep_aside(self, rest: bytes) -> bool:
        """Keep the truncated bytes: most likely an unacknowledged entry, but perhaps damage."""
        try:
            file = self._disk.open(f"{self._path}{_CUT}", create=True)
            self._disk.truncate(file, self._disk.write(file, 0, (rest,)))
            self._disk.close(file)
        except DiskError:
            return False
        return True

    def append(self, records: list[Record]) -> None:
        """Make one entry durable. After a DiskError the journal is unchanged."""
        if self._failed is not None:
            raise DiskError(self._failed)
        payload = b"\n".join(encode(record) for record in records)
        end = self._disk.write(self._file, self._size, (_HEAD.pack(len(payload), crc32c(payload)), payload))
        try:
            self._disk.sync(self._file)
        except DiskError as error:
            if not error.short:
                # R11: a failed sync is final, whatever a second sync would return.
                self._failed = (
                    f"the metadata journal is read-only since a sync failed: {error}. Restart the broker"
                )
            try:
                self._disk.truncate(self._file, self._size)
            except DiskError as second:
                # The next start would read a rejected entry.
                self._failed = self._failed or f"the metadata journal could not be truncated: {second}"
            raise
        self._size = end
        self.records_on_disk += len(records)

    def rewrite(self, records: list[Record]) -> None:
        """Replace the journal by these records, the current state after a long history."""
        if self._failed is not None:
            raise DiskError(self._failed)
        payload = b"\n".join(encode(record) for record in records)
        data = _HEAD.pack(len(payload), crc32c(payload)) + payload if records else b""
        try:
            self._disk.replace_file(self._path, data)
        except DiskError as error:
            if not error.passing:
                # It is unknown which of the two files has the name.
                self._failed = f"the metadata journal could not be replaced: {error}"
            raise
        self._disk.close(self._file)
        self._file = self._disk.open(self._path)
        self._size = len(data)
        self.records_on_disk = len(records)

    def close(self) -> None:
        self._disk.close(self._file)


def read_journal(data: bytes) -> tuple[list[Record | None], int]:
    """The records of all whole entries, and the end of the last one."""
    records: list[Record | None] = []
    at = 0
    while (payload := _payload(data, at)) is not None:
        records += [decode(line) for line in payload.split(b"\n")]
        at += _HEAD.size + len(payload)
    return records, at


def _payload(data: bytes, at: int) -> bytes | None:
    """The payload of the entry at a position, or None if the entry is incomplete or damaged."""
    if len(data) - at < _HEAD.size:
        return None
    length, crc = _HEAD.unpack_from(data, at)
    payload = data[at + _HEAD.size : at + _HEAD.size + length]
    # A power cut may leave zeros, which look like an empty payload with a correct CRC.
    return payload if payload and len(payload) == length and crc32c(payload) == crc else None


def entry_after(data: bytes, at: int) -> bool:
    """Whether a whole entry exists anywhere after a damaged one, whose length cannot be trusted."""
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
