"""Producing and consuming with each client: what goes in comes out, from wherever one starts reading."""

from typing import Any

import pytest

from tests.clients.adapters import CLIENTS, AioKafka, Confluent, Message

CODECS = [pytest.param(each, codec, id=f"{each.name}-{codec}") for each in CLIENTS for codec in each.codecs]
HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000


def numbered(count: int, size: int = 20) -> list[Message]:
    return [
        Message(b"key %d" % number, (b"value %d " % number).ljust(size, b"."), (), START_MS + number)
        for number in range(count)
    ]


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize(("kind", "codec"), CODECS)
def test_every_acks_with_every_codec(broker: Any, topic: str, kind: Any, codec: str, acks: Any) -> None:
    client = kind(broker.address)
    client.create(topic)
    messages = numbered(50, 200)
    offsets = client.produce(topic, messages, acks=acks, codec=codec)
    assert acks == 0 or offsets == list(range(50))
    seen = client.read(topic, 0, 50)
    assert [(each.key, each.value) for each in seen] == [(each.key, each.value) for each in messages]
    assert [each.offset for each in seen] == list(range(50))
    # B8: kept as it came.
    assert {codec_of(batch) for batch in batches(broker, topic)} == {codec}


def batches(broker: Any, topic: str) -> list[bytes]:
    data = (broker.data_dir / f"{topic}-0" / "00000000000000000000.log").read_bytes()
    found, at = [], 0
    while at < len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        found.append(data[at : at + size])
        at += size
    return found


def codec_of(batch: bytes) -> str:
    return ("none", "gzip", "snappy", "lz4", "zstd")[batch[22] & 7]


def test_headers_null_keys_and_null_values(client: Any, topic: str) -> None:
    client.create(topic)
    messages = [
        Message(None, b"no key"),
        Message(b"no value", None),
        # Nothing at all is more than the other two let through.
        Message(None, None) if client.name == "confluent" else Message(b"x", None),
        Message(b"", b""),
        Message(b"k", b"v", (("one", b"1"), ("two", b""), ("one", b"again"), ("größe", b"\x00\xff"))),
        Message(b"k", "schön 日本".encode(), (("null", None),) if client.name == "confluent" else ()),
    ]
    client.produce(topic, messages)
    seen = client.read(topic, 0, len(messages))
    assert [(each.key, each.value, each.headers) for each in seen] == [message[:3] for message in messages]


def test_timestamps_come_back(client: Any, topic: str) -> None:
    client.create(topic)
    messages = [Message(b"k", b"v", (), START_MS + step * HOUR_MS) for step in (0, 5, 2)]
    client.produce(topic, messages)
    assert [each.timestamp_ms for each in client.read(topic, 0, 3)] == [
        each.timestamp_ms for each in messages
    ]


def test_reading_from_any_offset(client: Any, topic: str) -> None:
    """The middle of a batch too: these are a few batches of many records."""
    client.create(topic)
    messages = numbered(300)
    client.produce(topic, messages[:150])
    client.produce(topic, messages[150:])
    for offset in (0, 1, 77, 149, 150, 151, 298, 299):
        seen = client.read(topic, offset, 300 - offset)
        assert [each.offset for each in seen] == list(range(offset, 300))
        assert [each.value for each in seen] == [each.value for each in messages[offset:]]


def test_reading_by_time(client: Any, topic: str) -> None:
    """A7: back to a time, which need not be that of any record."""
    client.create(topic)
    messages = [Message(b"k", b"%d" % step, (), START_MS + step * 1000) for step in range(100)]
    client.produce(topic, messages[:60])
    client.produce(topic, messages[60:])
    for timestamp_ms, offset in (
        (0, 0),
        (START_MS, 0),
        (START_MS + 41_999, 42),
        (START_MS + 42_000, 42),
        (START_MS + 99_000, 99),
    ):
        assert client.offset_for_time(topic, timestamp_ms) == offset
        assert client.read(topic, offset, 1)[0].value == b"%d" % offset
    assert client.offset_for_time(topic, START_MS + 99_001) is None


def test_the_ends_of_a_partition(client: Any, topic: str) -> None:
    client.create(topic, 2)
    assert client.ends(topic) == (0, 0)
    client.produce(topic, numbered(10))
    assert client.ends(topic) == (0, 10)
    assert client.ends(topic, 1) == (0, 0)


