"""Decode the files of a log directory: segments, indexes, producer snapshots, checkpoints.

Pure functions from a file's bytes to rows; `log.py` prints them. The formats are Kafka's:

    .log          batches, see records/batch.py
    .index        relative offset int32 | position int32, sparse, grows
    .timeindex    timestamp int64 | relative offset int32, sparse, grows
    .txnindex     version int16 | producer id | first offset | last offset | last stable offset, each int64
    .snapshot     version int16 | crc-32c uint32 of the rest | count int32 | for each producer: id int64 | epoch
                  int16 | last sequence int32 | last offset int64 | offset delta int32 | timestamp int64 |
                  coordinator epoch int32 | first offset of the open transaction int64
    checkpoints   text: version, count, then one `topic partition offset` (or `epoch start offset`) per line

An index file may be longer than its entries (preallocated): zeros after the last entry are its end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from crc32c import crc32c

from ottla.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    crc_of,
)
from ottla.records.record import CorruptRecords, decode_batch

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
INDEX_ENTRY = struct.Struct(">ii")
TIME_INDEX_ENTRY = struct.Struct(">qi")
TXN_INDEX_ENTRY = struct.Struct(">hqqqq")
SNAPSHOT_START = struct.Struct(">hIi")
SNAPSHOT_CRC_FROM = 6
PRODUCER = struct.Struct(">qhiqiqiq")
#: Version, type and coordinator epoch of a marker's key and value.
CONTROL_KEY = struct.Struct(">hh")
CONTROL_TYPES = {0: "abort", 1: "commit", 2: "leader change", 3: "snapshot header", 4: "snapshot footer"}

Row = dict[str, Any]


def base_offset_of(name: str) -> int:
    """The base offset in a segment file's name; 0 for other names."""
    stem = name.partition(".")[0]
    return int(stem) if stem.isdigit() else 0


def batches(data: bytes | memoryview, *, records: bool = True) -> Iterator[Row]:
    """One row per batch, optionally with its records. The last row has a `problem` if the end is damaged."""
    view = memoryview(data)
    position, end = 0, len(view)
    while position < end:
        left = end - position
        if left < HEADER_BYTES:
            yield {"position": position, "problem": f"{left} bytes at the end are an incomplete batch header"}
            return
        fields = HEADER.unpack_from(view, position)
        base_offset, length, epoch, magic, crc, attributes, last_delta, first_time, max_time, *rest = fields
        producer_id, producer_epoch, sequence, count = rest
        size = length + LENGTH_OVERHEAD
        if not any(view[position : position + HEADER_BYTES]):
            yield {
                "position": position,
                "problem": f"{left} zero bytes at the end (preallocated, or never written)",
            }
            return
        row: Row = {
            "position": position,
            "base_offset": base_offset,
            "last_offset": base_offset + last_delta,
            "count": count,
            "bytes": size,
            "leader_epoch": epoch,
            "magic": magic,
            "codec": CODECS[attributes & CODEC_MASK] if attributes & CODEC_MASK < len(CODECS) else "unknown",
            "timestamp_type": "LogAppendTime" if attributes & TIMESTAMP_TYPE_BIT else "CreateTime",
            "base_timestamp": first_time,
            "max_timestamp": max_time,
            "producer_id": producer_id,
            "producer_epoch": producer_epoch,
            "base_sequence": sequence,
            "transactional": bool(attributes & TRANSACTIONAL_BIT),
            "control": bool(attributes & CONTROL_BIT),
            "delete_horizon": bool(attributes & DELETE_HORIZON_BIT),
        }
        if magic != MAGIC or size < HEADER_BYTES:
            yield row | {"problem": f"no batch starts here (magic {magic}, length {length})"}
            return
        if size > left:
            yield row | {"problem": f"the batch is truncated: {left} of {size} bytes exist"}
            return
        batch = view[position : position + size]
        found = crc_of(batch)
        if found != crc:
            yield row | {"problem": f"the CRC is {found:08x}, the batch says {crc:08x}"}
        elif not records:
            yield row
        else:
            yield _with_records(row, batch)
        position += size


def _with_records(row: Row, batch: memoryview) -> Row:
    try:
        found = decode_batch(batch)
    except CorruptRecords as error:
        return row | {"problem": f"the records cannot be decoded: {error}"}
    if row["control"]:
        marks = [
            CONTROL_KEY.unpack(record.key[:4])[1] for record in found if record.key and len(record.key) >= 4
        ]
        row["control_type"] = ", ".join(CONTROL_TYPES.get(mark, f"type {mark}") for mark in marks)
    row["records"] = [record._asdict() for record in found]
    return row


