"""Batches of other libraries: read by ottla, and ottla's read by them.

aiokafka and kafka-python build and read batches in process. Those of librdkafka were captured from its
producer (2.16.1, one for each codec); its consumer reads ottla's from its own mock broker.
"""

from __future__ import annotations

import base64
import socket
import struct
from collections.abc import Iterator

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from ottla.records.compression import CODEC_NAMES, GZIP, NONE
from ottla.records.record import Record, decode_batch, decode_batches, encode_batch, validate_records

NOW_MS = 1_700_000_000_000
RECORDS = [
    Record(
        i,
        NOW_MS + i * 37,
        None if i % 5 == 0 else b"k%d" % i,
        None if i == 3 else b"value %d " % i * 12,
        ((f"h{i}", b"x"), ("n", None)) if i % 4 == 0 else (),
    )
    for i in range(200)
]
CAPTURED_COUNT = 6

CAPTURED = {
    "none": (
        "AAAAAAAAAAAAAAJhAAAAAAKn6VHIAAAAAAAFAAABi8/laAAAAAGLz+Vouf//////////////////AAAABt4BAAAAAcABdmFs"
        "dWUgMCB2YWx1ZSAwIHZhbHVlIDAgdmFsdWUgMCB2YWx1ZSAwIHZhbHVlIDAgdmFsdWUgMCB2YWx1ZSAwIHZhbHVlIDAgdmFs"
        "dWUgMCB2YWx1ZSAwIHZhbHVlIDAgBARoMAJ4Am4B0gEASgIEazHAAXZhbHVlIDEgdmFsdWUgMSB2YWx1ZSAxIHZhbHVlIDEg"
        "dmFsdWUgMSB2YWx1ZSAxIHZhbHVlIDEgdmFsdWUgMSB2YWx1ZSAxIHZhbHVlIDEgdmFsdWUgMSB2YWx1ZSAxIADUAQCUAQQE"
        "azLAAXZhbHVlIDIgdmFsdWUgMiB2YWx1ZSAyIHZhbHVlIDIgdmFsdWUgMiB2YWx1ZSAyIHZhbHVlIDIgdmFsdWUgMiB2YWx1"
        "ZSAyIHZhbHVlIDIgdmFsdWUgMiB2YWx1ZSAyIAASAN4BBgRrMwEA5AEAqAIIBGs0wAF2YWx1ZSA0IHZhbHVlIDQgdmFsdWUg"
        "NCB2YWx1ZSA0IHZhbHVlIDQgdmFsdWUgNCB2YWx1ZSA0IHZhbHVlIDQgdmFsdWUgNCB2YWx1ZSA0IHZhbHVlIDQgdmFsdWUg"
        "NCAEBGg0AngCbgHQAQDyAgoBwAF2YWx1ZSA1IHZhbHVlIDUgdmFsdWUgNSB2YWx1ZSA1IHZhbHVlIDUgdmFsdWUgNSB2YWx1"
        "ZSA1IHZhbHVlIDUgdmFsdWUgNSB2YWx1ZSA1IHZhbHVlIDUgdmFsdWUgNSAA"
    ),
    "gzip": (
        "AAAAAAAAAAAAAACtAAAAAALv/bqvAAEAAAAFAAABi8/laAAAAAGLz+Vouf//////////////////AAAABh+LCAAAAAAAAAO7"
        "x8jAwMB4gLEsMac0VcFAgVY0C0uGAVMFUx7jJUYGLyaWbEOYlYYKtKIZrjAyTGFkYck2gtllpEArmkGI4R4jG0u2MSPDE0aG"
        "FUwcLNkmMFtNFGhFAwPVBByoFxgZPjFxwaPRVIFWNAMA1oaXKjACAAA="
    ),
    "snappy": (
        "AAAAAAAAAAAAAAC8AAAAAAL0y0IhAAIAAAAFAAABi8/laAAAAAGLz+Vouf//////////////////AAAABrAEPN4BAAAAAcAB"
        "dmFsdWUgMCD+CABeCABABARoMAJ4Am4B0gEASgIEazERcwAxDXP+CABGCAAkANQBAJQBBARrMhFsADINbP4IAEYIAEwAEgDe"
        "AQYEazMBAOQBAKgCCARrNBF2ADQNdv4IAEYIAAwEBGg0JVUU0AEA8gIKNccANQ1y/ggARggAAAA="
    ),
    "lz4": (
        "AAAAAAAAAAAAAADFAAAAAAI2a2YXAAMAAAAFAAABi8/laAAAAAGLz+Vouf//////////////////AAAABgQiTRhgQIKFAAAA"
        "/wHeAQAAAAHAAXZhbHVlIDAgCABF9AIEBGgwAngCbgHSAQBKAgRrMXMAEzFzAA8IAD+kANQBAJQBBARrMmwAEzJsAA8IAD/0"
        "BQASAN4BBgRrMwEA5AEAqAIIBGs0dgATNHYADwgAP0EEBGg0VQFl0AEA8gIKxwETNXIADwgAO1BlIDUgAAAAAAA="
    ),
    "zstd": (
        "AAAAAAAAAAAAAADCAAAAAAK8VshIAAQAAAAFAAABi8/laAAAAAGLz+VouQAAAAAsoukQAAAAAAAAAAAABii1L/0AWEUEAKKF"
        "FB+gKR2fR/9d77/Vr2Kx6+nE88N1cfbfs9k+vyUJypQCNP////8fsAn7UMtW6gywBithB2elCwVM6ewy2AgROhuBhRRhCzvL"
        "NscYEoeCoo6S7BIXACALyAcyA1lAPpAZyALygcxAFshXeatgrYseIAB35eHlBwjA3Te8+AABuNsO71KbyhI="
    ),
}


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_librdkafka_batches(codec: str) -> None:
    data = base64.b64decode(CAPTURED[codec])
    assert data[22] & 7 == CODEC_NAMES.index(codec)
    assert list(decode_batches(data)) == RECORDS[:CAPTURED_COUNT]
    validate_records(data)