def test_messages_of_a_megabyte(client: Any, topic: str) -> None:
    client.create(topic, configs={"max.message.bytes": "4000000"})
    messages = [Message(b"k", bytes([number]) * (1 << 20)) for number in range(6)]
    client.produce(topic, messages)
    assert [each.value for each in client.read(topic, 0, 6)] == [each.value for each in messages]


def test_a_message_beyond_max_message_bytes_is_refused(client: Any, topic: str) -> None:
    client.create(topic, configs={"max.message.bytes": "10000"})
    with pytest.raises(Exception, match=r"(?i)message.*(large|size)|MSG_SIZE_TOO_LARGE|MessageSizeTooLarge"):
        client.produce(topic, [Message(b"k", bytes(20_000))], batched=False)
    assert client.produce(topic, [Message(b"k", b"small")]) == [0]


def test_batches_across_segment_rolls(client: Any, broker: Any, topic: str) -> None:
    client.create(topic, configs={"segment.bytes": str(1 << 20)})
    messages = [Message(b"%d" % number, bytes([number]) * 60_000) for number in range(80)]
    for start in range(0, 80, 8):
        client.produce(topic, messages[start : start + 8])
    segments = sorted((broker.data_dir / f"{topic}-0").glob("*.log"))
    assert len(segments) >= 4
    seen = client.read(topic, 0, 80)
    assert [each.value for each in seen] == [each.value for each in messages]
    # Around each roll.
    for path in segments[1:]:
        base = int(path.stem)
        assert [each.offset for each in client.read(topic, base - 1, 2)] == [base - 1, base]


def test_idempotent_producers(client: Any, topic: str) -> None:
    client.create(topic)
    for _ in range(2):
        client.produce(topic, numbered(200), idempotent=True, batched=False)
    seen = client.read(topic, 0, 400)
    assert [each.key for each in seen] == [each.key for each in numbered(200)] * 2


@pytest.mark.parametrize("reader", CLIENTS, ids=lambda each: f"read-by-{each.name}")
@pytest.mark.parametrize("writer", CLIENTS, ids=lambda each: f"written-by-{each.name}")
def test_each_client_reads_what_the_others_wrote(broker: Any, topic: str, writer: Any, reader: Any) -> None:
    writing, reading = writer(broker.address), reader(broker.address)
    writing.create(topic)
    codec = "gzip"
    messages = [Message(b"k", b"v", (("h", b"1"),), START_MS), Message(None, b"", (), START_MS)]
    writing.produce(topic, messages, codec=codec)
    seen = reading.read(topic, 0, 2)
    assert [(each.key, each.value, each.headers, each.timestamp_ms) for each in seen] == list(messages)


@pytest.mark.parametrize("codec", ["snappy", "lz4", "zstd"])
def test_codecs_are_understood_across_clients(broker: Any, topic: str, codec: str) -> None:
    for writer, reader in ((Confluent, AioKafka), (AioKafka, Confluent)):
        name = f"{topic}-{writer.name}"
        writer(broker.address).create(name)
        writer(broker.address).produce(name, numbered(100, 500), codec=codec)
        assert [each.value for each in reader(broker.address).read(name, 0, 100)] == [
            m.value for m in numbered(100, 500)
        ]
        # The broker looks inside as well, to find a time.
        assert reader(broker.address).offset_for_time(name, START_MS + 50) == 50


def test_log_append_time(client: Any, topic: str) -> None:
    client.create(topic, configs={"message.timestamp.type": "LogAppendTime"})
    client.produce(topic, numbered(3))
    stamps = {each.timestamp_ms for each in client.read(topic, 0, 3)}
    assert min(stamps) > START_MS + HOUR_MS


def test_a_topic_with_its_own_codec(client: Any, broker: Any, topic: str) -> None:
    client.create(topic, configs={"compression.type": "gzip"})
    client.produce(topic, numbered(20, 300))
    assert {codec_of(batch) for batch in batches(broker, topic)} == {"gzip"}
    assert [each.value for each in client.read(topic, 0, 20)] == [each.value for each in numbered(20, 300)]


def test_the_page_cache_policy(make_client: Any, start_broker: Any, topic: str) -> None:
    client = make_client(start_broker(log_flush_policy="page-cache").address)
    client.create(topic, 2)
    for acks in (0, 1, "all"):
        client.produce(topic, numbered(100), acks=acks)
    assert [each.value for each in client.read(topic, 0, 300)] == [each.value for each in numbered(100)] * 3
