"""The newest offset of each key, in a table of fixed size. It bounds the memory of a compaction.

Open addressing with double hashing over two flat buffers, 24 bytes per slot: 16 for a key's fingerprint, 8
for the offset after its newest record (0: free). A dict of bytes to int would take 190 bytes per key, so a
log with many keys would need six times as many passes, each of which reads the whole log.

A key of up to 15 bytes is its own fingerprint: padded with zeros and followed by its length, so two keys
never collide. A longer key has a BLAKE2b digest of 16 bytes. Two of a billion keys collide with a probability
of 10^-20, and collisions cannot be constructed, as they can with Kafka's MD5.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import Final

SLOT_BYTES: Final = 24
_FINGERPRINT_BYTES: Final = 16
#: The last byte of the fingerprint of a short key: its length.
_LENGTHS: Final = tuple(bytes((length,)) for length in range(_FINGERPRINT_BYTES))


def _room(slots: int, load_factor: float) -> int:
    # One slot always stays free, so that every probe ends.
    return max(1, min(int(slots * load_factor), slots - 1))


class KeyMap:
    __slots__ = ("_ends", "_keys", "_mask", "capacity", "size")

    def __init__(self, *, memory_bytes: int, load_factor: float, keys_max: int) -> None:
        """A map within this memory for as many keys as fit, at most `keys_max`."""
        slots = 2
        while slots * 2 * SLOT_BYTES <= memory_bytes and _room(slots, load_factor) < keys_max:
            slots *= 2
        self.capacity = _room(slots, load_factor)
        self._mask = slots - 1
        self._keys = bytearray(slots * _FINGERPRINT_BYTES)
        self._ends = array("q", bytes(8)) * slots
        self.size = 0

    def put(self, key: bytes, offset: int) -> None:
        """Store the offset of a record. Records of one key must come in the order of their offsets, and
        `size` must be below `capacity`.
        """
        length = len(key)
        mark = (
            key.ljust(15, b"\0") + _LENGTHS[length]
            if length < _FINGERPRINT_BYTES
            else blake2b(key, digest_size=_FINGERPRINT_BYTES).digest()
        )
        ends, keys, mask = self._ends, self._keys, self._mask
        code = hash(mark)
        slot = code & mask
        while ends[slot]:
            if keys.startswith(mark, slot << 4):
                ends[slot] = offset + 1
                return
            slot = (slot + (code >> 32 | 1)) & mask
        ends[slot] = offset + 1
        keys[slot << 4 : (slot << 4) + _FINGERPRINT_BYTES] = mark
        self.size += 1

    def newest(self, key: bytes) -> int:
        """The offset of the newest record of a key; -1 if it is unknown."""
        length = len(key)
        mark = (
            key.ljust(15, b"\0") + _LENGTHS[length]
            if length < _FINGERPRINT_BYTES
            else blake2b(key, digest_size=_FINGERPRINT_BYTES).digest()
        )
        ends, keys, mask = self._ends, self._keys, self._mask
        code = hash(mark)
        slot = code & mask
        while end := ends[slot]:
            if keys.startswith(mark, slot << 4):
                return end - 1
            slot = (slot + (code >> 32 | 1)) & mask
        return -1
