"""The four codecs of record batches. Output can be read by any Kafka client; input is not trusted.

`decompress` never gives a decoder more memory than the caller allows. gzip is inflated with a maximum length.
For the others, the structure of the compressed bytes gives an upper bound of the output: a snappy preamble,
the block headers of an lz4 or zstd frame. The decoder writes into one buffer of that size, limited by the
allowance, so a decompression bomb overflows the buffer and is refused. Output above `RATIO_FREE_BYTES` must
also stay below `RATIO_MAX` times the input.

Written formats: a gzip member; snappy in the block framing of xerial's library, which Java clients expect; an
lz4 frame of independent blocks, because Java clients refuse linked ones; a zstd frame. Also read: raw snappy,
frames with or without a content size, several gzip members or frames in a row.

The codecs are C or Rust and release the interpreter lock. cramjam is imported at the first use: a broker that
only moves batches never loads it.
"""

from __future__ import annotations

import zlib
from struct import Struct
from typing import Final, TypeAlias

from ottla.records.errors import CorruptRecords

Buffer: TypeAlias = bytes | bytearray | memoryview

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")
#: By the names in compression.type.
CODECS: Final = {name: number for number, name in enumerate(CODEC_NAMES)} | {"uncompressed": 0}

#: Output up to this size is allowed at any ratio: megabytes of one repeated byte are a legitimate message.
RATIO_FREE_BYTES: Final = 16 * 1024 * 1024
#: Twice the maximum of deflate. Only zstd exceeds it (43,000), and only for data without content.
RATIO_MAX: Final = 2048

#: Maximum output per input byte of each codec. deflate: a match takes two bits and gives 258 bytes. snappy: a
#: copy takes 3 bytes and gives 64. lz4: a length byte adds 255. zstd: a run takes 4 bytes and gives a block
#: of 128 KiB.
RATIOS: Final = (1, 1032, 22, 255, 32 * 1024)

_GZIP_WBITS: Final = 31
#: Each further member copies the rest of the input, so their number is limited. Clients write one.
_GZIP_MEMBERS_MAX: Final = 16

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_LZ4_MAGIC: Final = 0x184D2204
_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_BLOCK_BYTES_MAX: Final = 128 * 1024

