"""The header of a record batch (magic 2), read and checked without touching the records.

      0  base offset            8     the broker writes it on append
      8  batch length           4     bytes after this field
     12  partition leader epoch 4     the broker writes it on append
     16  magic                  1     2
     17  crc                    4     CRC-32C of everything from byte 21 to the end
     21  attributes             2     bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon
     23  last offset delta      4
     27  base timestamp         8
     35  max timestamp          8
     43  producer id            8
     51  producer epoch         2
     53  base sequence          4
     57  record count           4
     61  records

The CRC does not cover the first 21 bytes, which is why a broker can place a batch in its log without reading
it.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = 61
#: Base offset, batch length and leader epoch: an append overwrites them.
PREFIX: Final = struct.Struct(">qii")
PREFIX_BYTES: Final = 16
#: Bytes that the batch length does not include.
LENGTH_OVERHEAD: Final = 12
MAGIC_START: Final = 16
CRC_START: Final = 21
#: The low byte of the attributes, which holds all known bits.
ATTRIBUTES_LOW: Final = 22
CRC_BYTES: Final = 4
PRODUCER_START: Final = 43
COUNT_START: Final = 57
MAGIC: Final = 2

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40
KNOWN_BITS: Final = 0x7F

#: Base offset and batch length: enough to go from batch to batch.
OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
#: Last offset delta, base and max timestamp, from byte 23.
DELTA_AND_TIMES: Final = struct.Struct(">iqq")
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21
_MAX_TIMESTAMP_AT: Final = 35


def crc_of(batch: bytes | bytearray | memoryview) -> int:
    """The CRC that the batch should have. The argument is exactly one batch."""
    return crc32c(memoryview(batch)[CRC_START:])


def with_append_time(batch: bytes | bytearray | memoryview, now_ms: int) -> bytearray:
    """The same batch with the broker's time (LogAppendTime): a header edit and a new CRC."""
    stamped = bytearray(batch)
    attributes = struct.unpack_from(">h", stamped, _ATTRIBUTES_AT)[0] | TIMESTAMP_TYPE_BIT
    struct.pack_into(">h", stamped, _ATTRIBUTES_AT, attributes)
    struct.pack_into(">q", stamped, _MAX_TIMESTAMP_AT, now_ms)
    struct.pack_into(">I", stamped, _CRC_AT, crc_of(stamped))
    return stamped
