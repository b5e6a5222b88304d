import asyncio
import threading
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

import ottla
from ottla.client.errors import (
    BufferFull,
    ClientClosed,
    DeliveryTimedOut,
    InvalidRequest,
    MessageTooLarge,
    TopicNotFound,
)
from ottla.client.producer.core import AsyncProducer


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
def topic(ottla_address: str, topic_name: str) -> str:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 3)
    return topic_name


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["all", 1])
def test_another_client_reads_what_was_sent(
    ottla_address: str, topic: str, codec: str, acks: str | int
) -> None:
    with ottla.Producer(ottla_address, compression_type=codec, acks=acks) as producer:  # type: ignore[arg-type]
        futures = [
            producer.send(
                topic, b"value %d" % n, b"key", 1, [("h", b"x"), ("none", None)], 1_700_000_000_000 + n
            )
            for n in range(200)
        ]
        assert [future.result(30).offset for future in futures] == list(range(200))
    messages = read_all(ottla_address, topic, 3)[1]
    assert [message.value() for message in messages] == [b"value %d" % n for n in range(200)]
    assert messages[7].key() == b"key"
    assert messages[7].headers() == [("h", b"x"), ("none", None)]
    assert messages[7].timestamp()[1] == 1_700_000_000_007


def test_null_keys_and_values_and_empty_ones(ottla_address: str, topic: str) -> None:
    with ottla.Producer(ottla_address) as producer:
        for key, value in ((None, None), (b"", b""), (b"k", None), (None, b"v")):
            producer.send(topic, value, key, 0)
    messages = read_all(ottla_address, topic, 3)[0]
    assert [(m.key(), m.value()) for m in messages] == [(None, None), (b"", b""), (b"k", None), (None, b"v")]


def test_acks_0_knows_no_offset_and_arrives(ottla_address: str, topic: str) -> None:
    with ottla.Producer(ottla_address, acks=0) as producer:
        assert producer.send(topic, b"v", partition=2).result(30).offset == -1
    with ottla.Consumer(ottla_address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 2)])
        assert [record.value for record in consumer.poll(30_000)[(topic, 2)]] == [b"v"]  # type: ignore[index]


def test_keys_go_where_other_clients_send_them(ottla_address: str, topic: str) -> None:
    keys = [b"customer-%d" % n for n in range(50)]
    with ottla.Producer(ottla_address) as producer:
        ours = {key: producer.send(topic, b"v", key).result(30).partition for key in keys}
    theirs: dict[bytes | None, int | None] = {}

    def delivered(_error: object, message: confluent_kafka.Message) -> None:
        theirs[message.key()] = message.partition()

    other = confluent_kafka.Producer({"bootstrap.servers": ottla_address, "partitioner": "murmur2_random"})
    for key in keys:
        other.produce(topic, b"v", key, on_delivery=delivered)
    other.flush(30)
    assert ours == theirs
    assert set(ours.values()) == {0, 1, 2}


def test_keyless_records_fill_a_batch_and_go_round(ottla_address: str, topic: str) -> None:
    with ottla.Producer(ottla_address) as producer:
        seen = [producer.send(topic, b"v").result(30).partition for _ in range(6)]
        assert set(seen) == {0, 1, 2}
    with ottla.Producer(ottla_address, linger_ms=10_000) as producer:
        futures = [producer.send(topic, b"v") for _ in range(20)]
        producer.flush(30)
        assert len({future.result(0).partition for future in futures}) == 1


def test_linger_is_ended_by_flush_and_by_close(ottla_address: str, topic: str) -> None:
    producer = ottla.Producer(ottla_address, linger_ms=60_000)
    first = producer.send(topic, b"1", partition=0)
    assert not first.done()
    producer.flush(30)
    assert first.done()
    second = producer.send(topic, b"2", partition=0)
    producer.close(30)
    assert second.result(0).offset == first.result(0).offset + 1
    with pytest.raises(ClientClosed):
        producer.send(topic, b"3", partition=0)


def test_threads_share_a_producer_and_each_keeps_its_order(ottla_address: str, topic: str) -> None:
    with ottla.Producer(ottla_address) as producer:

        def send(name: int) -> None:
            for number in range(500):
                producer.send(topic, b"%d %d" % (name, number), partition=0)

        threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    values = [message.value().split() for message in read_all(ottla_address, topic, 3)[0]]
    for name in range(4):
        assert [int(number) for who, number in values if int(who) == name] == list(range(500))


def test_a_callback_hears_of_the_record(ottla_address: str, topic: str) -> None:
    heard = threading.Event()
    with ottla.Producer(ottla_address) as producer:
        producer.send(topic, b"v", partition=0).add_done_callback(lambda _future: heard.set())
        assert heard.wait(30)