_INT32: Final = Struct(">i")
_UINT32_LITTLE: Final = Struct("<I")


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` in the given codec. `level` is in the codec's own scale; snappy has none."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return zlib.compress(data, -1 if level is None else level, wbits=_GZIP_WBITS)
    import cramjam  # at the first use: see the module docstring

    if codec == SNAPPY:
        return _compress_xerial(data)
    if codec == LZ4:
        # The CRC of the batch covers these bytes, so the frame has no content checksum.
        compressor = cramjam.lz4.Compressor(level=level or 0, content_checksum=False, block_linked=False)
        compressor.compress(bytes(data))  # the decoder accepts only bytes; no copy if it is bytes already
        return bytes(compressor.finish())
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=3 if level is None else level))
    raise ValueError(f"no codec {codec}")


def decompress(codec: int, data: Buffer, size_max: int) -> bytes:
    """The decompressed `data`, at most `size_max` bytes; raises CorruptRecords if it is invalid or larger."""
    if codec == NONE:
        if len(data) > size_max:
            raise CorruptRecords(f"{len(data)} bytes of records exceed {size_max}")
        return bytes(data)
    limit = min(size_max, max(RATIO_FREE_BYTES, RATIO_MAX * len(data)))
    if codec == GZIP:
        return _inflate(data, limit)
    if codec == SNAPPY:
        return _decompress_snappy(data, limit)
    if codec == LZ4:
        return _decompress_frames(codec, data, _lz4_bound(data), limit)
    if codec == ZSTD:
        return _decompress_frames(codec, data, _zstd_bound(data), limit)
    raise CorruptRecords(f"no codec {codec}")


def _inflate(data: Buffer, limit: int) -> bytes:
    members: list[bytes] = []
    left = limit
    for _ in range(_GZIP_MEMBERS_MAX):
        inflater = zlib.decompressobj(_GZIP_WBITS)
        try:
            # One byte above the allowance distinguishes "exactly full" from "too large"; zero would mean no
            # limit.
            member = inflater.decompress(data, left + 1)
        except zlib.error as error:
            raise CorruptRecords(f"gzip: {error}") from None
        if len(member) > left:
            raise CorruptRecords(f"gzip: more than the {limit} bytes allowed")
        if not inflater.eof:
            raise CorruptRecords("gzip: the stream is cut short")
        members.append(member)
        left -= len(member)
        data = inflater.unused_data
        if not data:
            return members[0] if len(members) == 1 else b"".join(members)
    raise CorruptRecords(f"gzip: more than {_GZIP_MEMBERS_MAX} members")


def _compress_xerial(data: Buffer) -> bytes:
    import cramjam

    view = memoryview(data)
    parts: list[bytes] = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, limit: int) -> bytes:
    import cramjam

    view = memoryview(data)
    blocks = _xerial_blocks(view) if _starts_xerial(view, 0) else [view]
    try:
        sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
        for block, size in zip(blocks, sizes, strict=True):
            if size > RATIOS[SNAPPY] * len(block):
                raise CorruptRecords(f"snappy: {len(block)} bytes cannot hold the {size} they declare")
        total = sum(sizes)
        if total > limit:
            raise CorruptRecords(f"snappy: more than the {limit} bytes allowed")
        output = bytearray(total)
        room = memoryview(output)
        position = 0
        for block, size in zip(blocks, sizes, strict=True):
            cramjam.snappy.decompress_raw_into(block, room[position : position + size])
            position += size
    except cramjam.DecompressionError as error:
        raise CorruptRecords(f"snappy: {error}") from None
    return bytes(output)


def _starts_xerial(view: memoryview, position: int) -> bool:
    return bytes(view[position : position + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    blocks = []
    position = 0
    size = len(view)
    while position < size:
        # Streams can be concatenated: a header in place of a block length.
        if _starts_xerial(view, position):
            position += len(_XERIAL_HEADER)
            if position > size:
                raise CorruptRecords("snappy: the stream header is cut short")
            continue
        if position + 4 > size:
            raise CorruptRecords("snappy: a block length is cut short")
        length = _INT32.unpack_from(view, position)[0]
        position += 4
        if not 0 < length <= size - position:
            raise CorruptRecords(f"snappy: a block of {length} bytes where {size - position} are left")
        blocks.append(view[position : position + length])
        position += length
    return blocks


def _decompress_frames(codec: int, data: Buffer, bound: int, limit: int) -> bytes:
    import cramjam

    output = bytearray(min(bound, limit))
    name = CODEC_NAMES[codec]
    try:
        if codec == LZ4:
            size = cramjam.lz4.decompress_into(data, output)
        else:
            size = cramjam.zstd.decompress_into(data, output)
    except cramjam.DecompressionError as error:
        if bound > limit:
            raise CorruptRecords(f"{name}: broken, or more than the {limit} bytes allowed: {error}") from None
        raise CorruptRecords(f"{name}: {error}") from None
    return bytes(memoryview(output)[:size])


def _uint32(data: Buffer, position: int, codec: int) -> int:
    if position + 4 > len(data):
        raise CorruptRecords(f"{CODEC_NAMES[codec]}: the frame is cut short")
    return int(_UINT32_LITTLE.unpack_from(data, position)[0])


def _lz4_bound(data: Buffer) -> int:
    """The most that the frames in `data` can hold.

    magic 4 | flags 1 | block size code 1 | content size 8? | dictionary id 4? | header checksum 1
    then blocks: size 4 (top bit: stored as is; 0: end) | bytes | checksum 4?    then content checksum 4?
    """
    total = 0
    position = 0
    size = len(data)
    while True:
        if _uint32(data, position, LZ4) != _LZ4_MAGIC:
            raise CorruptRecords("lz4: no frame where one should start")
        if position + 7 > size:
            raise CorruptRecords("lz4: the frame is cut short")
        flags = data[position + 4]
        code = data[position + 5] >> 4 & 7
        if flags >> 6 != 1 or flags & 1 or code < 4:
            raise CorruptRecords("lz4: an unknown version or block size, or a dictionary")
        block_bytes_max = 1 << (8 + 2 * code)
        block_checksum_bytes = 4 if flags & 0x10 else 0
        position += 15 if flags & 0x08 else 7
        while block_bytes := _uint32(data, position, LZ4):
            stored = block_bytes >> 31
            block_bytes &= 0x7FFFFFFF
            total += block_bytes if stored else min(block_bytes_max, RATIOS[LZ4] * block_bytes)
            position += 4 + block_bytes + block_checksum_bytes
        position += 8 if flags & 0x04 else 4
        if position == size:
            return total
        if position > size:
            raise CorruptRecords("lz4: the frame is cut short")


def _zstd_bound(data: Buffer) -> int:
    """The most that the frames in `data` can hold.

    magic 4 | descriptor 1 | window 1? | dictionary id 0-4 | content size 0-8
    then blocks: 3 bytes (bit 0: last; bits 1-2: stored, run, compressed; 21 bits: size) | bytes
    then checksum 4?
    """
    total = 0
    position = 0
    size = len(data)
    while True:
        if _uint32(data, position, ZSTD) != _ZSTD_MAGIC:
            raise CorruptRecords("zstd: no frame where one should start")
        if position + 5 > size:
            raise CorruptRecords("zstd: the frame is cut short")
        descriptor = data[position + 4]
        if descriptor & 0x03:
            raise CorruptRecords("zstd: a frame with a dictionary")
        single_segment = descriptor >> 5 & 1
        # Code 0 means no content size, or one byte of it in place of the window.
        content_size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
        position += 5 + (1 - single_segment) + content_size_bytes
        last = False
        while not last:
            if position + 3 > size:
                raise CorruptRecords("zstd: the frame is cut short")
            header = data[position] | data[position + 1] << 8 | data[position + 2] << 16
            last = bool(header & 1)
            kind = header >> 1 & 3
            block_bytes = header >> 3
            total += _ZSTD_BLOCK_BYTES_MAX if kind == 2 else block_bytes
            position += 4 if kind == 1 else 3 + block_bytes
        position += 4 if descriptor & 0x04 else 0
        if position == size:
            return total
        if position > size:
            raise CorruptRecords("zstd: the frame is cut short")
