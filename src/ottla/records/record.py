"""Encoding and decoding of records: the only code that reads the inside of a batch.

A batch is the header of `batch.py` and then, compressed as its attributes say, `record count` records:

    length          varint      bytes after this field
    attributes      1           unused
    timestamp delta varlong     from the header's base timestamp
    offset delta    varint      from the header's base offset; it grows, with gaps after compaction
    key             varint length (-1: null) | bytes
    value           varint length (-1: null) | bytes
    headers         varint count | for each: varint length | key in UTF-8 | varint length (-1: null) | value

Everything is checked: the CRC, counts against the available bytes, every length, that offset deltas increase
up to the header's, and that no bytes are left over. Invalid bytes raise CorruptRecords and nothing else.

A broker moves whole batches, and calls this only to read records: compacted topics, compaction, lookup by
time, internal topics. The SDK calls it for every batch. `iter_batch` and `validate_records` hold one record
at a time, so a batch of a million empty records takes no memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from crc32c import crc32c

from ottla.records.batch import (
    ATTRIBUTES_LOW,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_BYTES,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MAGIC,
    OFFSET_AND_LENGTH,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    crc_of,
)
from ottla.records.compression import NONE, ZSTD, Buffer, compress, decompress
from ottla.records.errors import CorruptRecords
from ottla.records.varint import VARINTS, read_varint, read_varlong, zigzag

__all__ = [
    "DECODED_BYTES_MAX",
    "RECORD_BYTES_MIN",
    "CorruptRecords",
    "Record",
    "decode_batch",
    "decode_batches",
    "encode_batch",
    "iter_batch",
    "seal",
    "validate_records",
    "whole_batches",
]

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

#: Default maximum of a decompressed batch: the maximum size of a request.
DECODED_BYTES_MAX: Final = 100 * 1024 * 1024
NO_TIMESTAMP: Final = -1

#: The maximum of the header's field.
_COUNT_MAX: Final = 2**31 - 1
#: Seven fields of one byte each: no batch can have more records than its bytes divided by this.
RECORD_BYTES_MIN: Final = 7
#: Header keys that are not UTF-8 survive compaction, instead of making their partition unreadable.
_HEADER_KEY_ERRORS: Final = "surrogateescape"
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
#: Base and delta within this bound cannot exceed 64 bits together, which saves a check per record.
_TIMESTAMP_SAFE: Final = 1 << 61


class Record(NamedTuple):
    """One record. `timestamp_ms` is the broker's time if the batch has LogAppendTime."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def encode_batch(
    records: Iterable[Record],
    *,
    codec: int = NONE,
    level: int | None = None,
    base_offset: int = 0,
    keep_offsets: bool = False,
    last_offset_delta: int | None = None,
    partition_leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    append_time_ms: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """Encode one batch.

    Offsets are numbered from `base_offset` in the given order. With `keep_offsets` the records keep their
    own, as compaction needs. `last_offset_delta` is for a batch whose last records were compacted away; only
    such a batch can be empty. A value out of range (an offset below the base, a number too large for its
    field) raises ValueError.
    """
    varints = VARINTS
    parts: list[bytes] = []
    append = parts.append
    join = b"".join
    base_timestamp = delete_horizon_ms
    timestamp_max = NO_TIMESTAMP
    count = 0
    delta = -1
    for offset, timestamp, key, value, headers in records:
        if keep_offsets:
            previous, delta = delta, offset - base_offset
            if delta <= previous:
                raise ValueError(
                    f"offset {offset} after {base_offset + previous}, from a base of {base_offset}"
                )
        else:
            delta = count
        if base_timestamp is None:
            base_timestamp = timestamp
        if timestamp > timestamp_max:
            timestamp_max = timestamp
        body = join(
            (
                b"\0",
                varints[timestamp - base_timestamp],
                varints[delta],
                b"\1" if key is None else varints[len(key)] + key,
                b"\1" if value is None else varints[len(value)],
                value or b"",
                _encode_headers(headers) if headers else b"\0",
            )
        )
        append(varints[len(body)])
        append(body)
        count += 1
    if last_offset_delta is None:
        if not count:
            raise ValueError("an empty batch needs its last offset delta")
        last_offset_delta = delta
    elif last_offset_delta < delta:
        raise ValueError(f"last offset delta {last_offset_delta} below the last record's {delta}")
    return seal(
        join(parts),
        count=count,
        base_timestamp=NO_TIMESTAMP if base_timestamp is None else base_timestamp,
        timestamp_max=timestamp_max,
        codec=codec,
        level=level,
        base_offset=base_offset,
        last_offset_delta=last_offset_delta,
        partition_leader_epoch=partition_leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
        append_time_ms=append_time_ms,
        deletes_later=delete_horizon_ms is not None,
    )


