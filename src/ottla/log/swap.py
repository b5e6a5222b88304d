"""Putting a cleaned segment in the place of those it was made from, so that a crash at any moment finds one
or the other.

    <base>.log.<token>.cleaned    written and synced by a compaction; without meaning until it is renamed
    <base>.log.swap               counts from when this name is durable: it replaces every segment within its offsets
    <base>.log.deleted            on its way out; readers that were sent there may still be reading

1. `commit` renames the cleaned files to `.swap`, the log last, and the directory is synced. From here on a
   start finishes the swap.
2. `put_in_place` lets the log use the new segment, under these names, and renames the old files to
   `.deleted`.
3. The directory is synced: only when the old names are gone for good may the swap lose the name that says so.
   Otherwise a crash could bring an old segment back beside the cleaned one that holds its offsets.
4. `take_names` drops the `.swap`.

`finish_swaps` does at a start what a crash left undone. The names and their meaning are Kafka's, which
finishes a swap of ours as well. The steps that sync are jobs, those in between belong to the loop:
`broker/storage/log_cleaner.py` calls them. Snapshots of producers where no segment begins any more are left
to the next flush, which removes what nobody wants.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.log.compaction import Output, suffix
from ottla.log.names import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    offset_name,
    segment_base,
)
from ottla.log.partition_log import PartitionLog
from ottla.log.segment import Segment
from ottla.ports.disk import Disk

#: The log last: it is the one that counts.
_KINDS = (INDEX, TIME_INDEX, TXN_INDEX, LOG)


def commit(disk: Disk, directory: str, output: Output, token: str) -> None:
    stem = f"{directory}/{offset_name(output.base_offset)}"
    for kind in _KINDS:
        if kind != TXN_INDEX or output.has_aborted:
            disk.rename(stem + kind + suffix(token), stem + kind + SWAP)


def discard(disk: Disk, directory: str, base_offset: int, token: str) -> None:
    """Remove an output that nobody wants any more, under either of its names."""
    stem = f"{directory}/{offset_name(base_offset)}"
    # The log first: without it the others mean nothing.
    for kind in reversed(_KINDS):
        disk.remove(stem + kind + SWAP)
        disk.remove(stem + kind + suffix(token))


def open_swapped(log: PartitionLog, old: Sequence[Segment], output: Output) -> Segment:
    """The committed output as a segment, from what its maker said of it."""
    segment = Segment(
        log.disk, log.directory, output.base_offset,
        index_bytes_max=log.config.segment_index_bytes, created_ms=min(each.created_ms for each in old),
        create=False, suffix=SWAP,
    )  # fmt: skip
    segment.index.load()
    segment.times.load()
    if output.has_aborted:
        segment.aborted.load(output.base_offset)
    segment.size = output.size
    segment.next_offset = segment.synced_offset = output.next_offset
    segment.max_timestamp = output.max_timestamp
    segment.max_timestamp_offset = output.max_timestamp_offset
    segment.first_timestamp = output.first_timestamp
    return segment


def put_in_place(log: PartitionLog, old: Sequence[Segment], new: Segment) -> list[str]:
    """Let the log use the new segment; returns the paths of the old files, renamed, to be removed after a
    while.
    """
    first = log.segments.index(old[0])
    log.segments[first : first + len(old)] = [new]
    log.bases[first : first + len(old)] = [new.base_offset]
    gone = []
    for segment in old:
        segment.close()
        gone += [file.path for file in segment.files]
    for path in gone:
        log.disk.rename(path, path + DELETED)
    return [path + DELETED for path in gone]


def take_names(segment: Segment) -> None:
    # The log last, as in `commit`.
    for file in reversed(segment.files):
        segment.disk.move(file, file.path.removesuffix(SWAP))


def finish_swaps(disk: Disk, directory: str, names: list[str]) -> list[str]:
    """At a start: complete what was committed, forget what was not. Returns the names that are left."""
    if not any(name.endswith((SWAP, CLEANED)) for name in names):
        return names
    there = set(names)
    for name in names:
        log = name.removesuffix(SWAP)
        if name != log + SWAP or (base := segment_base(log)) is None:
            continue
        end = _end_offset(disk, directory, base)
        for other in names:
            old = segment_base(other)
            if old is not None and base <= old < end:
                for kind in reversed(_KINDS):
                    disk.remove(f"{directory}/{offset_name(old)}{kind}")
        # As in step 3.
        disk.sync_dir(directory)
        stem = f"{directory}/{offset_name(base)}"
        for kind in _KINDS:
            if offset_name(base) + kind + SWAP in there:
                disk.rename(stem + kind + SWAP, stem + kind)
    for name in disk.list(directory):
        if name.endswith((SWAP, CLEANED)):
            # Of a swap that was not committed, or an index that is made anew.
            disk.remove(f"{directory}/{name}")
    return disk.list(directory)


def _end_offset(disk: Disk, directory: str, base_offset: int) -> int:
    """The offset after the last batch of a committed swap."""
    segment = Segment(
        disk, directory, base_offset, index_bytes_max=1 << 30, created_ms=0, create=False, suffix=SWAP
    )
    segment.size = disk.size(segment.file)
    entry = segment.index.last() if segment.index.load() else None
    end = base_offset
    for start in (entry[1] if entry is not None else 0, 0):
        for head in segment.heads(start):
            end = max(end, head.last_offset + 1)
        if end > base_offset:
            break
    segment.close()
    return end
