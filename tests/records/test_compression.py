"""Codecs: round trips, output of other writers, bombs, and broken input."""

from __future__ import annotations

import contextlib
import gzip
import subprocess
import sys
import textwrap
import tracemalloc
import zlib
from collections.abc import Callable

import aiokafka.codec
import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.records import compression
from ottla.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, compress, decompress
from ottla.records.errors import CorruptRecords

CODECS = (GZIP, SNAPPY, LZ4, ZSTD)
MIB = 1 << 20
TEXT = b"".join(b"line %d of something that repeats and varies\n" % (i * i) for i in range(9000))

payloads = st.one_of(
    st.binary(max_size=3000),
    st.builds(lambda unit, times: unit * times, st.binary(min_size=1, max_size=40), st.integers(0, 20_000)),
)


def zstd_streamed(data: bytes, *, flush_every: int | None = None) -> bytes:
    """A frame without a content size, as streaming writers leave it."""
    compressor = cramjam.zstd.Compressor(level=3)
    written = b""
    for start in range(0, len(data), flush_every or len(data) or 1):
        compressor.compress(data[start : start + (flush_every or len(data))])
        if flush_every:
            written += bytes(compressor.flush())
    return written + bytes(compressor.finish())


def lz4_frame(data: bytes, *, linked: bool, checksum: bool) -> bytes:
    compressor = cramjam.lz4.Compressor(level=9, content_checksum=checksum, block_linked=linked)
    compressor.compress(data)
    return bytes(compressor.finish())


def zstd_runs(block_bytes: int, blocks: int) -> bytes:
    """A frame of run-length blocks: four bytes for each `block_bytes` of output."""

    def block(last: int) -> bytes:
        return (block_bytes << 3 | 1 << 1 | last).to_bytes(3, "little") + b"x"

    return bytes.fromhex("28b52ffd0058") + block(0) * (blocks - 1) + block(1)


def bomb(codec: int, size: int) -> bytes:
    if codec == ZSTD:
        return zstd_runs(128 * 1024, size // (128 * 1024))
    return compress(codec, bytes(size))


@given(st.sampled_from((NONE, *CODECS)), payloads)
def test_round_trip(codec: int, data: bytes) -> None:
    assert decompress(codec, compress(codec, data), len(data)) == data
    assert decompress(codec, memoryview(compress(codec, memoryview(data))), len(data)) == data


@pytest.mark.parametrize("codec", CODECS)
def test_one_byte_too_many_is_refused(codec: int) -> None:
    compressed = compress(codec, TEXT)
    assert len(compressed) < len(TEXT)
    assert decompress(codec, compressed, len(TEXT)) == TEXT
    with pytest.raises(CorruptRecords):
        decompress(codec, compressed, len(TEXT) - 1)


def test_uncompressed_is_capped_too() -> None:
    with pytest.raises(CorruptRecords):
        decompress(NONE, b"abc", 2)


@pytest.mark.parametrize("level", [1, 9])
@pytest.mark.parametrize("codec", CODECS)
def test_levels(codec: int, level: int) -> None:
    assert decompress(codec, compress(codec, TEXT, level), MIB) == TEXT


def test_unknown_codecs() -> None:
    with pytest.raises(CorruptRecords):
        decompress(5, b"", MIB)
    with pytest.raises(ValueError, match="codec"):
        compress(5, b"")


AIOKAFKA: dict[int, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    GZIP: (aiokafka.codec.gzip_encode, aiokafka.codec.gzip_decode),
    SNAPPY: (aiokafka.codec.snappy_encode, aiokafka.codec.snappy_decode),
    LZ4: (aiokafka.codec.lz4_encode, aiokafka.codec.lz4_decode),
    ZSTD: (aiokafka.codec.zstd_encode, aiokafka.codec.zstd_decode),
}


@given(st.sampled_from(CODECS), payloads.filter(bool))
def test_aiokafka_reads_ours_and_we_read_its(codec: int, data: bytes) -> None:
    encode, decode = AIOKAFKA[codec]
    assert bytes(decode(compress(codec, data))) == data
    assert decompress(codec, bytes(encode(data)), len(data)) == data


def test_foreign_forms() -> None:
    """What Java, librdkafka and others write where they differ from ottla."""
    size_max = len(TEXT)
    assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT)), size_max) == TEXT
    assert decompress(GZIP, gzip.compress(TEXT, mtime=7), size_max) == TEXT
    assert decompress(ZSTD, zstd_streamed(TEXT), size_max) == TEXT
    assert decompress(ZSTD, zstd_streamed(TEXT, flush_every=5000), size_max) == TEXT
    assert decompress(ZSTD, zstd_streamed(b""), size_max) == b""
    for linked in (False, True):
        for checksum in (False, True):
            assert decompress(LZ4, lz4_frame(TEXT, linked=linked, checksum=checksum), size_max) == TEXT