def seal(
    payload: bytes,
    *,
    count: int,
    base_timestamp: int,
    timestamp_max: int,
    codec: int = NONE,
    level: int | None = None,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    partition_leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    append_time_ms: int | None = None,
    deletes_later: bool = False,
) -> bytes:
    """The batch of encoded records: compressed, with its header. Offsets have gaps only with
    `last_offset_delta`.
    """
    attributes = codec
    if append_time_ms is not None:
        attributes |= TIMESTAMP_TYPE_BIT
        timestamp_max = append_time_ms
    if transactional:
        attributes |= TRANSACTIONAL_BIT
    if control:
        attributes |= CONTROL_BIT
    if deletes_later:
        attributes |= DELETE_HORIZON_BIT
    if codec != NONE and count:
        payload = compress(codec, payload, level)
    length = HEADER_BYTES - LENGTH_OVERHEAD + len(payload)
    delta = count - 1 if last_offset_delta is None else last_offset_delta
    try:
        head = HEADER.pack(
            base_offset, length, partition_leader_epoch, MAGIC, 0, attributes, delta, base_timestamp, timestamp_max,
            producer_id, producer_epoch, base_sequence, count,
        )  # fmt: skip
    except struct.error as error:
        raise ValueError(f"a batch header field is out of range: {error}") from None
    covered = head[CRC_START:]
    crc = crc32c(payload, crc32c(covered))
    return b"".join((head[: CRC_START - CRC_BYTES], crc.to_bytes(CRC_BYTES, "big"), covered, payload))


def _encode_headers(headers: Headers) -> bytes:
    varints = VARINTS
    parts = [varints[len(headers)]]
    for name, value in headers:
        key = name.encode("utf-8", _HEADER_KEY_ERRORS)
        parts += (varints[len(key)], key)
        parts += (b"\1",) if value is None else (varints[len(value)], value)
    return b"".join(parts)


def decode_batch(
    batch: Buffer,
    *,
    size_max: int = DECODED_BYTES_MAX,
    count_max: int = _COUNT_MAX,
    check_crc: bool = True,
) -> list[Record]:
    """The records of one complete batch, header included. Control records are included."""
    return list(iter_batch(batch, size_max, count_max, check_crc=check_crc))


def decode_batches(data: Buffer, *, size_max: int = DECODED_BYTES_MAX) -> Iterator[Record]:
    """The records of a fetch response. An incomplete batch at the end is ignored, control batches are
    skipped.

    `size_max` applies to each batch. The first batch can begin below the fetch offset.
    """
    for batch in whole_batches(data):
        # Control batches are for the protocol, not for consumers.
        if not batch[ATTRIBUTES_LOW] & CONTROL_BIT:
            yield from iter_batch(batch, size_max)


def whole_batches(data: Buffer) -> Iterator[memoryview]:
    """A view of each complete batch in `data`. Only length and magic are checked."""
    view = memoryview(data)
    position = 0
    end = len(view)
    while end - position >= HEADER_BYTES:
        length = OFFSET_AND_LENGTH.unpack_from(view, position)[1] + LENGTH_OVERHEAD
        if length < HEADER_BYTES:
            raise CorruptRecords(f"a batch of {length} bytes is shorter than its header")
        if view[position + 16] != MAGIC:
            raise CorruptRecords(f"a batch with magic {view[position + 16]}")
        if length > end - position:
            return
        yield view[position : position + length]
        position += length


