"""What a batch must be to be accepted, beyond what `PartitionLog.append` checks itself on its plain path.

`check_policies` is called only for topics whose settings ask for more (`TopicConfig.plain` is false): timestamps, codecs,
keys. So the records of an ordinary topic are never decoded. The other functions put a refusal into words.
"""

from __future__ import annotations

from typing import Final

from ottla.config.topic import TopicConfig
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import DECOMPRESSED_BYTES_MAX, RECORDS_LOOKED_AT_MAX
from ottla.ports.disk import Buffer
from ottla.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    with_append_time,
)
from ottla.records.compression import CODECS
from ottla.records.record import CorruptRecords, decode_batch, encode_batch, keyless

#: The attributes that a client's batch may have: a codec, inside a transaction or not. Who wrote the timestamp, control
#: batches and delete horizons are the broker's to say.
CLIENT_ATTRIBUTES: Final = frozenset(
    codec | transactional for codec in CODECS.values() for transactional in (0, TRANSACTIONAL_BIT)
)


def check_policies(
    batch: bytes, attributes: int, base_time: int, max_time: int, now_ms: int, config: TopicConfig
) -> tuple[Buffer, int]:
    """The batch as it must be stored, and the append time (-1 if the producer's timestamps stand)."""
    data: Buffer = batch
    if config.compact:
        _check_keys(batch)
    if config.compression_type != "producer" and attributes & CODEC_MASK != CODECS[config.compression_type]:
        data = recompress(batch, CODECS[config.compression_type], _level(config))
    if config.message_timestamp_type == "LogAppendTime":
        return with_append_time(data, now_ms), now_ms
    if max_time > now_ms + config.message_timestamp_after_max_ms:
        raise too_new(max_time, now_ms, config)
    if 0 <= base_time < now_ms - config.message_timestamp_before_max_ms:
        raise Refusal(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {base_time} is {now_ms - base_time} ms behind the broker's clock, "
            f"message.timestamp.before.max.ms allows {config.message_timestamp_before_max_ms}",
        )
    return data, -1


def _check_keys(batch: bytes) -> None:
    try:
        without_key = keyless(batch, DECOMPRESSED_BYTES_MAX, RECORDS_LOOKED_AT_MAX)
    except CorruptRecords as error:
        raise Refusal(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if without_key:
        raise Refusal(ErrorCode.INVALID_RECORD, "a compacted topic takes no record without a key")


def _level(config: TopicConfig) -> int | None:
    """The level that the topic's settings name for its codec; None is the codec's own default."""
    if config.compression_type == "gzip":
        return config.compression_gzip_level if config.compression_gzip_level >= 0 else None
    if config.compression_type == "lz4":
        return config.compression_lz4_level
    return config.compression_zstd_level if config.compression_type == "zstd" else None


def recompress(batch: bytes, codec: int, level: int | None) -> bytes:
    """The same records under the codec that the topic's compression.type names."""
    head = HEADER.unpack_from(batch)
    try:
        records = decode_batch(batch, size_max=DECOMPRESSED_BYTES_MAX, count_max=RECORDS_LOOKED_AT_MAX)
    except CorruptRecords as error:
        raise Refusal(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    return encode_batch(
        records,
        codec=codec,
        level=level,
        base_offset=head[0],
        producer_id=head[9],
        producer_epoch=head[10],
        base_sequence=head[11],
        transactional=bool(head[5] & TRANSACTIONAL_BIT),
    )


def wrong_length(length: int, size: int) -> Refusal:
    if HEADER_BYTES - LENGTH_OVERHEAD <= length < size - LENGTH_OVERHEAD:
        return Refusal(
            ErrorCode.INVALID_RECORD, "a produce request may hold one batch a partition, this one holds more"
        )
    return Refusal(
        ErrorCode.CORRUPT_MESSAGE, f"the batch says {length + LENGTH_OVERHEAD} bytes and has {size}"
    )


def too_large(size: int, config: TopicConfig) -> Refusal:
    return Refusal(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the batch has {size} bytes, max.message.bytes is {config.max_message_bytes}",
    )


def bad_header(count: int, delta: int, attributes: int) -> Refusal:
    if attributes & CONTROL_BIT:
        return Refusal(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    if attributes & TIMESTAMP_TYPE_BIT:
        return Refusal(ErrorCode.INVALID_TIMESTAMP, "clients may not set the timestamp type to LogAppendTime")
    if attributes & ~(CODEC_MASK | TRANSACTIONAL_BIT):
        return Refusal(ErrorCode.INVALID_RECORD, f"unknown batch attributes {attributes & 0xFFFF:#06x}")
    if attributes not in CLIENT_ATTRIBUTES:
        return Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"no codec {attributes & CODEC_MASK}")
    return Refusal(
        ErrorCode.INVALID_RECORD, f"the batch counts {count} records but its last offset delta is {delta}"
    )


def no_producer() -> Refusal:
    return Refusal(ErrorCode.INVALID_RECORD, "a batch of a transaction needs a producer id")


def too_new(timestamp: int, now_ms: int, config: TopicConfig) -> Refusal:
    return Refusal(
        ErrorCode.INVALID_TIMESTAMP,
        f"timestamp {timestamp} is {timestamp - now_ms} ms ahead of the broker's clock, "
        f"message.timestamp.after.max.ms allows {config.message_timestamp_after_max_ms}",
    )
