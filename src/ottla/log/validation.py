"""Validation of batches, beyond the checks that `PartitionLog.append` makes itself.

Only topics that need it come here (`TopicConfig.plain` is false): checks of timestamps, codecs and keys. The
records of other topics are never decoded. `validate` decodes and recompresses in steps, because a batch can
have a million records; `validation_cost` estimates in advance how long that takes. The other functions create
error messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from typing import Final, NamedTuple

from ottla.config.topic import TopicConfig
from ottla.model.errors import ErrorCode, Refusal
from ottla.model.limits import (
    DECOMPRESSED_BYTES_MAX,
    HEADERS_LOOKED_AT_MAX,
    RECORD_ERRORS_MAX,
    RECORDS_LOOKED_AT_MAX,
)
from ottla.model.steps import STEP_COST, Steps, run
from ottla.ports.disk import Buffer
from ottla.records.batch import (
    ATTRIBUTES_LOW,
    CODEC_MASK,
    CONTROL_BIT,
    COUNT_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    with_append_time,
)
from ottla.records.compression import CODECS, NONE, RATIOS
from ottla.records.record import RECORD_BYTES_MIN, CorruptRecords, Record, iter_batch, read_payload, seal

#: Attributes that a client's batch can have: a codec, and the transactional bit. Timestamp type, control bit
#: and delete horizon are set by the broker.
CLIENT_ATTRIBUTES: Final = frozenset(
    codec | transactional for codec in CODECS.values() for transactional in (0, TRANSACTIONAL_BIT)
)

#: Up to this cost, in records, a batch is validated at once. 64 KB of uncompressed records cost about the
#: same.
INLINE_COST_MAX: Final = 2000
_BYTES_AT_COST_1: Final = 32
_BYTES_COPIED_AT_COST_1: Final = 8192
#: Cost of decompressing a small batch, and its maximum decompressed size.
_UNPACK_COST: Final = 200
_UNPACKED_BYTES_MAX: Final = INLINE_COST_MAX * _BYTES_AT_COST_1

#: Maximum decompressed size of a rejected batch whose records are listed: decompressing it takes 1 ms.
_NAMED_BYTES_MAX: Final = 1 << 20

#: Rejected records that an error message lists.
_SHOWN_MAX: Final = 3


class Validated(NamedTuple):
    """The result of a validation before the append."""

    #: The settings it was validated for. The batch is validated again if they have changed by the time of the
    #: append.
    config: TopicConfig
    #: The batch to store.
    data: Buffer
    #: The reason why it is refused.
    refusal: Refusal | None


def validation_cost(batch: Buffer, config: TopicConfig) -> int:
    """Approximate cost of `validate`; 0 if the records need not be read."""
    if len(batch) < HEADER_BYTES:
        return 0
    codec = batch[ATTRIBUTES_LOW] & CODEC_MASK
    is_recompressed = _is_recompressed(codec, config)
    if not config.compact and not is_recompressed:
        return 0
    count = int.from_bytes(batch[COUNT_START:HEADER_BYTES], "big")
    cost = count + len(batch) // _BYTES_AT_COST_1
    if codec and cost <= INLINE_COST_MAX:
        try:
            # A hundred bytes can have a million headers: the cost is known only after decompression.
            payload, start = read_payload(batch, codec, count, _UNPACKED_BYTES_MAX)
        except CorruptRecords:
            return INLINE_COST_MAX + 1
        cost = count + (len(payload) - start) // _BYTES_AT_COST_1
    return cost + _UNPACK_COST if codec or is_recompressed else cost


def validate(batch: bytes, config: TopicConfig, where: str) -> Steps[Validated]:
    """Check the records and convert them to the topic's codec. `where` is the partition, for messages."""
    codec = batch[ATTRIBUTES_LOW] & CODEC_MASK if len(batch) >= HEADER_BYTES else NONE
    is_recompressed = _is_recompressed(codec, config)
    data: Buffer = batch
    try:
        if config.compact or is_recompressed:
            max_time = yield from _walk(batch, codec, config.compact, where)
            if is_recompressed:
                data = yield partial(
                    recompress, batch, CODECS[config.compression_type], _level(config), max_time
                )
    except CorruptRecords as error:
        return Validated(config, batch, Refusal(ErrorCode.CORRUPT_MESSAGE, str(error)))
    except Refusal as refusal:
        return Validated(config, batch, refusal)
    return Validated(config, data, None)