def validate_records(batch: Buffer, size_max: int = DECODED_BYTES_MAX) -> None:
    """Decode all records, and check that offset deltas are 0, 1, 2 … as a producer must send them."""
    for _ in iter_batch(batch, size_max, gaps=False):
        pass


def read_header(batch: Buffer, check_crc: bool = True) -> tuple[int, ...]:
    """The fields of the header, checked against each other, the size and the CRC."""
    if len(batch) < HEADER_BYTES:
        raise CorruptRecords(f"{len(batch)} bytes are not a batch")
    header: tuple[int, ...] = HEADER.unpack_from(batch)
    base_offset, length, _, magic, crc, attributes, last_offset_delta, _, _, _, _, _, count = header
    if magic != MAGIC:
        raise CorruptRecords(f"a batch with magic {magic}")
    if length + LENGTH_OVERHEAD != len(batch):
        raise CorruptRecords(f"a batch length of {length} in {len(batch)} bytes")
    if check_crc and crc_of(batch) != crc:
        raise CorruptRecords("the batch's CRC does not match")
    if attributes & CODEC_MASK > ZSTD:
        raise CorruptRecords(f"no codec {attributes & CODEC_MASK}")
    if not 0 <= count <= last_offset_delta + 1:
        raise CorruptRecords(f"{count} records with a last offset delta of {last_offset_delta}")
    if base_offset > _INT64_MAX - last_offset_delta:
        raise CorruptRecords(f"{last_offset_delta + 1} offsets from {base_offset} on exceed 64 bits")
    return header


def read_payload(
    batch: Buffer, codec: int, count: int, size_max: int, *, copied: bool = True
) -> tuple[Any, int]:
    """The decompressed records and their start in the returned bytes: a view of the batch if it is not
    compressed.
    """
    data: bytes | memoryview
    if codec == NONE:
        data, position = bytes(batch) if copied else memoryview(batch), HEADER_BYTES
    elif not count and len(batch) == HEADER_BYTES:
        data, position = b"", 0
    else:
        data, position = decompress(codec, memoryview(batch)[HEADER_BYTES:], size_max), 0
    if count * RECORD_BYTES_MIN > len(data) - position:
        raise CorruptRecords(f"{count} records in {len(data) - position} bytes")
    return data, position


