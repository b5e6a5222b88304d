"""Which partition a key belongs to: Kafka's murmur2, so that every client sends a key to the same place.

Called by the producer for records with a key; records without one are the producer's own business.
"""

from __future__ import annotations

from struct import unpack_from
from typing import Final

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """The hash as a signed 32-bit number, as Java prints it."""
    length = len(key)
    words = length >> 2
    mixed = _SEED ^ length
    for word in unpack_from(f"<{words}I", key):
        product = word * _MULTIPLIER & _MASK
        mixed = (mixed * _MULTIPLIER ^ (product ^ product >> 24) * _MULTIPLIER) & _MASK
    rest = key[words << 2 :]
    if rest:
        mixed = (mixed ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _MASK
    mixed = (mixed ^ mixed >> 13) * _MULTIPLIER & _MASK
    mixed ^= mixed >> 15
    return mixed - (1 << 32) if mixed >> 31 else mixed


def partition_for_key(key: bytes, count: int) -> int:
    """The partition, of `count`, that holds records with this key."""
    return (murmur2(key) & 0x7FFFFFFF) % count
