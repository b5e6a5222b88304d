"""What a topic's settings demand of a batch beyond its header: timestamps, codecs, keys.

`PartitionLog.append` calls this only for topics whose settings ask for more than the plain path does
(`TopicConfig.plain` is false), so the records of an ordinary topic are never decoded.
"""

from __future__ import annotations

from ottla.config.topic import TopicConfig
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import DECOMPRESSED_BYTES_MAX
from ottla.ports.disk import Buffer
from ottla.records.batch import CODEC_MASK, HEADER, TRANSACTIONAL_BIT, with_append_time
from ottla.records.compression import CODECS
from ottla.records.record import CorruptRecords, decode_batch, encode_batch, keyless


def check_policies(
    batch: bytes, attributes: int, base_time: int, max_time: int, now_ms: int, config: TopicConfig
) -> tuple[Buffer, int]:
    """The batch as it must be stored, and the append time (-1 if the producer's timestamps stand)."""
    data: Buffer = batch
    if config.compact:
        _check_keys(batch)
    if config.compression_type != "producer" and attributes & CODEC_MASK != CODECS[config.compression_type]:
        data = recompress(batch, CODECS[config.compression_type])
    if config.message_timestamp_type == "LogAppendTime":
        return with_append_time(data, now_ms), now_ms
    if max_time > now_ms + config.message_timestamp_after_max_ms:
        raise Refusal(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {max_time} is {max_time - now_ms} ms ahead of the broker's clock, "
            f"message.timestamp.after.max.ms allows {config.message_timestamp_after_max_ms}",
        )
    if 0 <= base_time < now_ms - config.message_timestamp_before_max_ms:
        raise Refusal(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {base_time} is {now_ms - base_time} ms behind the broker's clock, "
            f"message.timestamp.before.max.ms allows {config.message_timestamp_before_max_ms}",
        )
    return data, -1


def _check_keys(batch: bytes) -> None:
    try:
        without_key = keyless(batch, DECOMPRESSED_BYTES_MAX)
    except CorruptRecords as error:
        raise Refusal(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    if without_key:
        raise Refusal(ErrorCode.INVALID_RECORD, "a compacted topic takes no record without a key")


def recompress(batch: bytes, codec: int) -> bytes:
    """The same records under the codec that the topic's compression.type names."""
    head = HEADER.unpack_from(batch)
    try:
        records = decode_batch(batch, size_max=DECOMPRESSED_BYTES_MAX)
    except CorruptRecords as error:
        raise Refusal(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    return encode_batch(
        records,
        codec=codec,
        base_offset=head[0],
        producer_id=head[9],
        producer_epoch=head[10],
        base_sequence=head[11],
        transactional=bool(head[5] & TRANSACTIONAL_BIT),
    )