def iter_batch(
    batch: Buffer,
    size_max: int,
    count_max: int = _COUNT_MAX,
    *,
    gaps: bool = True,
    check_crc: bool = True,
    headers_max: int = _COUNT_MAX,
) -> Iterator[Record]:
    """Iterate over the records of a batch, decoding each on demand. The hot path is inlined: almost every
    number has one or two bytes.

    A record with more than `headers_max` headers is refused; 0: headers are skipped without reading.
    """
    header = read_header(batch, check_crc)
    base_offset, _, _, _, _, attributes, delta_max, base_timestamp, timestamp_max, _, _, _, count = header
    if count > count_max:
        raise CorruptRecords(f"{count} records, at most {count_max} are read")
    # Deltas increase up to the last one, so with a full count they are contiguous.
    if not gaps and count != delta_max + 1:
        raise CorruptRecords(f"{count} records with a last offset delta of {delta_max}")
    data, position = read_payload(batch, attributes & CODEC_MASK, count, size_max)
    size = len(data)
    append_time = bool(attributes & TIMESTAMP_TYPE_BIT)
    safe_max = _TIMESTAMP_SAFE if -_TIMESTAMP_SAFE < base_timestamp < _TIMESTAMP_SAFE else 0
    new = tuple.__new__
    timestamp = timestamp_max
    previous_delta = -1
    headers: Headers
    try:
        for _ in range(count):
            number = data[position]
            position += 1
            if number > 0x7F:
                if (high := data[position]) < 0x80:
                    number += (high << 7) - 0x80
                    position += 1
                else:
                    number, position = read_varint(data, position - 1)
            if number & 1:
                raise CorruptRecords("a record of negative length")
            end = position + (number >> 1)
            if end > size:
                raise CorruptRecords(f"a record of {number >> 1} bytes where {size - position} are left")

            number = data[position + 1]  # past the attributes
            position += 2
            if number > 0x7F:
                if (high := data[position]) < 0x80:
                    number += (high << 7) - 0x80
                    position += 1
                else:
                    number, position = read_varlong(data, position - 1)
            if not append_time:
                timestamp = base_timestamp + ((number >> 1) ^ -(number & 1))
                if number >= safe_max and not _INT64_MIN <= timestamp <= _INT64_MAX:
                    raise CorruptRecords("a timestamp exceeds 64 bits")

            number = data[position]
            position += 1
            if number > 0x7F:
                if (high := data[position]) < 0x80:
                    number += (high << 7) - 0x80
                    position += 1
                else:
                    number, position = read_varint(data, position - 1)
            delta = number >> 1
            if number & 1 or not previous_delta < delta <= delta_max:
                raise CorruptRecords(
                    f"offset delta {zigzag(number)} after {previous_delta}, at most {delta_max}"
                )
            previous_delta = delta

            number = data[position]
            position += 1
            if number > 0x7F:
                if (high := data[position]) < 0x80:
                    number += (high << 7) - 0x80
                    position += 1
                else:
                    number, position = read_varint(data, position - 1)
            if number & 1:
                if number != 1:
                    raise CorruptRecords("a key of negative length")
                key = None
            else:
                start = position
                position += number >> 1
                key = data[start:position]

            number = data[position]
            position += 1
            if number > 0x7F:
                if (high := data[position]) < 0x80:
                    number += (high << 7) - 0x80
                    position += 1
                else:
                    number, position = read_varint(data, position - 1)
            if number & 1:
                if number != 1:
                    raise CorruptRecords("a value of negative length")
                value = None
            else:
                start = position
                position += number >> 1
                value = data[start:position]

            if data[position]:
                headers, position = decode_headers(data, position, end, headers_max)
            else:
                headers = ()
                position += 1
            # A wrong length in any field ends here: the fields do not match the size of the record.
            if position != end:
                raise CorruptRecords(f"a record whose fields end {position - end} bytes after it")
            yield new(Record, (base_offset + delta, timestamp, key, value, headers))
    except IndexError:
        raise CorruptRecords("the records end inside a record") from None
    if position != size:
        raise CorruptRecords(f"{size - position} bytes after the last record")


def decode_headers(data: bytes, position: int, end: int, count_max: int = _COUNT_MAX) -> tuple[Headers, int]:
    """The headers at `position`, in a record that ends at `end`, and the position after them."""
    if not count_max:
        return (), end
    raw, position = read_varint(data, position)
    count = zigzag(raw)
    # Each has at least two length fields. The check comes before the loop, which a wrong count would keep
    # busy.
    if not 0 <= count <= (end - position) >> 1:
        raise CorruptRecords(f"{count} headers in {end - position} bytes")
    if count > count_max:
        raise CorruptRecords(f"{count} headers in a record, at most {count_max} are read")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        raw, position = read_varint(data, position)
        start = position
        position += raw >> 1
        if raw & 1 or position > end:
            raise CorruptRecords(f"a header key of {zigzag(raw)} bytes where {end - start} are left")
        name = data[start:position].decode("utf-8", _HEADER_KEY_ERRORS)
        raw, position = read_varint(data, position)
        if raw == 1:
            headers.append((name, None))
            continue
        start = position
        position += raw >> 1
        if raw & 1 or position > end:
            raise CorruptRecords(f"a header value of {zigzag(raw)} bytes where {end - start} are left")
        headers.append((name, data[start:position]))
    return tuple(headers), position
