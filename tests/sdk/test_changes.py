"""Brokers that die and come back, and topics that change: each client continues by itself or raises a clear
error.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import ottla
from ottla import TopicPartition
from ottla.client.errors import KafkaError, TopicNotFound
from tests.crash.broker_process import BrokerProcess
from tests.sdk.reading import PATIENCE_S, contents, eventually, values, within

QUICKLY: dict[str, Any] = {"retry_backoff_ms": 10, "retry_backoff_max_ms": 100}


def read_on(consumer: ottla.Consumer, read: list[int]) -> int:
    """Add what there is to what was read; how much that is now."""
    for records in consumer.poll(100).values():
        read += [int(record.value) for record in records]
    return len(read)


def test_clients_outlive_their_only_broker(mortal: BrokerProcess) -> None:
    """It is killed three times under load. Everything that was sent is there once and in order, and is read so."""
    address = mortal.address
    read: list[int] = []
    with (
        ottla.Producer(address, batch_size=2_000, **QUICKLY) as producer,
        ottla.Consumer(address, auto_offset_reset="earliest", **QUICKLY) as consumer,
        ottla.Admin(address) as admin,
    ):
        admin.create_topic("orders", 1)
        consumer.assign([("orders", 0)])
        futures = []
        for _ in range(3):
            futures += [
                producer.send("orders", b"%d" % n, partition=0)
                for n in range(len(futures), len(futures) + 700)
            ]
            eventually(futures[-400].done, "some are acknowledged")
            read_on(consumer, read)
            mortal.kill()
            read_on(consumer, read)
            mortal.start()
        assert [future.result(PATIENCE_S).offset for future in futures] == list(range(2_100))
        eventually(lambda: read_on(consumer, read) and len(read) >= 2_100, "all is read")
        assert "orders" in admin.list_topics()
    assert read == list(range(2_100))


def test_while_all_brokers_are_away_clients_wait_without_work(mortal: BrokerProcess) -> None:
    with (
        ottla.Producer(mortal.address, max_block_ms=300, delivery_timeout_ms=1_500) as producer,
        ottla.Consumer(mortal.address) as consumer,
        ottla.Admin(mortal.address, request_timeout_ms=1_000) as admin,
    ):
        producer.send("orders", b"", partition=0).result(PATIENCE_S)
        consumer.assign([("orders", 0)])
        consumer.poll(100)
        mortal.kill()
        future = producer.send("orders", b"", partition=0)
        with pytest.raises(KafkaError):
            producer.send("never seen", b"")
        began, used_s = time.monotonic(), time.process_time()
        with within(30, at_least_s=1.9):
            assert consumer.poll(2_000) == {}
        assert (time.process_time() - used_s) / (time.monotonic() - began) < 0.1
        assert isinstance(future.exception(PATIENCE_S), KafkaError)
        with within(30), pytest.raises(KafkaError, match=mortal.address):
            admin.list_topics()


def test_partitions_that_are_added_are_used(server: str, make_topic: Callable[..., str]) -> None:
    topic = make_topic(server)
    with ottla.Producer(server, metadata_max_age_ms=100) as producer:
        producer.send(topic, b"", key=b"k").result(PATIENCE_S)
        with ottla.Admin(server) as admin:
            admin.create_partitions(topic, 2)
        eventually(
            lambda: (
                {producer.send(topic, b"", key=b"%d" % n).result(PATIENCE_S).partition for n in range(20)}
                == {0, 1}
            ),
            "keys go to both",
        )
    with ottla.Producer(server) as producer, pytest.raises(TopicNotFound, match="0 to 1, not 2"):
        producer.send(topic, b"", partition=2)


def test_a_topic_that_is_made_anew_is_written_and_read_from_its_beginning(
    server: str, make_topic: Callable[..., str]
) -> None:
    """Deleted and created again: it has another id, and the offsets begin again."""
    topic = make_topic(server)
    place = TopicPartition(topic, 0)
    with (
        ottla.Producer(server, **QUICKLY) as producer,
        ottla.Consumer(server, auto_offset_reset="earliest", **QUICKLY) as consumer,
        ottla.Admin(server) as admin,
    ):
        for _ in range(5):
            producer.send(topic, b"old", partition=0).result(PATIENCE_S)
        consumer.assign([place])
        eventually(lambda: consumer.poll(100) and consumer.position(place) == 5, "all is read")
        admin.delete_topics([topic])
        admin.create_topic(topic, 1)
        assert producer.send(topic, b"new", partition=0).result(PATIENCE_S).offset == 0
        found: list[Any] = []

        def has_come() -> bool:
            for records in consumer.poll(200).values():
                found.extend(record.value for record in records)
            return bool(found)

        eventually(has_come, "the new record is read")
        assert found == [b"new"]
    assert values(server, topic) == [b"new"]


def test_a_topic_that_is_deleted_fails_what_is_sent_to_it_and_no_other(
    server: str, make_topic: Callable[..., str]
) -> None:
    """Within the delivery time-out, by name."""
    gone, other = make_topic(server), make_topic(server)
    with (
        ottla.Producer(server, delivery_timeout_ms=1_500, max_block_ms=1_500, **QUICKLY) as producer,
        ottla.Admin(server) as admin,
    ):
        for topic in (gone, other):
            producer.send(topic, b"0", partition=0).result(PATIENCE_S)
        admin.delete_topics([gone])
        failing = producer.send(gone, b"1", partition=0)
        assert producer.send(other, b"1", partition=0).result(PATIENCE_S).offset == 1
        error = failing.exception(PATIENCE_S)
        # A broker that creates topics when they are asked for has it again; else it is named.
        assert error is None or gone in str(error)
    assert len(contents(server, other)[0]) == 2


def test_threads_and_callers_who_wait_are_let_go_by_close(
    server: str, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(server)
    consumer = ottla.Consumer(server)
    consumer.assign([(topic, 0)])
    ended: list[Any] = []

    def wait() -> None:
        try:
            ended.append(consumer.poll(60_000))
        except KafkaError as error:
            ended.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    threading.Event().wait(0.2)
    with within(20):
        consumer.close()
        waiter.join(20)
    assert len(ended) == 1
