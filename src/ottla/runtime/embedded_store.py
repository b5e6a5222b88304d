"""The metadata log of a single node: a journal in its own directory, behind the same port as a cluster's store.

    metadata.journal     entries:  length u32 | CRC-32C u32 of the payload | payload: one JSON record a line

An entry is what was proposed together: it is there whole or, after a crash, not at all. `append` returns once it is
durable. A torn last entry is cut off at start; damage before the end is refused, because later records depend on it.
Synchronous over the Disk port: the shell calls it in a thread, the simulator directly.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from ottla.controller.records import Record, decode, encode
from ottla.ports.disk import Disk, DiskError

JOURNAL: Final = "metadata.journal"
_HEAD: Final = struct.Struct(">II")


class DamagedJournal(Exception):
    """The journal has a bad entry with good ones behind it."""


class EmbeddedStore:
    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{JOURNAL}"
        self._size = 0
        self.records_on_disk = 0

    def load(self) -> list[Record | None]:
        """All records, oldest first."""
        self._disk.make_dir(self._directory)
        data = self._disk.read_file(self._path)
        self._file = self._disk.open(self._path, create=True)
        if data is None:
            self._disk.sync(self._file)
            self._disk.sync_dir(self._directory)
            data = b""
        records: list[Record | None] = []
        at = 0
        while len(data) - at >= _HEAD.size:
            length, crc = _HEAD.unpack_from(data, at)
            payload = data[at + _HEAD.size : at + _HEAD.size + length]
            if len(payload) < length or crc32c(payload) != crc:
                if at + _HEAD.size + length < len(data) and length:
                    raise DamagedJournal(
                        f"{self._path} is damaged at byte {at} of {len(data)}: restore it from a copy, "
                        "or move the data directory away and start anew"
                    )
                break
            records += [decode(line) for line in payload.split(b"\n")]
            at += _HEAD.size + length
        if at < len(data):
            self._disk.truncate(self._file, at)
        self._size = at
        self.records_on_disk = len(records)
        return records

    def append(self, records: list[Record]) -> None:
        """Make one entry durable. Raises DiskError; then the journal is as before."""
        payload = b"\n".join(encode(record) for record in records)
        end = self._disk.write(self._file, self._size, (_HEAD.pack(len(payload), crc32c(payload)), payload))
        try:
            self._disk.sync(self._file)
        except DiskError:
            self._disk.truncate(self._file, self._size)
            raise
        self._size = end
        self.records_on_disk += len(records)

    def rewrite(self, records: list[Record]) -> None:
        """Replace the journal by these records: what a long history amounts to."""
        payload = b"\n".join(encode(record) for record in records)
        data = _HEAD.pack(len(payload), crc32c(payload)) + payload if records else b""
        self._disk.close(self._file)
        self._disk.replace_file(self._path, data)
        self._file = self._disk.open(self._path)
        self._size = len(data)
        self.records_on_disk = len(records)

    def close(self) -> None:
        self._disk.close(self._file)
