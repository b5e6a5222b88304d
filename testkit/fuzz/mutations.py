"""Mutations of a valid request: what a broken, old, new or hostile client might send.

`mutate` takes a request without its size field and returns another; `framed` adds the size, right or wrong.
Each mutation has a name, which a failure prints. The same seed produces the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from struct import Struct
from typing import Final

from ottla.wire.encode import request_encoder, uvarint
from testkit.fuzz.batches import break_batch
from testkit.fuzz.valid_requests import Maker, frame_of

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_COUNTS: Final = (0, -1, -2, 1, 255, 256, 999_999, 1_000_001, 20_000_000, 0x7FFFFFFF, -0x80000000)
_VARINTS: Final = (
    b"\x00",
    b"\x80\x80\x80\x80\x80\x01",
    b"\xff" * 10 + b"\x01",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x7f",
    b"\x80\x00",
    uvarint(1_000_001),
    uvarint(20_000_000),
)
_HEADER_BYTES: Final = 14

Mutation = Callable[[Random, bytearray, Maker], None]


def flip_bits(random: Random, frame: bytearray, maker: Maker) -> None:
    for _ in range(random.choice((1, 1, 2, 8))):
        frame[random.randrange(len(frame))] ^= 1 << random.randrange(8)


def set_bytes(random: Random, frame: bytearray, maker: Maker) -> None:
    for _ in range(random.choice((1, 1, 3))):
        frame[random.randrange(len(frame))] = random.choice(
            (0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF, random.randrange(256))
        )


def cut(random: Random, frame: bytearray, maker: Maker) -> None:
    del frame[random.randrange(1, len(frame)) :]


def insert(random: Random, frame: bytearray, maker: Maker) -> None:
    at = random.randrange(len(frame) + 1)
    frame[at:at] = random.randbytes(random.choice((1, 1, 2, 4, 30)))


def take_out(random: Random, frame: bytearray, maker: Maker) -> None:
    at = random.randrange(_HEADER_BYTES, max(len(frame), _HEADER_BYTES + 1))
    del frame[at : at + random.choice((1, 1, 2, 4, 16))]


def splice(random: Random, frame: bytearray, maker: Maker) -> None:
    """The start of one request and the end of another."""
    other = maker.frame(1)
    frame[random.randrange(len(frame)) :] = other[random.randrange(len(other)) :]


def repeat(random: Random, frame: bytearray, maker: Maker) -> None:
    start = random.randrange(len(frame))
    piece = frame[start : start + random.choice((1, 4, 20))]
    frame[start:start] = piece * random.choice((1, 2, 50))


def set_count(random: Random, frame: bytearray, maker: Maker) -> None:
    """A count or length of four bytes, where one might be."""
    if len(frame) >= _HEADER_BYTES + 4:
        _INT32.pack_into(frame, random.randrange(_HEADER_BYTES, len(frame) - 3), random.choice(_COUNTS))


def set_short(random: Random, frame: bytearray, maker: Maker) -> None:
    if len(frame) >= _HEADER_BYTES + 2:
        _INT16.pack_into(
            frame,
            random.randrange(_HEADER_BYTES, len(frame) - 1),
            random.choice((-1, -2, 0, 1, 0x7FFF, -0x8000)),
        )


def set_varint(random: Random, frame: bytearray, maker: Maker) -> None:
    at = random.randrange(min(_HEADER_BYTES, len(frame) - 1), len(frame))
    frame[at : at + 1] = random.choice(_VARINTS)


def add_tags(random: Random, frame: bytearray, maker: Maker) -> None:
    """A tagged section where an empty one might be: unknown tags, known ones, wrong sizes."""
    empty = [at for at in range(min(_HEADER_BYTES, len(frame)), len(frame)) if not frame[at]]
    if empty:
        at = random.choice(empty)
        count = random.choice((1, 1, 2, 100, 10_001))
        written = random.choice((count, 1, 0))
        fields = b"".join(
            uvarint(random.choice((0, 1, number, 5000)))
            + random.choice((b"\0", b"\1x", b"\4abcd", b"\xff\xff\xff\xff\x0f"))
            for number in range(min(written, 200))
        )
        frame[at : at + 1] = uvarint(count) + fields


def set_header(random: Random, frame: bytearray, maker: Maker) -> None:
    """Another API, version or client id."""
    at = random.choice((0, 2, 2, 8))
    _INT16.pack_into(
        frame,
        at,
        random.choice((0, -1, 1, 3, 18, 99, 0x7FFF, -0x8000, random.randrange(20), random.randrange(80))),
    )


def append(random: Random, frame: bytearray, maker: Maker) -> None:
    frame += random.randbytes(random.choice((1, 4, 100)))


def produce_garbage(random: Random, frame: bytearray, maker: Maker) -> None:
    """A produce that is valid except for its batches."""
    version = random.choice((3, 5, 7, 8, 9, 11, 12, 13))
    topic = maker.topic()
    rows = [
        {"index": number, "records": break_batch(random, maker.known.now_ms)}
        for number in range(random.choice((1, 1, 1, 2)))
    ]
    body = request_encoder(0, version)(
        {
            "acks": random.choice((-1, -1, 1, 0)),
            "timeout": 1000,
            "topic_data": [{"name": topic, "topic_id": maker.known.topics[topic], "partition_data": rows}],
        }
    )
    frame[:] = frame_of(0, version, _INT32.unpack_from(frame, 4)[0], body)


def leave(random: Random, frame: bytearray, maker: Maker) -> None:
    """No mutation: state for the others must be created."""


#: By how often each is chosen.
_MUTATIONS: Final[tuple[Mutation, ...]] = (
    flip_bits, flip_bits, flip_bits, set_bytes, set_bytes, cut, insert, take_out, splice, repeat, set_count, set_count,
    set_short, set_varint, set_varint, add_tags, set_header, append, produce_garbage, produce_garbage, produce_garbage,
    leave, leave, leave, leave, leave, leave,
)  # fmt: skip


def mutate(random: Random, frame: bytes, maker: Maker) -> tuple[str, bytes]:
    """The names of the mutations, and the request; never empty."""
    mutated = bytearray(frame)
    names = []
    for _ in range(random.choice((1, 1, 1, 1, 2, 3))):
        if len(mutated) > _HEADER_BYTES:
            mutation = random.choice(_MUTATIONS)
            mutation(random, mutated, maker)
            names.append(mutation.__name__)
    return "+".join(names), bytes(mutated) or b"\0"


def framed(random: Random, frame: bytes) -> bytes:
    """The request with its size, which may be wrong: then the rest of the connection is garbage."""
    length = len(frame)
    if random.random() < 0.02:
        length = random.choice(
            (0, -1, -0x80000000, 0x7FFFFFFF, 104_857_601, length + 1, length - 1, 50_000_000)
        )
    return _INT32.pack(length) + frame