def check_policies(
    batch: bytes,
    attributes: int,
    base_time: int,
    max_time: int,
    now_ms: int,
    config: TopicConfig,
    where: str,
    validated: Validated | None,
) -> tuple[Buffer, int]:
    """The batch to store, and the append time (-1: the producer's timestamps are kept)."""
    data: Buffer = batch
    if config.compact or _is_recompressed(attributes & CODEC_MASK, config):
        if validated is None or validated.config is not config:
            validated = run(validate(batch, config, where))
        if validated.refusal is not None:
            raise validated.refusal
        data = validated.data
    if config.message_timestamp_type == "LogAppendTime":
        return with_append_time(data, now_ms), now_ms
    if max_time > now_ms + config.message_timestamp_after_max_ms:
        raise too_new(batch, max_time, now_ms, config)
    if 0 <= base_time < now_ms - config.message_timestamp_before_max_ms:
        oldest = now_ms - config.message_timestamp_before_max_ms
        raise Refusal(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {base_time} is {now_ms - base_time} ms behind the broker's clock, "
            f"message.timestamp.before.max.ms allows {config.message_timestamp_before_max_ms}",
            tuple(
                (index, f"timestamp {record.timestamp_ms} is before {oldest}, the earliest that is accepted")
                for index, record in _first_records(batch)
                if record.timestamp_ms < oldest
            )[:RECORD_ERRORS_MAX],
        )
    return data, -1


def _is_recompressed(codec: int, config: TopicConfig) -> bool:
    return config.compression_type != "producer" and codec != CODECS[config.compression_type]


