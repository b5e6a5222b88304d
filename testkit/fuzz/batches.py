"""Record batches: valid ones of every codec, and ones with arbitrary wrong fields and a valid CRC.

A broker always reads the header of a batch, and its records only where it must (compacted topics, another
codec, lookup by time). So an invalid batch with a valid CRC gets far. Called by `valid_requests` and
`mutations`.
"""

from __future__ import annotations

import struct
from functools import cache
from random import Random
from typing import Final

from ottla.records.batch import HEADER, HEADER_BYTES, LENGTH_OVERHEAD, crc_of
from ottla.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress
from ottla.records.record import Record, encode_batch
from ottla.records.varint import VARINTS

_CODECS: Final = (NONE, GZIP, SNAPPY, LZ4, ZSTD)
_INTERESTING: Final = (
    0,
    1,
    -1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    -0x8000,
    0x7FFFFFFF,
    -0x80000000,
    1 << 40,
    -(1 << 63),
)
#: Position and format of each number of the header that the CRC covers or the broker reads.
_FIELDS: Final = (
    (0, ">q"), (8, ">i"), (12, ">i"), (16, ">b"), (21, ">h"), (23, ">i"), (27, ">q"), (35, ">q"), (43, ">q"),
    (51, ">h"), (53, ">i"), (57, ">i"),
)  # fmt: skip
#: Above the 16 MB that are allowed at any ratio.
_BOMB_BYTES: Final = 24 << 20


def make_batch(random: Random, now_ms: int, producer_id: int = 1, transactional_epoch: int = -1) -> bytes:
    """A valid batch of a few records; with an epoch, a transactional one."""
    records = [
        Record(
            number,
            now_ms - random.choice((0, 0, 1, 100_000)),
            random.choice((b"k", b"key%d" % number, b"")),
            random.choice((b"v" * random.choice((1, 10, 200)), None)),
            (("h", b"1"), ("é", None)) if random.random() < 0.2 else (),
        )
        for number in range(random.choice((1, 1, 2, 5)))
    ]
    transactional = transactional_epoch >= 0
    idempotent = transactional or random.random() < 0.2
    return encode_batch(
        records,
        codec=random.choice(_CODECS),
        producer_id=producer_id if idempotent else -1,
        producer_epoch=transactional_epoch if transactional else 0 if idempotent else -1,
        base_sequence=random.choice((0, 0, 0, 1, 2, 3)) if idempotent else -1,
        transactional=transactional,
    )


def with_right_crc(batch: bytearray) -> bytes:
    if len(batch) >= HEADER_BYTES:
        struct.pack_into(">I", batch, 17, crc_of(batch))
    return bytes(batch)


def break_batch(random: Random, now_ms: int) -> bytes:
    """An invalid batch with a valid CRC."""
    choice = random.randrange(100)
    if choice < 35:
        return _lying_header(random, now_ms)
    if choice < 60:
        return _lying_records(random, now_ms)
    if choice < 80:
        return _garbage_payload(random, now_ms)
    if choice < 90:
        batch = bytearray(make_batch(random, now_ms))
        del batch[random.randrange(len(batch)) :]
        return with_right_crc(batch)
    if choice < 94:
        return make_batch(random, now_ms) + make_batch(random, now_ms)
    if choice < 99:
        return _many_records(random, now_ms)
    return bomb(random.choice((GZIP, SNAPPY, LZ4, ZSTD)))


def _lying_header(random: Random, now_ms: int) -> bytes:
    batch = bytearray(make_batch(random, now_ms))
    for _ in range(random.choice((1, 1, 2))):
        position, kind = random.choice(_FIELDS)
        number = random.choice(_INTERESTING) if random.random() < 0.7 else random.randrange(-5, 300)
        bits = 8 * struct.calcsize(kind)
        number = (number + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
        struct.pack_into(kind, batch, position, number)
    return with_right_crc(batch)


def _lying_records(random: Random, now_ms: int) -> bytes:
    """Records whose bytes are changed before compression: lengths, counts, deltas, varints."""
    payload = bytearray(
        encode_batch([Record(n, now_ms, b"key", b"value%d" % n, (("h", b"1"),)) for n in range(3)])[
            HEADER_BYTES:
        ]
    )
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(payload) + 1)
        what = random.randrange(4)
        if what == 0 and at < len(payload):
            payload[at] = random.choice((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF, random.randrange(256)))
        elif what == 1:
            payload[at:at] = random.choice((b"\x80" * 5, b"\xff" * 10 + b"\x01", b"\xff\xff\xff\xff\x0f"))
        elif what == 2:
            del payload[at : at + random.randint(1, 8)]
        else:
            payload += random.randbytes(random.randint(1, 8))
    return _around(random, bytes(payload), 3, now_ms)


def _garbage_payload(random: Random, now_ms: int) -> bytes:
    """Bytes that claim to be compressed: noise, a truncated stream, a stream inside another."""
    codec = random.choice((GZIP, SNAPPY, LZ4, ZSTD))
    inner = random.randbytes(random.choice((0, 1, 30, 300)))
    what = random.randrange(4)
    if what == 0:
        payload = inner
    elif what == 1:
        payload = compress(codec, inner)[: random.randrange(40)]
    elif what == 2:
        changed = bytearray(compress(codec, inner + bytes(1000)))
        for _ in range(random.randint(1, 3)):
            changed[random.randrange(len(changed))] = random.randrange(256)
        payload = bytes(changed)
    else:
        payload = compress(codec, compress(random.choice((GZIP, SNAPPY, LZ4, ZSTD)), inner))
    return batch_around(codec, payload, random.choice((1, 3, 1000, 0x7FFFFFFF)), now_ms)


def _around(random: Random, payload: bytes, count: int, now_ms: int) -> bytes:
    codec = random.choice(_CODECS)
    return batch_around(codec, compress(codec, payload), count, now_ms)


def _many_records(random: Random, now_ms: int) -> bytes:
    """As many records as fit into a small batch: seven bytes each, which compress to almost nothing."""
    codec = random.choice((GZIP, ZSTD, LZ4))
    return batch_around(codec, _crowd(codec), _CROWD, now_ms)


#: Many records. Each needs its own delta, which takes three bytes.
_CROWD: Final = 20_000


@cache
def _crowd(codec: int) -> bytes:
    return compress(codec, crowd_payload(_CROWD))


def crowd_payload(count: int) -> bytes:
    """Records with empty keys and values: the smallest."""
    parts = []
    for number in range(count):
        body = b"\0\0" + VARINTS[number] + b"\0\0\0"
        parts.append(VARINTS[len(body)] + body)
    return b"".join(parts)


@cache
def bomb(codec: int) -> bytes:
    """A batch that decompresses to more than the limit, or claims to: snappy cannot compress that much."""
    if codec == SNAPPY:
        return batch_around(codec, b"\x80\x80\x80\x80\x04" + bytes(20), 1, 1_600_000_000_000)
    return batch_around(codec, compress(codec, bytes(_BOMB_BYTES)), 1, 1_600_000_000_000)


def batch_around(codec: int, payload: bytes, count: int, now_ms: int) -> bytes:
    """A batch with this payload, whatever it is."""
    length = HEADER_BYTES - LENGTH_OVERHEAD + len(payload)
    count = max(-0x7FFFFFFF, min(count, 0x7FFFFFFF))
    head = HEADER.pack(0, length, -1, 2, 0, codec, count - 1, now_ms, now_ms, -1, -1, -1, count)
    return with_right_crc(bytearray(head + payload))