def test_lz4_frame_with_content_size_and_large_blocks() -> None:
    # flags: version 1, independent blocks, content size; block size 4 MiB; one stored block.
    header = bytes.fromhex("6870") + len(TEXT).to_bytes(8, "little")
    frame = (
        b"\x04\x22\x4d\x18"
        + header
        + bytes([0])
        + (len(TEXT) | 1 << 31).to_bytes(4, "little")
        + TEXT
        + bytes(4)
    )
    # The header checksum is the one byte that a decoder checks.
    accepted = [
        decoded
        for checksum in range(256)
        if (decoded := _or_none(LZ4, frame[:14] + bytes([checksum]) + frame[15:], len(TEXT))) is not None
    ]
    assert accepted == [TEXT]


def _or_none(codec: int, data: bytes, size_max: int) -> bytes | None:
    try:
        return decompress(codec, data, size_max)
    except CorruptRecords:
        return None


@pytest.mark.parametrize("codec", CODECS)
def test_streams_in_a_row(codec: int) -> None:
    twice = compress(codec, TEXT) + compress(codec, b"and more")
    assert decompress(codec, twice, MIB) == TEXT + b"and more"
    with pytest.raises(CorruptRecords):
        decompress(codec, twice, len(TEXT))


def test_gzip_members_are_counted() -> None:
    assert decompress(GZIP, compress(GZIP, b"a") * 16, MIB) == b"a" * 16
    with pytest.raises(CorruptRecords, match="members"):
        decompress(GZIP, compress(GZIP, b"a") * 17, MIB)


def test_java_reads_only_independent_lz4_blocks() -> None:
    assert compress(LZ4, TEXT)[4] & 0x20


def test_snappy_is_written_for_java() -> None:
    assert compress(SNAPPY, TEXT)[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


@pytest.mark.parametrize("codec", CODECS)
def test_bombs_are_refused_without_their_memory(codec: int) -> None:
    data = bomb(codec, 64 * MIB)
    size_max = 2 * MIB
    decompress(codec, compress(codec, b"warm"), size_max)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecords):
            decompress(codec, data, size_max)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * size_max + 256 * 1024