def test_a_topic_that_is_not_there_is_made_as_the_broker_allows(
    start_broker: Callable[..., Any], ottla_address: str, topic_name: str
) -> None:
    with ottla.Producer(ottla_address) as producer:
        assert producer.send(topic_name, b"v").result(30).offset == 0
    strict = start_broker(0, "auto.create.topics.enable=false")
    with (
        ottla.Producer(strict.address, max_block_ms=300) as producer,
        pytest.raises(TopicNotFound, match="ottla topic create"),
    ):
        producer.send("nowhere", b"v")


def test_a_partition_that_is_not_there_is_named(ottla_address: str, topic: str) -> None:
    with ottla.Producer(ottla_address) as producer, pytest.raises(TopicNotFound, match="0 to 2, not 9"):
        producer.send(topic, b"v", partition=9)


def test_values_that_are_no_bytes_are_refused(ottla_address: str, topic: str) -> None:
    with ottla.Producer(ottla_address) as producer, pytest.raises(TypeError, match="encode it first"):
        producer.send(topic, "text")  # type: ignore[arg-type]


def test_too_large_is_refused_here_and_by_the_topic(ottla_address: str, topic_name: str) -> None:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 1, 1, {"max.message.bytes": "2000"})
    with ottla.Producer(ottla_address, max_request_size=10_000) as producer:
        with pytest.raises(MessageTooLarge, match="max_request_size"):
            producer.send(topic_name, b"x" * 20_000)
        with pytest.raises(MessageTooLarge, match=r"max\.message\.bytes"):
            producer.send(topic_name, b"x" * 5000).result(30)
        # The refused batch used up sequence numbers; what follows must go on all the same.
        assert [producer.send(topic_name, b"ok").result(30).offset for _ in range(3)] == [0, 1, 2]


def test_a_record_that_the_topic_refuses_says_why(ottla_address: str, topic_name: str) -> None:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 1, 1, {"cleanup.policy": "compact"})
    with ottla.Producer(ottla_address) as producer:
        with pytest.raises(InvalidRequest, match="key"):
            producer.send(topic_name, b"no key").result(30)
        assert producer.send(topic_name, b"v", b"k").result(30).offset == 0


def test_a_broker_killed_and_started_again_has_every_record_once_and_in_order(
    start_broker: Callable[..., Any],
) -> None:
    broker = start_broker()
    port, address = broker.port, broker.address
    with ottla.Admin(address) as admin:
        admin.create_topic("t", 1)
    with ottla.Producer(address, retry_backoff_ms=20) as producer:
        futures = []
        for number in range(3000):
            futures.append(producer.send("t", b"%d" % number))
            if number in (1000, 2000):
                broker.kill()
                broker = start_broker(port)
        assert [future.result(60).offset for future in futures] == list(range(3000))
    assert [int(message.value()) for message in read_all(address, "t")[0]] == list(range(3000))


def test_a_broker_that_stays_away_ends_in_a_delivery_time_out(start_broker: Callable[..., Any]) -> None:
    broker = start_broker()
    with ottla.Producer(broker.address, delivery_timeout_ms=400, retry_backoff_ms=20) as producer:
        producer.send("t", b"1").result(30)
        broker.kill()
        with pytest.raises(
            DeliveryTimedOut, match=r"t-0 were not acknowledged within 0\.4 s.*connection refused"
        ):
            producer.send("t", b"2").result(30)


def test_a_full_buffer_blocks_and_then_says_so(start_broker: Callable[..., Any]) -> None:
    broker = start_broker()
    address = broker.address
    producer = ottla.Producer(address, buffer_memory=50_000, max_block_ms=200, retry_backoff_ms=20)
    producer.send("t", b"1").result(30)
    broker.kill()

    def fill() -> None:
        for _ in range(100):
            producer.send("t", b"x" * 1000)

    with pytest.raises(BufferFull, match="buffer_memory"):
        fill()
    producer.close(0)


def test_records_left_at_close_fail(start_broker: Callable[..., Any]) -> None:
    broker = start_broker()
    producer = ottla.Producer(broker.address)
    producer.send("t", b"1").result(30)
    broker.kill()
    left = producer.send("t", b"2")
    producer.close(0.05)
    with pytest.raises(ClientClosed, match="before t-0"):
        left.result(0)


def test_the_asyncio_core_by_itself(ottla_address: str, topic: str) -> None:
    async def body() -> list[int]:
        async with AsyncProducer(ottla_address) as producer:
            futures = [await producer.send(topic, b"%d" % n, partition=0) for n in range(100)]
            return [(await future).offset for future in futures]

    assert asyncio.run(body()) == list(range(100))
