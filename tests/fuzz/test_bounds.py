"""What a hostile client may cost: the limits and refusals of framing, decoding and decompression, for every
API served.

Where each bound has its test, if not here:

    frames that are negative or too large        runtime/test_transport.py::test_garbage_closes_that_connection_alone
    a request beyond its API's own size          broker/test_core.py::test_a_request_beyond_its_apis_size_is_not_decoded
    counts beyond the bytes left, any message    wire/test_guard.py::test_no_count_anywhere_in_any_message_brings_the_process_down
    more than a million items                    wire/test_decode.py::test_more_than_a_million_items_are_refused_even_if_they_fit
    more than 10,000 tagged fields               wire/test_decode.py::test_a_tagged_section_of_too_many_fields_is_refused
    varints, varlongs                            wire/test_decode.py::test_an_overlong_varint_is_refused, records/test_varint.py
    decompression by size and ratio, every codec records/test_compression.py::test_bombs_do_not_grow_the_process
    CRC, magic, counts, control batches          broker/api/test_produce.py::test_a_batch_that_cannot_be_accepted_is_refused_and_changes_nothing
    telemetry by its size                        broker/api/test_telemetry.py::test_what_is_refused
    connections: altogether, an address, a rate  runtime/test_connections.py::test_connections_altogether and those around it
    idle connections, clients that never read    runtime/test_connections.py::test_a_client_that_never_reads_is_closed_in_the_end
    answers that nobody reads                    runtime/test_transport.py::test_a_reader_of_nothing_cannot_make_the_broker_keep_its_answers
    a bad request: its connection, logged once   runtime/test_connections.py::test_a_flood_of_bad_requests_is_not_a_flood_of_words
"""

import resource
import socket
import struct
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ottla.records.compression import GZIP, LZ4, SNAPPY, ZSTD, compress
from ottla.records.record import Record, encode_batch
from ottla.wire.encode import request_encoder, uvarint
from ottla.wire.schema import request_header_is_flexible
from testkit.fuzz.batches import batch_around, bomb, crowd_payload
from testkit.fuzz.core import Attacker, Round
from testkit.fuzz.outcome import resident_bytes
from testkit.fuzz.sockets import Asker, Process
from testkit.fuzz.valid_requests import HEAD, frame_of, served_versions

CODECS = pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, INVALID_RECORD = 2, 56, 87
PUSH_TELEMETRY, LIST_OFFSETS, API_VERSIONS = 72, 2, 18
#: Memory that one hostile request may take for a moment, whatever it claims.
MEMORY_MAX = 4 << 20


@pytest.fixture
def world() -> Round:
    return Round("bounds", {})


def is_closed_by(world: Round, frame: bytes) -> bool:
    attacker = Attacker(world)
    attacker.expected.ask(frame)
    world.receive(attacker.client, frame)
    closed = attacker.client.closed
    world.disconnect(attacker.client)
    return closed


# --- counts and lengths -------------------------------------------------------------------------------------------------


def lies(body: bytes) -> Iterator[bytes]:
    """Each position in a request's body replaced by a count or length that is much too large."""
    for at in range(len(body)):
        yield body[:at] + struct.pack(">i", 0x7FFFFFFF) + body[at + 4 :]
        yield body[:at] + uvarint(20_000_001) + body[at + 1 :]
        yield body[:at] + uvarint(0xFFFFFFFF) + body[at + 1 :]
        yield body[:at] + b"\xff" * 11 + body[at + 1 :]


@pytest.mark.parametrize("key", sorted({key for key, _version in served_versions()}))
def test_no_count_in_any_request_costs_more_than_its_bytes(world: Round, key: int) -> None:
    """In the oldest and the newest version of each API; nothing is raised, and nothing is allocated for
    missing bytes.
    """
    versions = [version for each, version in served_versions() if each == key]
    tracemalloc.start()
    try:
        for version in {versions[0], versions[-1]}:
            body = world.maker.body(key, version)
            # Once before, so that the import of a version at its first use is not measured.
            is_closed_by(world, frame_of(key, version, 1, body))
            for lie in lies(body[:120]):
                before = tracemalloc.get_traced_memory()[0]
                tracemalloc.reset_peak()
                is_closed_by(world, frame_of(key, version, 1, lie))
                assert tracemalloc.get_traced_memory()[1] - before < MEMORY_MAX, lie.hex()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [10_001, 20_000_000, 0xFFFFFFFF])
def test_abatch_around_of_too_many_tagged_fields_is_refused_for_every_flexible_version(
    world: Round, count: int
) -> None:
    """Twenty million of them in a header once exhausted the memory of a broker before authentication."""
    flexible = [
        (key, version) for key, version in served_versions() if request_header_is_flexible(key, version)
    ]
    assert flexible
    for key, version in flexible:
        assert is_closed_by(world, HEAD.pack(key, version, 1, -1) + uvarint(count) + bytes(100)), (
            key,
            version,
        )


def test_abatch_around_with_as_many_tagged_fields_as_allowed_is_read(world: Round) -> None:
    tags = uvarint(10_000) + b"\x05\x00" * 10_000
    assert not is_closed_by(world, HEAD.pack(API_VERSIONS, 3, 1, -1) + tags + b"\x02a\x02b\x00")


# --- what is packed -----------------------------------------------------------------------------------------------------