def offset_index(data: bytes, base_offset: int) -> Iterator[Row]:
    """Offset and position of each entry; entries out of order have a `problem`."""
    last = (-1, -1)
    for number, (relative, position) in enumerate(_entries(INDEX_ENTRY, data)):
        # Zeros are an entry only at the very start, where they carry no information.
        if relative == 0 and position == 0:
            break
        row: Row = {"entry": number, "offset": base_offset + relative, "position": position}
        if (relative, position) <= last or relative < 0 or position < 0:
            row["problem"] = "offsets and positions must increase"
        last = (relative, position)
        yield row
    yield from _odd_end(INDEX_ENTRY, data)


def time_index(data: bytes, base_offset: int) -> Iterator[Row]:
    last = -1
    for number, (timestamp, relative) in enumerate(_entries(TIME_INDEX_ENTRY, data)):
        if timestamp == 0 and relative == 0:
            break
        row: Row = {"entry": number, "timestamp": timestamp, "offset": base_offset + relative}
        if timestamp < last:
            row["problem"] = "timestamps must not decrease"
        last = timestamp
        yield row
    yield from _odd_end(TIME_INDEX_ENTRY, data)


def txn_index(data: bytes) -> Iterator[Row]:
    for version, producer_id, first, last, stable in _entries(TXN_INDEX_ENTRY, data):
        row: Row = {
            "version": version,
            "producer_id": producer_id,
            "first_offset": first,
            "last_offset": last,
            "last_stable_offset": stable,
        }
        if version != 0:
            row["problem"] = f"unknown version {version}"
        yield row
    yield from _odd_end(TXN_INDEX_ENTRY, data)


def _entries(layout: struct.Struct, data: bytes) -> Iterator[tuple[Any, ...]]:
    return layout.iter_unpack(memoryview(data)[: len(data) // layout.size * layout.size])


def _odd_end(layout: struct.Struct, data: bytes) -> Iterator[Row]:
    odd = len(data) % layout.size
    # A preallocated file need not end with a whole entry: only extra bytes other than zero are a problem.
    if odd and any(data[-odd:]):
        yield {
            "problem": f"{odd} bytes at the end are an incomplete entry (entries have {layout.size} bytes)"
        }


def producer_snapshot(data: bytes) -> Iterator[Row]:
    """One row per producer."""
    if len(data) < SNAPSHOT_START.size:
        yield {"problem": f"{len(data)} bytes are too few for a producer snapshot"}
        return
    version, crc, count = SNAPSHOT_START.unpack_from(data)
    found = crc32c(data[SNAPSHOT_CRC_FROM:])
    if version != 1:
        yield {"problem": f"unknown version {version}"}
        return
    if found != crc:
        yield {"problem": f"the CRC is {found:08x}, the file says {crc:08x}"}
    whole = (len(data) - SNAPSHOT_START.size) // PRODUCER.size
    if whole != count:
        yield {"problem": f"the header says {count} producers, the file has {whole}"}
    for number in range(min(count, whole)):
        values = PRODUCER.unpack_from(data, SNAPSHOT_START.size + number * PRODUCER.size)
        names = (
            "producer_id",
            "producer_epoch",
            "last_sequence",
            "last_offset",
            "offset_delta",
            "timestamp",
            "coordinator_epoch",
            "current_txn_first_offset",
        )
        yield dict(zip(names, values, strict=True))


def checkpoint(text: str) -> Iterator[Row]:
    """Rows of a checkpoint: topic, partition and offset, or epoch and start offset."""
    lines = text.splitlines()
    if len(lines) < 2 or not lines[0].strip().isdigit() or not lines[1].strip().isdigit():
        yield {"problem": "a checkpoint must start with its version and its number of entries"}
        return
    if lines[0].strip() != "0":
        yield {"problem": f"unknown version {lines[0].strip()}"}
    entries = [line.split() for line in lines[2:] if line.strip()]
    for parts in entries:
        if not all(part.lstrip("-").isdigit() for part in parts[-2:]):
            yield {"problem": f"the line {' '.join(parts)!r} is not an entry"}
        elif len(parts) == 3:
            yield {"topic": parts[0], "partition": int(parts[1]), "offset": int(parts[2])}
        elif len(parts) == 2:
            yield {"epoch": int(parts[0]), "start_offset": int(parts[1])}
        else:
            yield {"problem": f"the line {' '.join(parts)!r} is not an entry"}
    if len(entries) != int(lines[1]):
        yield {"problem": f"the header says {lines[1].strip()} entries, the file has {len(entries)}"}


def properties(text: str) -> Iterator[Row]:
    """Names and values of `meta.properties` and `partition.metadata`."""
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        equals, colon = stripped.find("="), stripped.find(":")
        cut = min(at for at in (equals, colon, len(stripped)) if at >= 0)
        yield {"name": stripped[:cut].strip(), "value": stripped[cut + 1 :].strip()}
