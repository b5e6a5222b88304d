"""Replacing segments by their compacted version, so that a crash at any time leaves one or the other.

    <base>.log.<token>.cleaned    written and synced by a compaction; ignored until it is renamed
    <base>.log.swap               in force once this name is durable: replaces every segment within its offsets
    <base>.log.deleted            being deleted; readers may still use it

1. `commit` renames the cleaned files to `.swap`, the log last, and syncs the directory. From here on a start
   completes the swap.
2. `put_in_place` makes the log use the new segment, under these names, and renames the old files to
   `.deleted`.
3. The directory is synced. Only when the old names are gone durably may the swap lose its suffix. Otherwise a
   crash could restore an old segment beside the compacted one.
4. `take_names` removes the suffix `.swap`.

`finish_swaps` completes at a start what a crash interrupted. Names and meaning are Kafka's, so Kafka
completes a swap of ottla too. Steps with a sync run as jobs, the others on the event loop;
`broker/storage/log_cleaner.py` calls them. Producer snapshots without a segment are removed by the next
flush.
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

#: The log last: its name decides.
_KINDS = (INDEX, TIME_INDEX, TXN_INDEX, LOG)


def commit(disk: Disk, directory: str, output: Output, token: str) -> None:
    stem = f"{directory}/{offset_name(output.base_offset)}"
    for kind in _KINDS:
        if kind != TXN_INDEX or output.has_aborted:
            disk.rename(stem + kind + suffix(token), stem + kind + SWAP)


def discard(disk: Disk, directory: str, base_offset: int, token: str) -> None:
    """Remove an unused output, under either of its names."""
    stem = f"{directory}/{offset_name(base_offset)}"
    # The log first: without it the other files are ignored.
    for kind in reversed(_KINDS):
        disk.remove(stem + kind + SWAP)
        disk.remove(stem + kind + suffix(token))


def open_swapped(log: PartitionLog, old: Sequence[Segment], output: Output) -> Segment:
    """The committed output as a segment, from the description by the compaction."""
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
    """Make the log use the new segment; returns the paths of the old files, which are renamed, for delayed
    removal.
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
    """At a start: complete committed swaps, remove others. Returns the names that are left."""
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
            # From a swap that was not committed, or an index that is rebuilt.
            disk.remove(f"{directory}/{name}")
    return disk.list(directory)


def _end_offset(disk: Disk, directory: str, base_offset: int) -> int:
    """The end offset of a committed swap."""
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
