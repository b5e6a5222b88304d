"""The broker is stopped, or killed, and started again: what was acknowledged is there, and everything goes on."""

import threading
from typing import Any

import confluent_kafka
import pytest

from tests.clients.adapters import PATIENCE_S, QUIET, Confluent, Message


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("policy", ["durable", "page-cache"])
def test_everything_is_there_after_a_restart(
    make_client: Any, start_broker: Any, topic: str, end: str, policy: str
) -> None:
    """kill -9 takes nothing from either policy: the page cache belongs to the machine, not to the process."""
    broker = start_broker(log_flush_policy=policy)
    client = make_client(broker.address)
    client.create(topic, 2, {"segment.bytes": str(1 << 20), "retention.ms": "-1"})
    first = [
        Message(b"%d" % number, bytes([number]) * 50_000, (("n", b"%d" % number),)) for number in range(30)
    ]
    client.produce(topic, first)
    client.produce(topic, first[:3], partition=1)
    client.delete_records(topic, 0, 5)
    getattr(broker, end)()
    broker.start()
    # The same address: the clients that come now know nothing of before.
    assert client.topics() == {topic: 2}
    assert client.configs(topic)["segment.bytes"] == str(1 << 20)
    assert client.ends(topic)[1] == 30
    if end == "stop":
        assert client.ends(topic)[0] == 5
    seen = client.read(topic, 5, 25)
    assert [(each.key, each.value, each.headers) for each in seen] == [message[:3] for message in first[5:]]
    assert client.produce(topic, [Message(b"k", b"after")]) == [30]
    assert client.read(topic, 30, 1)[0].value == b"after"
    assert client.ends(topic, 1) == (0, 3)


def test_a_clean_stop_says_so(start_broker: Any) -> None:
    assert "stopped cleanly" in start_broker().stop()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_an_idempotent_producer_lives_through_a_restart(start_broker: Any, topic: str, end: str) -> None:
    """C5: the same producer goes on; every message is there once, in order."""
    broker = start_broker()
    client = Confluent(broker.address)
    client.create(topic)
    delivered: list[int] = []
    reached = threading.Event()

    def on_delivery(error: Any, message: Any) -> None:
        assert error is None, error
        delivered.append(message.offset())
        if len(delivered) >= 200:
            reached.set()

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.address, "enable.idempotence": True, "linger.ms": 0,
            "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50, **QUIET,
        }
    )  # fmt: skip
    for number in range(500):
        producer.produce(topic, b"%d" % number, on_delivery=on_delivery)
        producer.poll(0)
    while not reached.is_set():
        producer.poll(0.1)
    getattr(broker, end)()
    for number in range(500, 1000):
        producer.produce(topic, b"%d" % number, on_delivery=on_delivery)
    broker.start()
    assert producer.flush(PATIENCE_S) == 0
    assert delivered == list(range(1000))
    assert [each.value for each in client.read(topic, 0, 1000)] == [b"%d" % number for number in range(1000)]


def test_a_consumer_lives_through_a_restart(start_broker: Any, topic: str) -> None:
    broker = start_broker()
    client = Confluent(broker.address)
    client.create(topic)
    client.produce(topic, [Message(b"k", b"before")])
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.address, "group.id": "unused", "enable.auto.commit": False,
            "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200, **QUIET,
        }
    )  # fmt: skip
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        assert poll(consumer).value() == b"before"
        broker.kill()
        broker.start()
        client.produce(topic, [Message(b"k", b"after")])
        assert poll(consumer).value() == b"after"
    finally:
        consumer.close()


def poll(consumer: Any) -> Any:
    """The next message; errors of the connection are told as well and pass."""
    for _ in range(PATIENCE_S):
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            return message
    pytest.fail("no message came")


def test_the_portable_ways_serve_as_well(make_client: Any, start_broker: Any, topic: str) -> None:
    """Without sendfile, pwritev and fdatasync, as on other systems."""
    broker = start_broker(environment={"OTTLA_PORTABLE": "1"})
    client = make_client(broker.address)
    client.create(topic, configs={"max.message.bytes": "4000000", "segment.bytes": str(4 << 20)})
    messages = [Message(b"%d" % number, bytes([number]) * 700_000) for number in range(12)]
    client.produce(topic, messages)
    client.produce(topic, [Message(b"k", b"small")])
    assert [each.value for each in client.read(topic, 0, 12)] == [each.value for each in messages]
    broker.kill()
    broker.start()
    assert client.read(topic, 11, 2)[1].value == b"small"
