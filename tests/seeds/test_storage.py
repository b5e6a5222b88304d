"""The claims of mission.md under "Storage" that a single node makes true, one test each, on the files themselves.

The layouts are spelled out here once more, independent of the package, so that a mistake there cannot hide here.

    .index       relative offset i32 | position i32
    .timeindex   timestamp i64 | relative offset i32
    batch        offset i64 | length i32 | leader epoch i32 | magic i8 | crc u32 | attributes i16 | last offset delta i32 |
                 base timestamp i64 | max timestamp i64 | producer id i64 | epoch i16 | sequence i32 | count i32 | records
"""

# ruff: noqa: N802 (a test bears the id of its claim)

import os
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from crc32c import crc32c

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.log.partition_log import PartitionLog
from ottla.ports.disk import File
from ottla.records.record import decode_batch
from ottla.runtime.disk import SystemDisk
from ottla.runtime.platform import HAS_SENDFILE
from ottla.server import node
from ottla.server.embedded import Broker
from tests.crash.broker_process import (
    FETCH,
    PATIENCE_S,
    PRODUCE,
    BrokerProcess,
    Wire,
    batch_of,
    fetching,
    producing,
    wait_until,
)

HEADER = struct.Struct(">qiibIhiqqqhii")
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class Batch(NamedTuple):
    position: int
    data: bytes
    base_offset: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta


def batches_in(log: Path) -> Iterator[Batch]:
    data = log.read_bytes()
    at = 0
    while at < len(data):
        base, length, *rest = HEADER.unpack_from(data, at)
        yield Batch(at, data[at : at + 12 + length], base, *rest)
        at += 12 + length
    assert at == len(data), "nothing but whole batches"


def entries_in(index: Path, layout: str) -> list[tuple[int, int]]:
    return list(struct.iter_unpack(layout, index.read_bytes()))  # type: ignore[arg-type]


def segments_in(folder: Path) -> list[int]:
    """The base offsets that the names of the logs tell."""
    return [int(path.stem) for path in sorted(folder.glob("*.log"))]


def produce_with_confluent(address: str, topic: str, values: Sequence[bytes], **settings: Any) -> None:
    producer = Producer({"bootstrap.servers": address, "log_level": 0, **settings})
    failed: list[Any] = []
    for value in values:
        producer.produce(
            topic, value, key=b"key", headers=[("h", b"1")], partition=0,
            on_delivery=lambda error, _message: failed.append(error) if error else None,
        )  # fmt: skip
    assert producer.flush(PATIENCE_S) == 0 and failed == []


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_B1_a_partition_is_a_folder_of_segments_named_by_their_base_offset(
    broker: BrokerProcess, wire: Wire
) -> None:
    """topic → partitions → one log each → segments of .log, .index and .timeindex, beside leader-epoch-checkpoint."""
    wire.create("orders", 2, segment_bytes="1000")
    for number in range(10):
        wire.produce("orders", batch_of(b"%d" % number, bytes(300)), partition=1)
    wire.produce("orders", batch_of(b"v"), partition=0)
    assert sorted(path.name for path in broker.data_dir.glob("orders-*")) == ["orders-0", "orders-1"]
    folder = broker.data_dir / "orders-1"
    bases = segments_in(folder)
    assert bases[0] == 0 and len(bases) > 2
    for base in bases:
        stem = f"{base:020d}"
        assert {path.suffix for path in folder.glob(f"{stem}.*")} >= {".log", ".index", ".timeindex"}
        assert next(batches_in(folder / f"{stem}.log")).base_offset == base
    assert (folder / "leader-epoch-checkpoint").read_text().split("\n")[:3] == ["0", "1", "0 0"]
    known = r"\d{20}\.(log|index|timeindex|snapshot)|leader-epoch-checkpoint|partition\.metadata"
    assert [path.name for path in folder.iterdir() if not re.fullmatch(known, path.name)] == []