def test_bombs_do_not_grow_the_process() -> None:
    """The same with the decoders' own memory, which only the maximum of the process shows."""
    script = """
        import resource, sys
        from ottla.records.compression import ZSTD, decompress
        from ottla.records.errors import CorruptRecords
        import cramjam, zlib
        frames = eval(sys.stdin.read())
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        refused = 0
        for codec, data in frames:
            try:
                decompress(codec, data, 1 << 20)
            except CorruptRecords:
                refused += 1
        print(refused, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    # The last one requests the largest window that a zstd decoder accepts.
    wide = zstd_runs(128 * 1024, 1000)
    frames = [(codec, bomb(codec, 64 * MIB)) for codec in CODECS]
    frames.append((ZSTD, wide[:5] + b"\x88" + wide[6:]))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        input=repr(frames),
        text=True,
        capture_output=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    refused, grown_kib = map(int, done.stdout.split())
    assert refused == len(frames)
    assert grown_kib < 12 * 1024


def test_small_input_cannot_claim_a_large_allowance() -> None:
    free = compression.RATIO_FREE_BYTES
    block = 128 * 1024
    assert len(decompress(ZSTD, zstd_runs(block, free // block), 1 << 30)) == free
    with pytest.raises(CorruptRecords):
        decompress(ZSTD, zstd_runs(block, free // block + 1), 1 << 30)


def test_snappy_that_declares_more_than_it_can_hold() -> None:
    # Ten bytes that claim 1 MiB: refused before anything of that size is allocated.
    data = bytes.fromhex("808040") + b"\x00a" + bytes(5)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecords, match="declare"):
            decompress(SNAPPY, data, 8 * MIB)
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("text", [b"", b"short", TEXT[:2000]])
def test_every_cut_is_refused(codec: int, text: bytes) -> None:
    compressed = compress(codec, text)
    whole = {0, len(compressed)}
    if codec == SNAPPY:
        whole = {16, len(compressed)}  # a stream without blocks is complete, and so is an empty record set
    for size in range(len(compressed)):
        if size in whole:
            continue
        with pytest.raises(CorruptRecords):
            decompress(codec, compressed[:size], MIB)
    with pytest.raises(CorruptRecords):
        decompress(codec, b"", MIB)


@pytest.mark.parametrize("length", [-4, -1, 0, 8, (1 << 31) - 1])
def test_snappy_block_lengths_that_lie(length: int) -> None:
    block = bytes(cramjam.snappy.compress_raw(b"block"))
    stream = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    assert decompress(SNAPPY, stream + len(block).to_bytes(4, "big") + block, MIB) == b"block"
    with pytest.raises(CorruptRecords, match="are left"):
        decompress(SNAPPY, stream + length.to_bytes(4, "big", signed=True) + block, MIB)


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_behind_are_refused(codec: int) -> None:
    for rest in (b"\x00", b"garbage", bytes(40)):
        with pytest.raises(CorruptRecords):
            decompress(codec, compress(codec, TEXT) + rest, MIB)


@given(
    st.sampled_from(CODECS),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6),
    st.binary(max_size=600),
)
def test_mutations_give_bytes_or_corrupt_records(
    codec: int, changes: list[tuple[int, int]], data: bytes
) -> None:
    mutated = bytearray(compress(codec, data + TEXT[:1000]))
    for position, byte in changes:
        mutated[position % len(mutated)] = byte
    with contextlib.suppress(CorruptRecords):
        assert len(decompress(codec, mutated, MIB)) <= MIB


@given(st.sampled_from(CODECS), st.binary(max_size=300))
def test_noise_gives_bytes_or_corrupt_records(codec: int, noise: bytes) -> None:
    magics = {
        GZIP: b"\x1f\x8b\x08\x00",
        SNAPPY: b"\x82SNAPPY\x00",
        LZ4: b"\x04\x22\x4d\x18",
        ZSTD: b"\x28\xb5\x2f\xfd",
    }
    for data in (noise, magics[codec] + noise):
        with contextlib.suppress(CorruptRecords):
            assert len(decompress(codec, data, MIB)) <= MIB


def test_cramjam_is_not_loaded_for_plain_and_gzip() -> None:
    script = """
        import sys
        from ottla.records.record import Record, decode_batch, encode_batch
        for codec in (0, 1):
            decode_batch(encode_batch([Record(0, 1, b"k", b"v")], codec=codec))
        print("cramjam" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        text=True,
        capture_output=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.strip() == "False"


def test_gzip_is_plain_gzip() -> None:
    assert zlib.decompress(compress(GZIP, TEXT), wbits=31) == TEXT
