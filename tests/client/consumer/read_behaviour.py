"""The records that a consumer reads from any broker: run on ottla here, and on Apache Kafka by
`tests/interop`.

Each test gets `address`. Another client (confluent-kafka) writes the records, so that the SDK is not only
tested against itself.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import time
from collections.abc import Iterable
from typing import Any, Literal

import confluent_kafka
import pytest

import ottla
import ottla.aio
from ottla.client.errors import OffsetOutOfRange
from ottla.client.metadata import TopicPartition

PATIENCE_MS = 30_000
RECORD_DECODERS: tuple[Literal["pure", "compiled"], ...] = ("pure", "compiled")

_NUMBERS = itertools.count()


def made(address: str, partitions: int = 1, **configs: str) -> str:
    """A new topic."""
    name = f"reading-{next(_NUMBERS)}"
    with ottla.Admin(address) as admin:
        admin.create_topic(name, partitions, configs={k.replace("_", "."): v for k, v in configs.items()})
    return name


def written(address: str, topic: str, values: Iterable[bytes | None], **settings: Any) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "linger.ms": 5, "log_level": 0, **settings}
    )
    for number, value in enumerate(values):
        producer.produce(topic, value, b"%d" % number, 0, timestamp=1_000_000 + number)
    assert producer.flush(30) == 0


def taken(consumer: ottla.Consumer, count: int) -> list[ottla.ConsumerRecord]:
    found: list[ottla.ConsumerRecord] = []
    while len(found) < count:
        polled = consumer.poll(PATIENCE_MS)
        assert polled, f"only {len(found)} of {count} came"
        for records in polled.values():
            found += records
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_by_both_decoders_as_records_and_as_columns(address: str, codec: str) -> None:
    pytest.importorskip("numba")
    topic = made(address)
    values = [None if n % 7 == 0 else b"value %d" % n * (n % 5) for n in range(400)]
    written(address, topic, values, **{"compression.type": codec, "batch.num.messages": 150})
    for decoder in RECORD_DECODERS:
        with ottla.Consumer(address, auto_offset_reset="earliest", record_decoder=decoder) as consumer:
            consumer.assign([(topic, 0)])
            records = taken(consumer, 400)
            consumer.seek_to_beginning()
            columns: list[ottla.Columns] = []
            while sum(map(len, columns)) < 400:
                columns += consumer.poll_columns(PATIENCE_MS).values()
        assert [record.value for record in records] == values
        assert [record.offset for record in records] == list(range(400))
        assert [value for part in columns for value in part.values] == values
        assert [key for part in columns for key in part.keys] == [b"%d" % n for n in range(400)]
        assert [int(stamp) for part in columns for stamp in part.timestamps] == [
            record.timestamp for record in records
        ]


def test_columns_of_numbers_on_both_faces(address: str) -> None:
    np = pytest.importorskip("numpy")
    topic = made(address)
    written(address, topic, [struct.pack(">q", n * n) for n in range(1000)])
    with ottla.Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        first = consumer.poll_columns(PATIENCE_MS, 600)[TopicPartition(topic, 0)]
        assert len(first) <= 600
        found = [first.values_as(">i8")]
        while sum(map(len, found)) < 1000:
            found.append(consumer.poll_columns(PATIENCE_MS)[TopicPartition(topic, 0)].values_as(">i8"))
        assert consumer.position((topic, 0)) == 1000
    assert (np.concatenate(found) == np.arange(1000) ** 2).all()

    async def body() -> int:
        async with ottla.aio.Consumer(address, auto_offset_reset="earliest") as consumer:
            await consumer.assign([TopicPartition(topic, 0)])
            total = 0
            while total < sum(n * n for n in range(1000)):
                for part in (await consumer.poll_columns(PATIENCE_MS)).values():
                    total += int(part.values_as(">i8").sum())
            return total

    assert asyncio.run(body()) == sum(n * n for n in range(1000))


def transactional(address: str, name: str) -> confluent_kafka.Producer:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": address, "transactional.id": name, "linger.ms": 0, "log_level": 0}
    )
    producer.init_transactions(30)
    return producer


def test_read_committed_sees_no_aborted_record_and_none_of_an_open_transaction(address: str) -> None:
    topic = made(address)
    one, two = transactional(address, f"{topic}-1"), transactional(address, f"{topic}-2")

    def send(producer: confluent_kafka.Producer, *values: bytes) -> None:
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(30) == 0

    one.begin_transaction()
    two.begin_transaction()
    send(one, b"a1", b"a2")
    send(two, b"c1")
    send(one, b"a3")
    one.abort_transaction(30)
    send(two, b"c2")
    two.commit_transaction(30)
    one.begin_transaction()
    send(one, b"c3")
    one.commit_transaction(30)
    two.begin_transaction()
    send(two, b"open")
    tp = TopicPartition(topic, 0)
    with ottla.Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        everything = [record.value for record in taken(consumer, 7)]
        assert everything == [b"a1", b"a2", b"c1", b"a3", b"c2", b"c3", b"open"]
        end = consumer.position(tp)
    with ottla.Consumer(
        address, auto_offset_reset="earliest", isolation_level="read_committed", fetch_max_wait_ms=100
    ) as consumer:
        consumer.assign([tp])
        assert [record.value for record in taken(consumer, 3)] == [b"c1", b"c2", b"c3"]
        assert consumer.poll(500) == {}
        # It stands before the open transaction, past the markers of those that ended.
        assert consumer.position(tp) == end - 1
        consumer.seek_to_end()
        assert consumer.position(tp) == end - 1
        two.abort_transaction(30)
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while consumer.position(tp) < end + 1:
            assert consumer.poll(100) == {} and time.monotonic() < deadline
        two.begin_transaction()
        send(two, b"c4")
        two.commit_transaction(30)
        assert [record.value for record in taken(consumer, 1)] == [b"c4"]
    # From the middle of an aborted transaction, as columns.
    with ottla.Consumer(address, isolation_level="read_committed") as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 1)
        assert list(consumer.poll_columns(PATIENCE_MS)[tp].values)[:2] == [b"c1", b"c2"]


def test_deserializers_and_a_poison_record(address: str) -> None:
    topic = made(address)
    written(address, topic, [b'{"n": 0}', b'{"n": 1}', b"no json", None, b'{"n": 4}'])
    tp = TopicPartition(topic, 0)
    with ottla.Consumer(
        address, auto_offset_reset="earliest", key_deserializer="str", value_deserializer="json"
    ) as consumer:
        consumer.assign([tp])
        assert [(record.key, record.value) for record in taken(consumer, 2)] == [
            ("0", {"n": 0}),
            ("1", {"n": 1}),
        ]
        for _ in range(2):
            with pytest.raises(ottla.PoisonRecord, match="the value of the record at offset 2"):
                consumer.poll(PATIENCE_MS)
            assert consumer.position(tp) == 2
        consumer.seek(tp, 3)
        assert [record.value for record in taken(consumer, 2)] == [None, {"n": 4}]
    with ottla.Consumer(
        address, auto_offset_reset="earliest", value_deserializer="json", on_poison="skip"
    ) as consumer:
        consumer.assign([tp])
        assert [record.offset for record in taken(consumer, 4)] == [0, 1, 3, 4]
        assert consumer.metrics().poison_records == 1


def test_many_partitions_through_small_buffers(address: str) -> None:
    """The session forgets partitions and takes them up again; a paused one holds nobody up."""
    topic = made(address, 40)
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 5, "log_level": 0})
    for number in range(4000):
        producer.produce(topic, b"%d" % number * 20, partition=number % 40)
    assert producer.flush(30) == 0
    with ottla.Consumer(
        address,
        auto_offset_reset="earliest",
        fetch_max_bytes=20_000,
        max_partition_fetch_bytes=2_000,
        queued_max_bytes=40_000,
        max_poll_records=50,
    ) as consumer:
        consumer.assign(consumer.partitions_for(topic))
        consumer.pause(TopicPartition(topic, 0))
        records = taken(consumer, 3900)
        assert {record.partition for record in records} == set(range(1, 40))
        consumer.resume(TopicPartition(topic, 0))
        records += taken(consumer, 100)
    places = sorted((record.partition, record.offset) for record in records)
    assert places == [(partition, offset) for partition in range(40) for offset in range(100)]


def test_a_caller_that_is_slow_with_one_partition_still_gets_the_others(address: str) -> None:
    topic = made(address, 2)
    # One batch that fills the buffer until its last record is taken.
    written(address, topic, [b"x" * 100] * 500, **{"linger.ms": 1000, "batch.num.messages": 500})
    with ottla.Consumer(address, auto_offset_reset="earliest", max_partition_fetch_bytes=1000) as consumer:
        consumer.assign(consumer.partitions_for(topic))
        assert next(iter(consumer.poll(PATIENCE_MS, 1))).partition == 0
        producer = confluent_kafka.Producer({"bootstrap.servers": address, "log_level": 0})
        producer.produce(topic, b"other", partition=1)
        assert producer.flush(30) == 0
        for _ in range(300):
            polled = consumer.poll(PATIENCE_MS, 1)
            if TopicPartition(topic, 1) in polled:
                break
            time.sleep(0.05)  # the slow caller's work
        else:
            pytest.fail("the other partition's record did not come")


def test_a_record_larger_than_a_fetch_comes_all_the_same(address: str) -> None:
    topic = made(address)
    written(address, topic, [b"small", b"x" * 500_000, b"small again"])
    with ottla.Consumer(
        address, auto_offset_reset="earliest", max_partition_fetch_bytes=1000, fetch_max_bytes=1000
    ) as consumer:
        consumer.assign([(topic, 0)])
        assert [len(record.value) for record in taken(consumer, 3)] == [5, 500_000, 11]


def test_an_offset_out_of_range_by_every_policy(address: str) -> None:
    topic = made(address)
    now_ms = round(time.time() * 1000)
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "log_level": 0})
    for hours in (5, 3, 1):
        producer.produce(topic, b"%d" % hours, partition=0, timestamp=now_ms - hours * 3_600_000)
    assert producer.flush(30) == 0
    tp = TopicPartition(topic, 0)
    expected = {"earliest": 0, "latest": 3, "by_duration:PT4H": 1, "by_duration:PT10M": 3}
    for policy, offset in expected.items():
        with ottla.Consumer(address, auto_offset_reset=policy) as consumer:
            consumer.assign([tp])
            assert consumer.position(tp) == offset
            consumer.seek(tp, 1000)
            if offset < 3:
                assert taken(consumer, 1)[0].offset == offset
            deadline = time.monotonic() + PATIENCE_MS / 1000
            while consumer.position(tp) != 3:
                assert time.monotonic() < deadline
                consumer.poll(50)
    with ottla.Consumer(address, auto_offset_reset="none") as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 1000)
        with pytest.raises(OffsetOutOfRange, match=r"offset 1000.*Seek to the beginning or the end"):
            consumer.poll(PATIENCE_MS)


def test_a_topic_that_is_made_anew_is_read_from_its_beginning(address: str) -> None:
    topic = made(address)
    written(address, topic, [b"old"] * 5)
    with (
        ottla.Consumer(
            address, auto_offset_reset="earliest", retry_backoff_ms=50, fetch_max_wait_ms=100
        ) as consumer,
        ottla.Admin(address) as admin,
    ):
        consumer.assign([(topic, 0)])
        assert len(taken(consumer, 5)) == 5
        admin.delete_topics([topic])
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while True:
            consumer.poll(50)
            try:
                admin.create_topic(topic, 1)
            except ottla.KafkaError:
                # Its deletion is not finished yet.
                assert time.monotonic() < deadline
            else:
                break
        written(address, topic, [b"new"])
        assert [(record.offset, record.value) for record in taken(consumer, 1)] == [(0, b"new")]


def test_batches_and_iteration(address: str) -> None:
    topic = made(address)
    written(address, topic, [b"%d" % n for n in range(30)])
    with ottla.Consumer(address, auto_offset_reset="earliest", max_poll_records=10) as consumer:
        consumer.assign([(topic, 0)])
        batches = itertools.islice(consumer.batches(), 3)
        assert [len(records) for batch in batches for records in batch.values()] == [10, 10, 10]
        consumer.seek_to_beginning()
        assert [record.offset for record in itertools.islice(consumer, 30)] == list(range(30))
