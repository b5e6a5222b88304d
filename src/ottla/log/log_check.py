"""Checks the files of one partition and their consistency. It only reads, and returns kinds of findings
without text.

- Every batch: header, CRC, and the order of offsets within and between segments.
- Every index entry: it points at a batch with the same offset or timestamp.
- Snapshots and checkpoints: they parse, and do not refer to offsets that do not exist.

`cli/verify.py` has the text and severity of each finding. If a broker is writing (`changing`), an incomplete
end of the last segment and newer files are not damage.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from crc32c import crc32c

from ottla.log.checkpoints import parse_epochs, parse_partition_metadata
from ottla.log.index import OFFSET_ENTRY, TIME_ENTRY
from ottla.log.names import (
    EPOCHS,
    INDEX,
    LOG,
    PARTITION_METADATA,
    TIME_INDEX,
    TXN_INDEX,
    offset_name,
    segment_base,
)
from ottla.log.producers import Producers
from ottla.log.replay import snapshot_offsets
from ottla.model.limits import OFFSET_MAX
from ottla.records.batch import CRC_START, HEADER, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC
from ottla.records.record import CorruptRecords, decode_batch

TXN_ENTRY: Final = struct.Struct(">hqqqq")
_CHUNK_BYTES: Final = 1 << 20
_KNOWN: Final = re.compile(r"[0-9]{20}\.(log|index|timeindex|txnindex|snapshot)")
_LEFT_OVER: Final = re.compile(r".+\.(deleted|cleaned|swap|tmp)")
_KNOWN_NAMES: Final = frozenset({EPOCHS, PARTITION_METADATA, "remote_log_snapshot", "quorum-state"})
_KRAFT_SNAPSHOT: Final = re.compile(r"[0-9]{20}-[0-9]{10}\.checkpoint")
#: A rolled segment with more unindexed bytes than this at its end has lost index entries.
_UNINDEXED_BYTES_MAX: Final = 16 << 20


class Files(Protocol):
    """The part of a file system that a check needs. It is read-only."""

    def list(self, path: str) -> list[str]: ...
    def size(self, path: str) -> int: ...
    def read(self, path: str, position: int, size: int) -> bytes: ...
    def read_file(self, path: str) -> bytes | None: ...


class Finding(NamedTuple):
    kind: str
    path: str
    #: Byte position in the file and offset in the log, if they apply.
    position: int | None = None
    offset: int | None = None
    detail: str = ""


class Expected(NamedTuple):
    """What the checkpoints of the log directory say about the partition; None: unknown."""

    recovery_point: int | None = None
    high_watermark: int | None = None
    log_start: int | None = None
    #: Whether offsets can be missing between batches (compaction).
    compacted: bool | None = None
    topic_id: bytes | None = None
    clean: bool = False
    #: A broker is writing these files.
    changing: bool = False
    #: Whether records are decoded too.
    deep: bool = False


class _Walk:
    """The result of reading the batches of a segment."""

    __slots__ = ("bad_offset", "end", "ends", "epochs", "heads", "next_offset", "torn")

    def __init__(self, base: int) -> None:
        self.next_offset = base
        #: The end of the last complete batch.
        self.end = 0
        #: Batches that index entries refer to: position → last offset, and last offset → position.
        self.heads: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.epochs: list[tuple[int, int]] = []
        self.bad_offset: int | None = None
        self.torn = False


def verify_partition(files: Files, folder: str, expected: Expected) -> Iterator[Finding]:
    """All findings in the directory of a partition."""
    names = files.list(folder)
    bases = sorted(base for name in names if (base := segment_base(name)) is not None)
    yield from _strangers(folder, names, bases)
    epochs: list[tuple[int, int]] = []
    next_offset: int | None = None
    whole = True
    for at, base in enumerate(bases):
        last = at + 1 == len(bases)
        if next_offset is not None and whole and base != next_offset:
            yield from _seam(folder, base, next_offset, expected)
        walk = _Walk(base)
        yield from _segment(files, folder, base, walk, expected, last=last)
        for epoch, offset in walk.epochs:
            if not epochs or epoch > epochs[-1][0]:
                epochs.append((epoch, offset))
        next_offset, whole = walk.next_offset, walk.bad_offset is None and not walk.torn
    if bases and next_offset is not None and whole:
        yield from _claims(folder, next_offset, expected)
    yield from _beside(files, folder, names, bases, next_offset, epochs, expected)


def _strangers(folder: str, names: list[str], bases: list[int]) -> Iterator[Finding]:
    logs = {offset_name(base) for base in bases}
    for name in names:
        path = f"{folder}/{name}"
        if _LEFT_OVER.fullmatch(name):
            yield Finding("leftover", path)
        elif not _KNOWN.fullmatch(name) and name not in _KNOWN_NAMES and not _KRAFT_SNAPSHOT.fullmatch(name):
            yield Finding("stray-file", path)
        elif name.endswith((INDEX, TIME_INDEX, TXN_INDEX)) and name[:20] not in logs:
            yield Finding("index-without-log", path)


def _seam(folder: str, base: int, next_offset: int, expected: Expected) -> Iterator[Finding]:
    path = f"{folder}/{offset_name(base)}{LOG}"
    if base < next_offset:
        yield Finding("overlap", path, 0, base, f"the segment before it ends at offset {next_offset - 1}")
    elif not expected.compacted:
        kind = "gap" if expected.compacted is False else "gap-unknown"
        yield Finding(kind, path, 0, next_offset, f"offsets {next_offset} to {base - 1}")


def _claims(folder: str, end: int, expected: Expected) -> Iterator[Finding]:
    """Checkpoints with offsets beyond the end of the log."""
    for kind, claim in (
        ("recovery-point-beyond", expected.recovery_point),
        ("watermark-beyond", expected.high_watermark),
        ("start-beyond", expected.log_start),
    ):
        if claim is not None and claim > end and not expected.changing:
            yield Finding(kind, folder, None, end, f"{claim}, the log ends at offset {end}")


# --- one segment ------------------------------------------------------------------------------------------------------


def _segment(
    files: Files, folder: str, base: int, walk: _Walk, expected: Expected, *, last: bool
) -> Iterator[Finding]:
    stem = f"{folder}/{offset_name(base)}"
    # Indexes are read before the log, so that entries which a broker adds meanwhile have their batches.
    offsets = files.read_file(stem + INDEX)
    times = files.read_file(stem + TIME_INDEX)
    transactions = files.read_file(stem + TXN_INDEX)
    entries = _entries(OFFSET_ENTRY, offsets)
    wanted = {position for _key, position in entries}
    wanted_ends = {base + key for key, _position in entries}
    time_at: dict[int, tuple[int, int]] = {}
    ends = sorted(base + relative for _time, relative in _entries(TIME_ENTRY, times))
    pointer = 0
    size = files.size(stem + LOG)
    for position, header in _batches(files, stem + LOG, size, walk, expected):
        if isinstance(header, Finding):
            if not (last and expected.changing and header.kind in ("torn", "zeros")):
                yield _judged(header, walk, expected, last=last)
            continue
        last_offset, timestamp = header[0] + header[6], header[8]
        if position in wanted:
            walk.heads[position] = last_offset
        if last_offset in wanted_ends:
            walk.ends[last_offset] = position
        while pointer < len(ends) and ends[pointer] <= last_offset:
            time_at[ends[pointer]] = (header[0], timestamp)
            pointer += 1
    unsure = walk.bad_offset is not None or walk.torn
    trailing = expected.changing and last
    yield from _offset_index(
        stem + INDEX, offsets, base, size, walk, unsure=unsure, trailing=trailing, last=last
    )
    yield from _time_index(stem + TIME_INDEX, times, base, time_at, unsure=unsure, trailing=trailing)
    yield from _txn_index(stem + TXN_INDEX, transactions, base, walk.next_offset, unsure=unsure or trailing)


def _judged(finding: Finding, walk: _Walk, expected: Expected, *, last: bool) -> Finding:
    """A crash can leave a torn end, but not before the recovery point."""
    if finding.kind in ("torn", "zeros", "bad-crc", "not-a-batch") and last and not expected.clean:
        point = expected.recovery_point
        if point is not None and walk.next_offset >= point and finding.kind in ("torn", "zeros"):
            return finding._replace(kind="torn-tail")
    return finding


def _batches(
    files: Files, path: str, size: int, walk: _Walk, expected: Expected
) -> Iterator[tuple[int, tuple[int, ...] | Finding]]:
    """(position, header) of each batch, and a finding for anything else. Continues after a batch with a bad
    CRC.
    """
    position, first, chunk = 0, True, _CHUNK_BYTES
    while position < size:
        data = files.read(path, position, min(chunk, size - position))
        view, at = memoryview(data), 0
        wants = HEADER_BYTES
        while len(data) - at >= HEADER_BYTES:
            header = HEADER.unpack_from(data, at)
            wants = header[1] + LENGTH_OVERHEAD
            place = position + at
            if not any(view[at : at + HEADER_BYTES]):
                walk.torn = True
                yield place, Finding("zeros", path, place, walk.next_offset, f"{size - place} bytes")
                return
            if header[3] != MAGIC or wants < HEADER_BYTES:
                kind = "old-format" if header[3] in (0, 1) else "not-a-batch"
                walk.bad_offset = walk.next_offset
                yield place, Finding(kind, path, place, walk.next_offset, f"{size - place} bytes")
                return
            if wants > len(data) - at:
                break
            yield from _batch(view[at : at + wants], header, path, place, walk, expected, first=first)
            first = False
            at += wants
            walk.end = position + at
        position += at
        if at == 0:
            # A file that was truncated meanwhile also ends here.
            if wants > size - position or len(data) < HEADER_BYTES or chunk == wants:
                walk.torn = True
                detail = f"{size - position} of {wants} bytes"
                yield position, Finding("torn", path, position, walk.next_offset, detail)
                return
            chunk = wants
        else:
            chunk = _CHUNK_BYTES


def _batch(
    batch: memoryview,
    header: tuple[int, ...],
    path: str,
    place: int,
    walk: _Walk,
    expected: Expected,
    *,
    first: bool,
) -> Iterator[tuple[int, tuple[int, ...] | Finding]]:
    base, delta = header[0], header[6]
    if crc32c(batch[CRC_START:]) != header[4]:
        walk.bad_offset = base if walk.bad_offset is None else walk.bad_offset
        yield place, Finding("bad-crc", path, place, base, f"offsets {base} to {base + delta}")
    elif base < walk.next_offset or delta < 0:
        detail = f"offset {base} after {walk.next_offset - 1}"
        yield place, Finding("foreign-base" if first else "out-of-order", path, place, base, detail)
    else:
        if base > walk.next_offset and not expected.compacted:
            kind = "gap" if expected.compacted is False else "gap-unknown"
            yield (
                place,
                Finding(kind, path, place, walk.next_offset, f"offsets {walk.next_offset} to {base - 1}"),
            )
        if expected.deep:
            try:
                decode_batch(batch)
            except CorruptRecords as error:
                yield place, Finding("records", path, place, base, str(error))
        yield place, header
    if not walk.epochs or header[2] > walk.epochs[-1][0]:
        walk.epochs.append((header[2], base))
    walk.next_offset = max(walk.next_offset, base + delta + 1)


# --- indexes ----------------------------------------------------------------------------------------------------------


def _entries(layout: struct.Struct, data: bytes | None) -> list[tuple[int, ...]]:
    """The entries before the zeros of a preallocated file."""
    kept: list[tuple[int, ...]] = []
    for entry in layout.iter_unpack((data or b"")[: len(data or b"") // layout.size * layout.size]):
        if not any(entry):
            break
        kept.append(entry)
    return kept


def _odd(layout: struct.Struct, data: bytes, entries: list[tuple[int, ...]]) -> bool:
    """Whether the bytes after the last whole entry are not all zero."""
    return any(data[len(entries) * layout.size :])


def _offset_index(
    path: str,
    data: bytes | None,
    base: int,
    size: int,
    walk: _Walk,
    *,
    unsure: bool,
    trailing: bool,
    last: bool,
) -> Iterator[Finding]:
    if data is None:
        yield Finding("index-missing", path)
        return
    entries = _entries(OFFSET_ENTRY, data)
    if _odd(OFFSET_ENTRY, data, entries) and not trailing:
        yield Finding("index-odd", path, len(entries) * OFFSET_ENTRY.size)
    for number, (before, entry) in enumerate(pairwise(entries)):
        if entry[0] <= before[0] or entry[1] <= before[1]:
            yield Finding("index-order", path, (number + 1) * OFFSET_ENTRY.size)
            return
    for number, (relative, position) in enumerate(entries):
        place = number * OFFSET_ENTRY.size
        if position >= size and not trailing:
            yield Finding("index-beyond", path, place, base + relative, f"position {position} of {size}")
            return
        last_offset = walk.heads.get(position, OFFSET_MAX)
        # An entry of a replica can cover several batches: the offset of the last one, the position of the
        # first.
        fits = last_offset <= base + relative and walk.ends.get(base + relative, -1) >= position
        if position < walk.end and not fits and not unsure:
            yield Finding("index-wrong", path, place, base + relative, f"position {position}")
            return
    indexed = entries[-1][1] if entries else 0
    if not last and not unsure and size - indexed > _UNINDEXED_BYTES_MAX:
        yield Finding("index-short", path, None, None, f"nothing after position {indexed} of {size}")


def _time_index(
    path: str,
    data: bytes | None,
    base: int,
    time_at: dict[int, tuple[int, int]],
    *,
    unsure: bool,
    trailing: bool,
) -> Iterator[Finding]:
    if data is None:
        yield Finding("index-missing", path)
        return
    entries = _entries(TIME_ENTRY, data)
    if _odd(TIME_ENTRY, data, entries) and not trailing:
        yield Finding("index-odd", path, len(entries) * TIME_ENTRY.size)
    for number, (before, entry) in enumerate(pairwise(entries)):
        if entry[0] < before[0] or entry[1] < before[1]:
            yield Finding("index-order", path, (number + 1) * TIME_ENTRY.size)
            return
    for number, (timestamp, relative) in enumerate(entries):
        place = number * TIME_ENTRY.size
        found = time_at.get(base + relative)
        if found is None:
            if not trailing and not unsure:
                yield Finding("index-beyond", path, place, base + relative)
                return
        elif found[1] != timestamp and not unsure:
            detail = f"{timestamp}, the batch says {found[1]}"
            yield Finding("time-wrong", path, place, base + relative, detail)
            return


def _txn_index(path: str, data: bytes | None, base: int, end: int, *, unsure: bool) -> Iterator[Finding]:
    if not data:
        return
    last = -1
    for number, (version, _producer, first, final, stable) in enumerate(
        TXN_ENTRY.iter_unpack(data[: len(data) // TXN_ENTRY.size * TXN_ENTRY.size])
    ):
        place = number * TXN_ENTRY.size
        if version != 0 or not 0 <= first <= final or final <= last or final < base:
            yield Finding("txn-index-wrong", path, place, final)
            return
        if (final >= end or stable > end) and not unsure:
            yield Finding("txn-index-wrong", path, place, final, f"the segment ends at offset {end}")
            return
        last = final
    if len(data) % TXN_ENTRY.size and not unsure:
        yield Finding("txn-index-wrong", path, len(data) // TXN_ENTRY.size * TXN_ENTRY.size)


# --- what lies beside the segments ------------------------------------------------------------------------------------


def _beside(
    files: Files,
    folder: str,
    names: list[str],
    bases: list[int],
    end: int | None,
    in_log: list[tuple[int, int]],
    expected: Expected,
) -> Iterator[Finding]:
    if not bases:
        yield Finding("no-segments", folder)
    for offset in snapshot_offsets(names):
        path = f"{folder}/{offset_name(offset)}.snapshot"
        data = files.read_file(path)
        if data is not None and Producers.parse(data) is None:
            yield Finding("snapshot-damaged", path, None, offset)
        elif end is not None and offset > end and not expected.changing:
            yield Finding("snapshot-beyond", path, None, offset, f"the log ends at offset {end}")
    if EPOCHS in names:
        path = f"{folder}/{EPOCHS}"
        pairs = parse_epochs(files.read_file(path))
        if pairs is None or any(a[0] >= b[0] or a[1] > b[1] for a, b in pairwise(pairs)):
            yield Finding("epochs-damaged", path)
        elif not expected.changing:
            if end is not None and pairs and pairs[-1][1] > end:
                yield Finding("epochs-beyond", path, None, pairs[-1][1], f"the log ends at offset {end}")
            known = {epoch for epoch, _offset in pairs}
            start = pairs[0][1] if pairs else 0
            lost = [epoch for epoch, offset in in_log if epoch not in known and offset >= start]
            if lost:
                yield Finding("epochs-missing", path, None, None, ", ".join(map(str, lost)))
    if PARTITION_METADATA in names:
        path = f"{folder}/{PARTITION_METADATA}"
        topic_id = parse_partition_metadata(files.read_file(path))
        if topic_id is None:
            yield Finding("partition-metadata-damaged", path)
        elif expected.topic_id is not None and topic_id != expected.topic_id:
            yield Finding("partition-metadata-foreign", path)
