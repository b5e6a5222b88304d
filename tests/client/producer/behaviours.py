"""The behaviour of a producer on any broker: run on ottla (`test_producer.py`) and on Apache Kafka
(`tests/interop/test_sdk_producer.py`).

Both modules import these tests and define the fixtures `address`, a shared broker, and `topic_name`, a unique
name.
"""

import asyncio
import dataclasses
import logging
import threading
from typing import Any

import confluent_kafka
import pytest

import ottla
from ottla.client.errors import (
    ClientClosed,
    InvalidRequest,
    KafkaError,
    MessageTooLarge,
    SerializationError,
    TopicNotFound,
)
from ottla.client.producer.batches import RecordMetadata
from ottla.client.producer.core import AsyncProducer
from ottla.client.producer.interceptors import ProducerRecord


def read_all(address: str, topic: str, partitions: int = 1) -> dict[int, list[Any]]:
    """Everything in the topic, read by another client."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "unused",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    found: dict[int, list[Any]] = {number: [] for number in range(partitions)}
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
        ended = 0
        while ended < partitions:
            message = consumer.poll(30)
            assert message is not None, "no answer"
            error, partition = message.error(), message.partition()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                ended += 1
            else:
                assert partition is not None
                found[partition].append(message)
    finally:
        consumer.close()
    return found


@pytest.fixture
def topic(address: str, topic_name: str) -> str:
    with ottla.Admin(address) as admin:
        admin.create_topic(topic_name, 3)
    return topic_name


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["all", 1])
def test_another_client_reads_what_was_sent(address: str, topic: str, codec: str, acks: str | int) -> None:
    with ottla.Producer(address, compression_type=codec, acks=acks) as producer:  # type: ignore[arg-type]
        futures = [
            producer.send(
                topic, b"value %d" % n, b"key", 1, [("h", b"x"), ("none", None)], 1_700_000_000_000 + n
            )
            for n in range(200)
        ]
        assert [future.result(30).offset for future in futures] == list(range(200))
    messages = read_all(address, topic, 3)[1]
    assert [message.value() for message in messages] == [b"value %d" % n for n in range(200)]
    assert messages[7].key() == b"key"
    assert messages[7].headers() == [("h", b"x"), ("none", None)]
    assert messages[7].timestamp()[1] == 1_700_000_000_007


def test_null_keys_and_values_and_empty_ones(address: str, topic: str) -> None:
    with ottla.Producer(address) as producer:
        for key, value in ((None, None), (b"", b""), (b"k", None), (None, b"v")):
            producer.send(topic, value, key, 0)
    messages = read_all(address, topic, 3)[0]
    assert [(m.key(), m.value()) for m in messages] == [(None, None), (b"", b""), (b"k", None), (None, b"v")]


def test_acks_0_knows_no_offset_and_arrives(address: str, topic: str) -> None:
    with ottla.Producer(address, acks=0) as producer:
        assert producer.send(topic, b"v", partition=2).result(30).offset == -1
    with ottla.Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 2)])
        assert [record.value for record in consumer.poll(30_000)[(topic, 2)]] == [b"v"]  # type: ignore[index]


def test_keys_go_where_other_clients_send_them(address: str, topic: str) -> None:
    keys = [b"customer-%d" % n for n in range(50)]
    with ottla.Producer(address) as producer:
        ours = {key: producer.send(topic, b"v", key).result(30).partition for key in keys}
    theirs: dict[bytes | None, int | None] = {}

    def delivered(_error: object, message: confluent_kafka.Message) -> None:
        theirs[message.key()] = message.partition()

    other = confluent_kafka.Producer({"bootstrap.servers": address, "partitioner": "murmur2_random"})
    for key in keys:
        other.produce(topic, b"v", key, on_delivery=delivered)
    other.flush(30)
    assert ours == theirs
    assert set(ours.values()) == {0, 1, 2}


def test_keyless_records_fill_a_batch_and_go_round(address: str, topic: str) -> None:
    with ottla.Producer(address) as producer:
        seen = [producer.send(topic, b"v").result(30).partition for _ in range(6)]
        assert set(seen) == {0, 1, 2}
    with ottla.Producer(address, linger_ms=10_000) as producer:
        futures = [producer.send(topic, b"v") for _ in range(20)]
        producer.flush(30)
        assert len({future.result(0).partition for future in futures}) == 1


def test_linger_is_ended_by_flush_and_by_close(address: str, topic: str) -> None:
    producer = ottla.Producer(address, linger_ms=60_000)
    first = producer.send(topic, b"1", partition=0)
    assert not first.done()
    producer.flush(30)
    assert first.done()
    second = producer.send(topic, b"2", partition=0)
    producer.close(30)
    assert second.result(0).offset == first.result(0).offset + 1
    with pytest.raises(ClientClosed):
        producer.send(topic, b"3", partition=0)


def test_threads_share_a_producer_and_each_keeps_its_order(address: str, topic: str) -> None:
    with ottla.Producer(address) as producer:

        def send(name: int) -> None:
            for number in range(500):
                producer.send(topic, b"%d %d" % (name, number), partition=0)

        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    values = [message.value().split() for message in read_all(address, topic, 3)[0]]
    for name in range(4):
        assert [int(number) for who, number in values if int(who) == name] == list(range(500))


def test_a_partition_that_is_not_there_is_named(address: str, topic: str) -> None:
    with ottla.Producer(address) as producer, pytest.raises(TopicNotFound, match="0 to 2, not 9"):
        producer.send(topic, b"v", partition=9)


def test_values_that_are_no_bytes_are_refused(address: str, topic: str) -> None:
    with ottla.Producer(address) as producer, pytest.raises(TypeError, match="set value_serializer"):
        producer.send(topic, "text")


def test_too_large_is_refused_here_and_by_the_topic(address: str, topic_name: str) -> None:
    with ottla.Admin(address) as admin:
        admin.create_topic(topic_name, 1, 1, {"max.message.bytes": "2000"})
    with ottla.Producer(address, max_request_size=10_000) as producer:
        with pytest.raises(MessageTooLarge, match="max_request_size"):
            producer.send(topic_name, b"x" * 20_000)
        with pytest.raises(MessageTooLarge, match=r"max\.message\.bytes"):
            producer.send(topic_name, b"x" * 5000).result(30)
        # The refused batch used up sequence numbers; what follows must go on all the same.
        assert [producer.send(topic_name, b"ok").result(30).offset for _ in range(3)] == [0, 1, 2]


def test_a_record_that_the_topic_refuses_says_why(address: str, topic_name: str) -> None:
    with ottla.Admin(address) as admin:
        admin.create_topic(topic_name, 1, 1, {"cleanup.policy": "compact"})
    with ottla.Producer(address) as producer:
        with pytest.raises(InvalidRequest, match="key"):
            producer.send(topic_name, b"no key").result(30)
        assert producer.send(topic_name, b"v", b"k").result(30).offset == 0


def test_the_asyncio_core_by_itself(address: str, topic: str) -> None:
    async def body() -> list[int]:
        async with AsyncProducer(address) as producer:
            futures = [await producer.send(topic, b"%d" % n, partition=0) for n in range(100)]
            return [(await future).offset for future in futures]

    assert asyncio.run(body()) == list(range(100))


# Serializers, partitioners, interceptors


def test_buffers_are_sent_as_they_are_now(address: str, topic: str) -> None:
    changing = bytearray(b"before")
    with ottla.Producer(address, linger_ms=60_000) as producer:
        producer.send(topic, changing, memoryview(b"key"), partition=0)
        changing[:] = b"after!"
    (message,) = read_all(address, topic, 3)[0]
    assert (message.key(), message.value()) == (b"key", b"before")


def test_serializers_by_name_and_of_ones_own(address: str, topic: str) -> None:
    def shout(topic_given: str, text: str) -> bytes:
        assert topic_given == topic
        return text.upper().encode()

    with ottla.Producer(address, key_serializer="int", value_serializer="json") as producer:
        producer.send(topic, {"n": [1, None]}, 7, partition=0)
        producer.send(topic, None, None, partition=0)
    with ottla.Producer(address, key_serializer="str", value_serializer=shout) as producer:
        producer.send(topic, "quiet", "ключ", partition=0)
    messages = read_all(address, topic, 3)[0]
    assert [(message.key(), message.value()) for message in messages] == [
        ((7).to_bytes(8, "big"), b'{"n":[1,null]}'),
        (None, None),
        ("ключ".encode(), b"QUIET"),
    ]


def test_what_cannot_be_serialized_is_not_queued(address: str, topic: str) -> None:
    with ottla.Producer(
        address, key_serializer="int", value_serializer=lambda _topic, _thing: "text"
    ) as producer:  # type: ignore[arg-type, return-value]
        with pytest.raises(SerializationError, match=f"key_serializer int_out .* {topic!r}") as caught:
            producer.send(topic, "x", key="seven")
        assert isinstance(caught.value.__cause__, AttributeError)
        with pytest.raises(SerializationError, match=r"value_serializer .* it returned str"):
            producer.send(topic, "x")
        assert producer.metrics().buffered_bytes == 0


def test_round_robin_goes_round_with_each_record_from_a_random_start(address: str, topic: str) -> None:
    with ottla.Producer(address, partitioner="round_robin", linger_ms=60_000) as producer:
        futures = [producer.send(topic, b"v") for _ in range(6)]
        producer.flush(30)
        places = [future.result(0).partition for future in futures]
    assert places[:3] == places[3:]
    assert sorted(places[:3]) == [0, 1, 2]


def test_a_partitioner_of_ones_own(address: str, topic: str) -> None:
    seen: list[Any] = []

    def choose(*given: Any) -> int:
        seen.append(given)
        return int(given[3])

    with ottla.Producer(
        address, partitioner=choose, key_serializer="str", value_serializer="json"
    ) as producer:
        assert producer.send(topic, 2, "k").result(30).partition == 2
        assert producer.send(topic, 1).result(30).partition == 1
        assert producer.send(topic, 1, partition=0).result(30).partition == 0
        with pytest.raises(TopicNotFound, match="not 5"):
            producer.send(topic, 5)
    assert seen[:2] == [(topic, "k", b"k", 2, (0, 1, 2)), (topic, None, None, 1, (0, 1, 2))]


class Watching:
    def __init__(self) -> None:
        self.heard: list[tuple[RecordMetadata, Exception | None]] = []
        self.closed = False

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return dataclasses.replace(record, value=f"{record.value}+", headers=[("seen", b"1")])

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        self.heard.append((metadata, error))

    def close(self) -> None:
        self.closed = True


class Broken:
    def on_send(self, _record: ProducerRecord) -> ProducerRecord:
        raise RuntimeError("on_send is broken")

    def on_acknowledgement(self, _metadata: RecordMetadata, _error: Exception | None) -> None:
        raise RuntimeError("on_acknowledgement is broken")


def test_interceptors_see_each_record_and_break_nothing(
    address: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Watching(), Watching()
    with (
        caplog.at_level(logging.CRITICAL, "ottla"),
        ottla.Producer(
            address,
            key_serializer="int",
            value_serializer="str",
            interceptors=[first, Broken(), object(), second],
        ) as producer,
    ):
        metadata = producer.send(topic, "v", partition=1).result(30)
        with pytest.raises(SerializationError):
            producer.send(topic, "v", key=object(), partition=1)
        with pytest.raises(TopicNotFound):
            producer.send(topic, "v", partition=99)
    for each in (first, second):
        assert [(heard[0].partition, type(heard[1])) for heard in each.heard] == [
            (1, type(None)), (1, SerializationError), (99, TopicNotFound),
        ]  # fmt: skip
        assert each.heard[0] == (metadata, None)
        assert each.closed
    (message,) = read_all(address, topic, 3)[1]
    assert (message.value(), message.headers()) == (b"v++", [("seen", b"1")])


# Outcomes


def test_callbacks_hear_of_each_record(address: str, topic: str) -> None:
    heard: list[tuple[RecordMetadata, KafkaError | None]] = []
    done = threading.Event()
    with ottla.Producer(address) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=0, on_delivery=lambda *told: heard.append(told))
        last = producer.send(topic, b"last", partition=0)
        last.add_done_callback(lambda future: done.set() if future.done() else None)
        assert done.wait(30)
    assert [metadata.offset for metadata, _error in heard] == list(range(10))
    assert {error for _metadata, error in heard} == {None}


def test_a_batch_that_is_too_large_for_the_topic_is_cut(address: str, topic_name: str) -> None:
    with ottla.Admin(address) as admin:
        admin.create_topic(topic_name, 1, 1, {"max.message.bytes": "2000"})
    with ottla.Producer(address, linger_ms=60_000) as producer:
        futures = [producer.send(topic_name, b"%04d" % number + b"x" * 200) for number in range(60)]
        large = producer.send(topic_name, b"x" * 3000)
        after = [producer.send(topic_name, b"%04d" % number) for number in range(60, 70)]
        producer.flush(60)
        assert [future.result(0).offset for future in futures] == list(range(60))
        with pytest.raises(MessageTooLarge):
            large.result(0)
        assert [future.result(0).offset for future in after] == list(range(60, 70))
        metrics = producer.metrics()
        assert metrics.batches_split
        assert (metrics.records_sent, metrics.records_failed) == (70, 1)
        last = producer.send(topic_name, b"0070")
        producer.flush(30)
        assert last.result(0).offset == 70
    assert [int(message.value()[:4]) for message in read_all(address, topic_name)[0]] == list(range(71))


def test_partitions_that_are_added_are_found(address: str, topic_name: str) -> None:
    with ottla.Admin(address) as admin:
        admin.create_topic(topic_name, 1)
        with ottla.Producer(address, metadata_max_age_ms=50) as producer:
            assert producer.partitions_for(topic_name) == [0]
            producer.send(topic_name, b"v").result(30)
            admin.create_partitions(topic_name, 2)
            while producer.partitions_for(topic_name) == [0]:
                producer.flush()
            assert producer.send(topic_name, b"v", partition=1).result(30).partition == 1


def test_many_records_through_a_small_buffer(address: str, topic: str) -> None:
    """Back-pressure in both faces: no record is lost, none is sent twice, and nobody waits for ever."""
    with ottla.Producer(address, buffer_memory=5000, batch_size=1000) as producer:
        futures = [producer.send(topic, b"%d" % number + b"x" * 100, partition=0) for number in range(500)]
        assert [future.result(30).offset for future in futures] == list(range(500))

    async def body() -> list[int]:
        async with AsyncProducer(address, buffer_memory=5000, batch_size=1000) as producer:

            async def one(number: int) -> int:
                future = await producer.send(topic, b"%d" % number + b"x" * 100, partition=1)
                return (await future).offset

            return await asyncio.gather(*(one(number) for number in range(300)))

    assert sorted(asyncio.run(body())) == list(range(300))


def test_what_a_producer_has_done_is_counted(address: str, topic: str) -> None:
    with ottla.Producer(address, linger_ms=60_000) as producer:
        # A topic that was just made may refuse its first batch for a moment.
        producer.send(topic, b"first", partition=0)
        producer.flush(30)
        before = producer.metrics()
        for _ in range(100):
            producer.send(topic, b"x" * 100, partition=0)
        assert producer.metrics().buffered_bytes > 10_000
        producer.flush(30)
        metrics = producer.metrics()
    assert (metrics.records_sent, metrics.batches_sent) == (101, 2)
    assert (metrics.requests, metrics.retries) == (before.requests + 1, before.retries)
    assert metrics.records_per_batch_avg == 50.5
    assert metrics.buffered_bytes == metrics.requests_in_flight == 0
    assert 0 < metrics.request_latency_avg_ms <= metrics.request_latency_max_ms
    assert 0 < metrics.batch_fill_avg < 1
    assert "records_sent                         101" in str(metrics)


@pytest.mark.parametrize("in_flight", [1, 5])
def test_full_batches_fill_the_way_to_the_broker_in_order(address: str, topic: str, in_flight: int) -> None:
    with ottla.Producer(
        address, batch_size=2000, max_in_flight_requests_per_connection=in_flight, send_buffer_bytes=65536
    ) as producer:
        futures = [producer.send(topic, b"%d" % number + b"x" * 100, partition=2) for number in range(2000)]
        assert [future.result(60).offset for future in futures] == list(range(2000))
        assert producer.metrics().requests > 20