def test_B2_both_indexes_are_sparse_and_true(broker: BrokerProcess, wire: Wire) -> None:
    """An entry every index.interval.bytes: offset → position and timestamp → offset."""
    interval = 4096
    wire.create("orders", index_interval_bytes=str(interval))
    start_ms = now_ms() - 3_000_000
    for number in range(300):
        wire.produce("orders", batch_of(bytes(400), bytes(400), timestamp_ms=start_ms + number * 1_000))
    assert broker.stop() == 0
    folder = broker.data_dir / "orders-0"
    batches = list(batches_in(folder / f"{0:020d}.log"))
    by_position = {batch.position: batch for batch in batches}
    entries = entries_in(folder / f"{0:020d}.index", ">ii")
    positions = [position for _offset, position in entries]
    size = batches[-1].position + len(batches[-1].data)
    assert size // (2 * interval) < len(entries) <= size // interval, "sparse, and not too sparse"
    assert all(interval <= after - before <= 2 * interval for before, after in pairwise(positions))
    for offset, position in entries:
        assert by_position[position].base_offset <= offset <= by_position[position].last_offset
    times = entries_in(folder / f"{0:020d}.timeindex", ">qi")
    assert len(times) <= len(entries) + 1 and times == sorted(times)
    for timestamp, offset in times:
        [batch] = [each for each in batches if each.base_offset <= offset <= each.last_offset]
        assert batch.max_timestamp == timestamp


def test_B2_every_look_up_by_offset_and_by_time_finds_its_place(broker: BrokerProcess, wire: Wire) -> None:
    """Across segments, inside batches, before and after a restart that empties every memory of positions."""
    wire.create("orders", segment_bytes="20000", index_interval_bytes="1000")
    start_ms = now_ms() - 3_000_000
    for number in range(200):
        wire.produce("orders", batch_of(bytes(150), bytes(150), timestamp_ms=start_ms + number * 10))
    assert len(segments_in(broker.data_dir / "orders-0")) > 3

    def look(again: Wire) -> None:
        for offset in range(0, 400, 7):
            assert again.fetch("orders", offset, bytes_max=1000)[0].offset == offset
            # Two records a batch, the second a millisecond after the first.
            at_ms = start_ms + offset // 2 * 10 + offset % 2
            assert again.end_offset("orders", timestamp=at_ms) == offset
        assert again.end_offset("orders", timestamp=start_ms + 15) == 4
        assert again.end_offset("orders", timestamp=now_ms()) == -1

    look(wire)
    broker.stop()
    broker.start()
    with Wire(broker.address) as fresh:
        look(fresh)


