"""Metadata snapshots in ZooKeeper: write in chunks, read, and delete replaced entries.

A snapshot is published once /metadata/end names it. The next trim deletes unpublished snapshots of earlier
controllers. Every write includes the fence of its controller (a check of /controller_epoch) and raises
BadVersionError after another controller has taken over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from kazoo.exceptions import NoNodeError

from ottla.metadata.records import Record
from ottla.runtime import zookeeper_layout as layout
from ottla.runtime.zookeeper_link import Link

#: Entries before the snapshot that are kept, so that a briefly disconnected broker can continue to read.
ENTRIES_KEPT: Final = 100
#: Deletions per multi.
_DELETIONS: Final = 100


async def write_snapshot(link: Link, fence: tuple[Any, ...], records: Sequence[Record], offset: int) -> int:
    """Write it, unpublished; returns the number of chunks."""
    await _delete_snapshot(link, fence, offset)
    await link.commit([fence, ("create", layout.snapshot(offset), b"")])
    number = 0
    for chunk in layout.chunks_of(records):
        await link.commit([fence, ("create", layout.chunk(offset, number), chunk)])
        number += 1
    return number


async def read_snapshot(link: Link, offset: int) -> list[Record] | None:
    """Its records, or None if a newer snapshot has replaced it."""
    records: list[Record] = []
    try:
        data, _ = await link.get(layout.snapshot(offset))
        for number in range(layout.decode_snapshot(data)):
            data, _ = await link.get(layout.chunk(offset, number))
            records += layout.decoded(data.split(b"\n"))
            # Yield to other tasks: each chunk takes milliseconds to decode.
            await asyncio.sleep(0)
    except NoNodeError:
        return None
    return records


async def trim(link: Link, fence: tuple[Any, ...], offset: int) -> None:
    """Delete the entries that the published snapshot replaces, and all other snapshots."""
    firsts = sorted(int(name) for name in await link.children(layout.LOG))
    old = [first for first in firsts if first < offset][:-ENTRIES_KEPT]
    for start in range(0, len(old), _DELETIONS):
        # Oldest first, so that the remaining entries have no gaps if this is interrupted.
        deletions = [("delete", layout.entry(first)) for first in old[start : start + _DELETIONS]]
        await link.commit([fence, *deletions])
    for name in await link.children(layout.SNAPSHOTS):
        if int(name) != offset:
            await _delete_snapshot(link, fence, int(name))


async def _delete_snapshot(link: Link, fence: tuple[Any, ...], offset: int) -> None:
    try:
        numbers = sorted(map(int, await link.children(layout.snapshot(offset))))
    except NoNodeError:
        return
    for start in range(0, len(numbers), _DELETIONS):
        chunks = [("delete", layout.chunk(offset, number)) for number in numbers[start : start + _DELETIONS]]
        await link.commit([fence, *chunks])
    await link.commit([fence, ("delete", layout.snapshot(offset))])