def _walk(batch: bytes, codec: int, needs_keys: bool, where: str) -> Steps[int]:
    """Decode every record; returns the largest timestamp."""
    records = iter_batch(
        batch, DECOMPRESSED_BYTES_MAX, RECORDS_LOOKED_AT_MAX, headers_max=HEADERS_LOOKED_AT_MAX
    )
    if codec:
        # This decompresses the whole batch.
        first = yield partial(next, records, None)
        records = chain(() if first is None else (first,), records)
    max_time, cost, keyless = -1, 0, 0
    indexes: list[int] = []
    for index, (_, timestamp, key, value, headers) in enumerate(records):
        if timestamp > max_time:
            max_time = timestamp
        if key is None:
            keyless += 1
            if keyless <= RECORD_ERRORS_MAX:
                indexes.append(index)
        cost += 1 + len(headers) + (len(value) // _BYTES_COPIED_AT_COST_1 if value else 0)
        if cost >= STEP_COST:
            yield cost
            cost = 0
    if needs_keys and keyless:
        raise _without_keys(indexes, keyless, where)
    return max_time


def _without_keys(indexes: list[int], count: int, where: str) -> Refusal:
    message = f"a compacted topic accepts no record without a key ({where})"
    shown = ", ".join(map(str, indexes[:_SHOWN_MAX])) + (", ..." if count > _SHOWN_MAX else "")
    return Refusal(
        ErrorCode.INVALID_RECORD,
        f"{message}: {count} records of the batch have none, by their index: {shown}. "
        "Send keys, or remove compact from the topic's cleanup.policy",
        tuple((index, message) for index in indexes),
    )


def _first_records(batch: bytes) -> Iterator[tuple[int, Record]]:
    """The first records of a refused batch, to list the invalid ones; none if that would take long."""
    if len(batch) > INLINE_COST_MAX * _BYTES_AT_COST_1:
        return
    try:
        records = iter_batch(batch, _NAMED_BYTES_MAX, RECORDS_LOOKED_AT_MAX, headers_max=0)
        yield from enumerate(islice(records, INLINE_COST_MAX))
    except CorruptRecords:
        # The batch is refused for another reason, which is reported.
        return


def _level(config: TopicConfig) -> int | None:
    """The compression level in the topic's settings; None: the codec's default."""
    if config.compression_type == "gzip":
        return config.compression_gzip_level if config.compression_gzip_level >= 0 else None
    if config.compression_type == "lz4":
        return config.compression_lz4_level
    return config.compression_zstd_level if config.compression_type == "zstd" else None


def recompress(batch: bytes, codec: int, level: int | None, max_time: int) -> bytes:
    """The same records in the codec of the topic's compression.type. All of it is C code."""
    head = HEADER.unpack_from(batch)
    count = head[12]
    payload, start = read_payload(batch, head[5] & CODEC_MASK, count, DECOMPRESSED_BYTES_MAX, copied=False)
    return seal(
        payload[start:],
        count=count,
        base_timestamp=head[7],
        timestamp_max=max_time,
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
            ErrorCode.INVALID_RECORD, "a produce request can have one batch per partition, this one has more"
        )
    return Refusal(
        ErrorCode.CORRUPT_MESSAGE, f"the batch says {length + LENGTH_OVERHEAD} bytes and has {size}"
    )


def too_large(size: int, config: TopicConfig) -> Refusal:
    return Refusal(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the batch has {size} bytes, max.message.bytes is {config.max_message_bytes}",
    )


def check_header(count: int, delta: int, attributes: int, size: int) -> None:
    """Refuse attributes that clients cannot set, and a count of more records than the bytes can hold."""
    if attributes & CONTROL_BIT:
        raise Refusal(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    if attributes & TIMESTAMP_TYPE_BIT:
        raise Refusal(ErrorCode.INVALID_TIMESTAMP, "clients may not set the timestamp type to LogAppendTime")
    if attributes & ~(CODEC_MASK | TRANSACTIONAL_BIT):
        raise Refusal(ErrorCode.INVALID_RECORD, f"unknown batch attributes {attributes & 0xFFFF:#06x}")
    if attributes not in CLIENT_ATTRIBUTES:
        raise Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"no codec {attributes & CODEC_MASK}")
    if count != delta + 1 or count < 1:
        raise Refusal(
            ErrorCode.INVALID_RECORD, f"the batch counts {count} records but its last offset delta is {delta}"
        )
    if count > RECORDS_LOOKED_AT_MAX:
        raise Refusal(
            ErrorCode.INVALID_RECORD,
            f"the batch counts {count} records, at most {RECORDS_LOOKED_AT_MAX} are accepted: send smaller batches",
        )
    # Otherwise a few bytes could use up all offsets of a segment.
    if count * RECORD_BYTES_MIN > (size - HEADER_BYTES) * RATIOS[attributes & CODEC_MASK]:
        raise Refusal(
            ErrorCode.INVALID_RECORD,
            f"the batch counts {count} records, {size - HEADER_BYTES} bytes cannot hold that many",
        )


def no_producer() -> Refusal:
    return Refusal(ErrorCode.INVALID_RECORD, "a batch of a transaction needs a producer id")


def too_new(batch: bytes, timestamp: int, now_ms: int, config: TopicConfig) -> Refusal:
    newest = now_ms + config.message_timestamp_after_max_ms
    return Refusal(
        ErrorCode.INVALID_TIMESTAMP,
        f"timestamp {timestamp} is {timestamp - now_ms} ms ahead of the broker's clock, "
        f"message.timestamp.after.max.ms allows {config.message_timestamp_after_max_ms}",
        tuple(
            (index, f"timestamp {record.timestamp_ms} is after {newest}, the latest that is accepted")
            for index, record in _first_records(batch)
            if record.timestamp_ms > newest
        )[:RECORD_ERRORS_MAX],
    )