def produced(world: Round, topic: str, batch: bytes) -> Any:
    return world.produce(topic, 0, batch)


@pytest.mark.parametrize(
    ("topic", "codec"),
    [
        *(("compacted", codec) for codec in (GZIP, SNAPPY, LZ4, ZSTD)),
        # The topic stores zstd, so a zstd batch is not decompressed.
        *(("recompressed", codec) for codec in (GZIP, SNAPPY, LZ4)),
    ],
)
def test_a_bomb_is_refused_where_the_broker_must_look_inside(world: Round, topic: str, codec: int) -> None:
    assert produced(world, topic, bomb(codec)).error_code.value == CORRUPT_MESSAGE


@CODECS
def test_a_bomb_that_was_stored_is_not_unpacked_by_a_look_up_by_time(world: Round, codec: int) -> None:
    """A plain topic accepts it without reading it; a lookup by time fails at once."""
    assert produced(world, "plain", bomb(codec)).error_code.value == 0
    partition = {"partition_index": 0, "timestamp": 1, "current_leader_epoch": -1}
    topics = [{"name": "plain", "partitions": [partition]}]
    answer = world.ask(LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=topics)
    assert answer.topics[0].partitions[0].error_code.value == KAFKA_STORAGE_ERROR
    # The partition continues to work.
    assert produced(world, "plain", encode_batch([Record(0, 1, b"k", b"v")])).error_code.value == 0


@pytest.mark.parametrize("topic", ["compacted", "recompressed"])
def test_more_than_a_million_records_are_not_looked_at(world: Round, topic: str) -> None:
    """They compress to almost nothing, and each would be an object."""
    row = produced(
        world, topic, batch_around(GZIP, compress(GZIP, crowd_payload(10)), 1_000_001, world.now_ms)
    )
    assert row.error_code.value == INVALID_RECORD
    assert "at most 1000000 are accepted" in row.error_message


def test_a_crowd_of_records_in_a_few_bytes_is_handled_in_bounded_time(world: Round) -> None:
    payload = compress(ZSTD, crowd_payload(100_000))
    started = time.process_time()
    assert (
        produced(world, "compacted", batch_around(ZSTD, payload, 100_000, world.now_ms)).error_code.value == 0
    )
    assert time.process_time() - started < 2


def test_metrics_are_not_unpacked(world: Round) -> None:
    """A gigabyte of zeros in a hundred kilobytes."""
    packed = compress(ZSTD, bytes(1 << 26)) * 16
    assert len(packed) < 1 << 20
    before = resident_bytes()
    body = request_encoder(PUSH_TELEMETRY, 0)(
        {"client_instance_id": b"\1" * 16, "subscription_id": 1, "compression_type": ZSTD, "metrics": packed}
    )
    assert not is_closed_by(world, frame_of(PUSH_TELEMETRY, 0, 1, body))
    assert resident_bytes() - before < 64 << 20


# --- connections --------------------------------------------------------------------------------------------------------

HOSTILE = 2000


@pytest.fixture
def process(scratch: Path) -> Iterator[Process]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < HOSTILE + 500:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, HOSTILE + 500), hard))
    running = Process(scratch / "data", {"max.connection.creation.rate": "100000"})
    yield running
    assert running.stop() == 0


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


@pytest.mark.parametrize(
    ("sent", "kilobytes"),
    [(b"", 8), (b"\0", 8), (struct.pack(">i", 100 << 20) + bytes(100), 32), (struct.pack(">i", 100 << 20) + bytes(20_000), 128)],
    ids=["nothing", "a byte", "100 MiB announced", "20 kB of 100 MiB"],
)  # fmt: skip
def test_what_a_half_sent_frame_costs(
    process: Process, sent: bytes, kilobytes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Memory follows the bytes that arrived, not those that were announced."""
    asker = Asker(process.address)
    asker.ask(API_VERSIONS, 0)
    before = resident_bytes(process.pid)
    with ExitStack() as open_sockets:
        for _ in range(HOSTILE):
            hostile = open_sockets.enter_context(connect(process.address))
            hostile.sendall(sent)
        # Its requests come after the attack's: when it is answered a few times, all of those have been read.
        for _ in range(50):
            assert asker.ask(API_VERSIONS, 0).api_keys
        each = (resident_bytes(process.pid) - before) / HOSTILE
        with capsys.disabled():
            print(f"\n  {each / 1000:.1f} kB for each of {HOSTILE} connections with {len(sent)} bytes")
        assert each < kilobytes * 1024
    asker.close()


def test_a_frame_that_comes_a_byte_at_a_time_holds_up_nobody(process: Process) -> None:
    asker = Asker(process.address)
    request = frame_of(API_VERSIONS, 0, 9, b"")
    slow = [connect(process.address) for _ in range(50)]
    for each in slow:
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    longest = 0.0
    for byte in struct.pack(">i", len(request)) + request:
        for each in slow:
            each.sendall(bytes((byte,)))
        started = time.monotonic()
        assert asker.ask(API_VERSIONS, 0).api_keys
        longest = max(longest, time.monotonic() - started)
    for each in slow:
        assert each.recv(8, socket.MSG_WAITALL)[4:] == struct.pack(">i", 9)
        each.close()
    assert longest < 2
    asker.close()