@pytest.mark.parametrize("codec", range(5))
def test_aiokafka_batches(codec: int) -> None:
    builder = AioBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for offset, timestamp_ms, key, value, headers in RECORDS:
        builder.append(offset, timestamp_ms, key, value, list(headers))
    batch = bytes(builder.build())
    assert decode_batch(batch) == RECORDS
    if codec == NONE:
        assert batch[21:] == encode_batch(RECORDS)[21:]


@pytest.mark.parametrize("codec", range(5))
def test_aiokafka_reads_ours(codec: int) -> None:
    batch = AioBatch(encode_batch(RECORDS, codec=codec, producer_id=9, producer_epoch=1, base_sequence=5))
    assert batch.validate_crc()
    assert batch.compression_type == codec
    assert [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch] == RECORDS


# kafka-python needs packages for its other codecs that are not installed here.
@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_kafka_python_batches(codec: int) -> None:
    builder = KafkaPythonBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for offset, timestamp_ms, key, value, headers in RECORDS:
        builder.append(offset, timestamp_ms, key, value, list(headers))
    assert decode_batch(bytes(builder.build())) == RECORDS


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_kafka_python_reads_ours(codec: int) -> None:
    batch = KafkaPythonBatch(encode_batch(RECORDS, codec=codec))
    assert batch.validate_crc()
    assert [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch] == RECORDS


@pytest.fixture(scope="module")
def mock_broker() -> Iterator[tuple[str, int]]:
    producer = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "ignored", "log_level": 0})
    broker = next(iter(producer.list_topics("any", timeout=10).brokers.values()))
    yield broker.host, broker.port
    producer.flush(0)  # the mock broker lives as long as this producer is held


def produce_raw(address: tuple[str, int], topic: bytes, batch: bytes) -> None:
    """One Produce request (version 7: the first with zstd) for partition 0, written by hand."""
    header = struct.pack(">hhih", 0, 7, 1, -1)
    body = (
        struct.pack(">hhiih", -1, -1, 10_000, 1, len(topic))
        + topic
        + struct.pack(">iii", 1, 0, len(batch))
        + batch
    )
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(struct.pack(">i", len(header + body)) + header + body)
        answer = connection.makefile("rb")
        answer.read(4 + 4 + 4 + 2 + len(topic) + 4 + 4)
        assert struct.unpack(">h", answer.read(2)) == (0,)


@pytest.mark.parametrize("codec", range(5))
def test_librdkafka_reads_ours(mock_broker: tuple[str, int], codec: int) -> None:
    topic = f"ours-{CODEC_NAMES[codec]}"
    Producer({"bootstrap.servers": f"{mock_broker[0]}:{mock_broker[1]}"}).list_topics(topic, timeout=10)
    produce_raw(mock_broker, topic.encode(), encode_batch(RECORDS, codec=codec))
    consumer = Consumer(
        {"bootstrap.servers": f"{mock_broker[0]}:{mock_broker[1]}", "group.id": "g", "check.crcs": True}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = consumer.consume(len(RECORDS), timeout=20)
    finally:
        consumer.close()
    assert not any(message.error() for message in messages)
    read = [(m.offset(), m.timestamp()[1], m.key(), m.value(), tuple(m.headers() or ())) for m in messages]
    assert read == RECORDS