def test_B2_a_look_up_reads_a_few_blocks_and_not_the_segment(
    embed: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A binary search in the index and a short scan of the log: what is read does not grow with the segment."""

    class CountingDisk(SystemDisk):
        bytes_read = 0

        def read(self, file: File, position: int, size: int) -> bytes:
            data = super().read(file, position, size)
            CountingDisk.bytes_read += len(data)
            return data

    monkeypatch.setattr(node, "SystemDisk", CountingDisk)
    broker = embed(log_flush_policy="page-cache")
    start_ms = now_ms() - 30_000_000
    with Wire(broker.address) as wire:
        wire.create("orders")
        for number in range(4_000):
            wire.produce("orders", batch_of(bytes(4_000), timestamp_ms=start_ms + number))
        CountingDisk.bytes_read = 0
        assert wire.end_offset("orders", timestamp=start_ms + 1_234) == 1_234
        assert CountingDisk.bytes_read < 100_000
        CountingDisk.bytes_read = 0
        assert wire.fetch("orders", 1_234, bytes_max=5_000)[0].offset == 1_234
        assert CountingDisk.bytes_read < 50_000


def test_B3_a_batch_and_its_records_carry_what_the_notes_say(broker: BrokerProcess, wire: Wire) -> None:
    """A record: key, value, their lengths, timestamp, headers. A batch: CRC, magic, attributes, producer id, epoch, sequence."""
    wire.create("orders")
    produce_with_confluent(
        broker.address, "orders", [b"one", b"two"], **{"enable.idempotence": True, "linger.ms": 200}
    )
    [batch] = batches_in(broker.data_dir / "orders-0" / f"{0:020d}.log")
    assert batch.magic == 2
    assert batch.crc == crc32c(batch.data[21:])
    assert batch.attributes == 0
    assert (batch.base_offset, batch.last_offset_delta, batch.count) == (0, 1, 2)
    assert batch.producer_id >= 0 and batch.producer_epoch >= 0 and batch.base_sequence == 0
    assert abs(batch.base_timestamp - now_ms()) < 600_000
    # A record by hand: length, attributes, timestamp delta, offset delta, key, value, headers, all lengths as varints.
    first = batch.data[61:]
    assert first[0] >> 1 == len(b"\0\0\0" + b"\6key" + b"\6one" + b"\2\2h\2" + b"1")
    assert first[1:].startswith(b"\0\0\0" + b"\6key" + b"\6one" + b"\2\2h\2" + b"1")


def log_of(directory: Path, *, start_offset: int = 0, **overrides: str) -> PartitionLog:
    config = TopicConfig.resolve(
        {name.replace("_", "."): value for name, value in overrides.items()},
        BrokerConfig.from_properties({"log.dirs": str(directory)}),
    )
    return PartitionLog.create(
        SystemDisk(), str(directory / "orders-0"), config,
        start_offset=start_offset, now_ms=now_ms(), topic_id_file=b"",
    )  # fmt: skip


def test_B4_a_segment_rolls_before_it_would_pass_its_size(broker: BrokerProcess, wire: Wire) -> None:
    """By size: 1 GiB by default, 10,000 bytes here."""
    wire.create("orders", segment_bytes="10000")
    for _ in range(30):
        wire.produce("orders", batch_of(bytes(1_500)))
    folder = broker.data_dir / "orders-0"
    sizes = [path.stat().st_size for path in sorted(folder.glob("*.log"))]
    assert len(sizes) > 3
    one = len(batch_of(bytes(1_500)))
    assert all(10_000 - one < size <= 10_000 for size in sizes[:-1])


def test_B4_a_segment_rolls_when_its_first_record_is_too_old(broker: BrokerProcess, wire: Wire) -> None:
    """By time: seven days by default; the records' own timestamps count, so no test need wait for it."""
    wire.create("weekly")
    week_ms, first_ms = 7 * 24 * 3_600_000, now_ms() - 30 * 24 * 3_600_000
    wire.produce("weekly", batch_of(b"0", timestamp_ms=first_ms))
    wire.produce("weekly", batch_of(b"1", timestamp_ms=first_ms + week_ms))
    assert segments_in(broker.data_dir / "weekly-0") == [0]
    wire.produce("weekly", batch_of(b"2", timestamp_ms=first_ms + week_ms + 1))
    assert segments_in(broker.data_dir / "weekly-0") == [0, 2]


def test_B4_a_segment_rolls_when_an_index_is_full(broker: BrokerProcess, wire: Wire) -> None:
    """By a full index: 10 MiB by default, eight entries here."""
    wire.create("orders", segment_index_bytes=str(8 * 12), index_interval_bytes="0")
    for _ in range(40):
        wire.produce("orders", batch_of(b"v"))
    assert broker.stop() == 0
    folder = broker.data_dir / "orders-0"
    assert len(segments_in(folder)) > 2
    for path in folder.glob("*index"):
        assert path.stat().st_size <= 8 * 12


def test_B4_a_segment_rolls_when_a_relative_offset_would_not_fit(tmp_path: Path) -> None:
    """By the width of a relative offset: 2³¹ - 1 records after its base a segment can hold no more."""
    log = log_of(tmp_path, start_offset=5)
    log.append(batch_of(b"first"), 0, now_ms())
    # Two thousand million records would take a while: the log is told that it stands just before the limit.
    log.next_offset = log.active.next_offset = 5 + 2**31 - 2
    log.append(batch_of(b"last but one", b"last"), 0, now_ms())
    assert segments_in(tmp_path / "orders-0") == [5]
    log.append(batch_of(b"next"), 0, now_ms())
    assert segments_in(tmp_path / "orders-0") == [5, 5 + 2**31]
    log.close()


class HeldDisk(SystemDisk):
    """A disk whose syncs of logs wait: each for a permit, or until all are free."""

    free = threading.Event()
    permits = threading.Semaphore(0)
    syncs_begun = threading.Semaphore(0)
    syncs: list[str] = []  # noqa: RUF012  (shared by all on purpose)

    def sync(self, file: File) -> None:
        if file.path.endswith(".log"):
            HeldDisk.syncs.append(file.path)
            HeldDisk.syncs_begun.release()
            if not HeldDisk.free.is_set():
                assert HeldDisk.permits.acquire(timeout=PATIENCE_S)
        super().sync(file)

    @classmethod
    def release(cls) -> None:
        cls.free.set()
        cls.permits.release(1_000)


@pytest.fixture
def held(embed: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch) -> Iterator[type[HeldDisk]]:
    """Made after `embed`, so that it lets go of the syncs before the brokers are closed."""
    monkeypatch.setattr(node, "SystemDisk", HeldDisk)
    HeldDisk.free.clear()
    HeldDisk.syncs.clear()
    HeldDisk.permits, HeldDisk.syncs_begun = threading.Semaphore(0), threading.Semaphore(0)
    yield HeldDisk
    HeldDisk.release()


@pytest.mark.parametrize("acks", [1, -1])
def test_B5_durable_means_neither_acknowledged_nor_seen_before_it_is_on_disk(
    acks: int, embed: Callable[..., Broker], held: type[HeldDisk]
) -> None:
    """Under the durable policy an acknowledgement says "on disk", and a consumer sees only flushed records. A sync vouches
    for what was written before it began, and for nothing after."""
    broker = embed(log_flush_policy="durable")
    first, second = batch_of(b"first"), batch_of(b"second")
    with Wire(broker.address) as producer, Wire(broker.address) as consumer:
        producer.create("orders")
        producer.send(PRODUCE, 9, **producing("orders", first, acks=acks))
        assert held.syncs_begun.acquire(timeout=PATIENCE_S), "the record was written and its sync has begun"
        assert consumer.fetch("orders", 0) == []
        assert consumer.end_offset("orders") == 0
        producer.send(PRODUCE, 9, **producing("orders", second, acks=acks))
        [log] = Path(broker.data_dir).glob("orders-0/*.log")
        wait_until(lambda: log.stat().st_size == len(first) + len(second), "the second record is not written")
        producer.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            producer.receive()
        producer.socket.settimeout(PATIENCE_S)
        for number, values in enumerate(([b"first"], [b"first", b"second"]), start=1):
            held.permits.release()
            assert producer.receive().responses[0].partition_responses[0].error_code.value == 0
            assert consumer.end_offset("orders") == number
            assert [record.value for record in consumer.fetch("orders", 0)] == values


@pytest.mark.parametrize("acks", [1, -1])
def test_B5_page_cache_means_acknowledged_and_seen_before_any_sync(
    acks: int, embed: Callable[..., Broker], held: type[HeldDisk]
) -> None:
    """Under the page-cache policy an acknowledgement says "in the page cache": no sync of a log need ever end."""
    broker = embed(log_flush_policy="page-cache")
    with Wire(broker.address) as wire:
        wire.create("orders")
        assert wire.produce("orders", batch_of(b"v"), acks=acks) == 0
        assert [record.value for record in wire.fetch("orders", 0)] == [b"v"]
        assert held.syncs == []


def test_B5_a_topic_chooses_its_own_policy(embed: Callable[..., Broker], held: type[HeldDisk]) -> None:
    """flush.policy of a topic goes before log.flush.policy of the broker."""
    broker = embed(log_flush_policy="durable")
    with Wire(broker.address) as wire:
        wire.create("quick", flush_policy="page-cache")
        assert wire.produce("quick", batch_of(b"v")) == 0
        assert held.syncs == []


def test_B5_flush_messages_syncs_after_so_many(embed: Callable[..., Broker], held: type[HeldDisk]) -> None:
    """By count: nothing for four messages, a sync with the fifth."""
    held.release()
    broker = embed(log_flush_policy="page-cache")
    with Wire(broker.address) as wire:
        wire.create("orders", flush_messages="5")
        for _ in range(4):
            wire.produce("orders", batch_of(b"v"))
        assert held.syncs == []
        wire.produce("orders", batch_of(b"v"))
        assert held.syncs_begun.acquire(timeout=PATIENCE_S)


def test_B5_flush_ms_syncs_after_so_long(embed: Callable[..., Broker], held: type[HeldDisk]) -> None:
    """By time: a sync comes by itself, long before the background one that checkpoints (every 5 s) would."""
    held.release()
    broker = embed(log_flush_policy="page-cache")
    with Wire(broker.address) as wire:
        wire.create("orders", flush_ms="100")
        began = time.monotonic()
        wire.produce("orders", batch_of(b"v"))
        assert held.syncs_begun.acquire(timeout=PATIENCE_S)
        assert time.monotonic() - began < 4


def test_B7_a_log_is_only_ever_appended_to(
    embed: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sequential append: each write to a log begins where the one before it ended."""
    writes: dict[str, list[tuple[int, int]]] = {}

    class RecordingDisk(SystemDisk):
        def write(self, file: File, position: int, parts: Sequence[Any]) -> int:
            end = super().write(file, position, parts)
            if file.path.endswith((".log", ".index", ".timeindex")):
                writes.setdefault(file.path, []).append((position, end))
            return end

    monkeypatch.setattr(node, "SystemDisk", RecordingDisk)
    broker = embed()
    with Wire(broker.address) as wire:
        wire.create("orders", segment_bytes="5000", index_interval_bytes="500")
        for _ in range(100):
            wire.produce("orders", batch_of(bytes(300)))
        wire.fetch("orders", 0)
    broker.close()
    assert len([path for path in writes if path.endswith(".log")]) > 3
    assert len([path for path in writes if path.endswith(".index")]) > 3
    for path, spans in writes.items():
        ends = [0, *(end for _begin, end in spans)]
        assert [begin for begin, _end in spans] == ends[:-1], path


def test_B7_a_read_goes_from_the_file_to_the_socket_without_being_copied(
    embed: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zero copy: the bytes of a large fetch pass through sendfile, and none of them through the program."""
    sent: list[int] = []
    real = getattr(os, "sendfile", None)

    def counting(out_fd: int, in_fd: int, offset: int, count: int) -> int:
        assert real is not None
        done: int = real(out_fd, in_fd, offset, count)
        sent.append(done)
        return done

    class CountingDisk(SystemDisk):
        log_bytes_read = 0

        def read(self, file: File, position: int, size: int) -> bytes:
            if file.path.endswith(".log"):
                CountingDisk.log_bytes_read += size
            return super().read(file, position, size)

    monkeypatch.setattr(os, "sendfile", counting, raising=False)
    monkeypatch.setattr(node, "SystemDisk", CountingDisk)
    broker = embed()
    payload = os.urandom(500_000)
    with Wire(broker.address) as wire:
        wire.create("orders")
        for _ in range(8):
            wire.produce("orders", batch_of(payload))
        assert [record.value for record in wire.fetch("orders", 0)] == [payload] * 8
    if HAS_SENDFILE:
        assert sum(sent) >= 8 * len(payload)
        assert CountingDisk.log_bytes_read < 100_000
    else:
        # Elsewhere than on Linux the bytes are read and sent; the answer is the same.
        assert sent == []


@pytest.mark.parametrize("codec", CODECS)
def test_B8_a_batch_is_kept_compressed_as_it_came(codec: str, broker: BrokerProcess, wire: Wire) -> None:
    """From byte 16 on the log holds what the producer sent, and a fetch hands out the same."""
    wire.create("orders")
    sent = batch_of(*[b"value %d " % number * 20 for number in range(50)], codec=CODECS[codec])
    wire.produce("orders", batch_of(b"before"))
    assert wire.produce("orders", sent) == 1
    [_, stored] = batches_in(broker.data_dir / "orders-0" / f"{0:020d}.log")
    assert stored.data[16:] == sent[16:]
    assert stored.attributes & 7 == CODECS[codec]
    answer = wire.ask(FETCH, 11, **fetching("orders", 1))
    assert answer.responses[0].partitions[0].records[16:] == sent[16:]


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
def test_B8_clients_of_others_write_and_read_every_codec(
    codec: str, broker: BrokerProcess, wire: Wire
) -> None:
    """What librdkafka compressed stands compressed in the file, and librdkafka reads it."""
    wire.create("orders")
    values = [b"value %d " % number * 50 for number in range(200)]
    produce_with_confluent(broker.address, "orders", values, **{"compression.type": codec, "linger.ms": 100})
    stored = list(batches_in(broker.data_dir / "orders-0" / f"{0:020d}.log"))
    assert {batch.attributes & 7 for batch in stored} == {CODECS[codec]}
    assert sum(len(batch.data) for batch in stored) < sum(map(len, values)) // 2
    inside = [record.value for batch in stored for record in decode_batch(batch.data, size_max=1 << 24)]
    assert inside == values
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "none", "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition("orders", 0, 0)])
        assert [message.value() for message in consumer.consume(200, timeout=PATIENCE_S)] == values
    finally:
        consumer.close()
