"""Transactional producers of three libraries against `ottla up`: commit, abort, consume-transform-produce, fencing, time-outs."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest

from tests.clients.adapters import PATIENCE_S, QUIET, Confluent, Message
from tests.clients.transactors import TRANSACTORS
from tests.peer import Peer

_NUMBERS = itertools.count()


class Consumer(confluent_kafka.Consumer):  # type: ignore[misc]
    """Reads committed records only."""

    def __init__(self, address: str, group_id: str, **more: Any) -> None:
        super().__init__(
            {
                "bootstrap.servers": address, "group.id": group_id, "isolation.level": "read_committed",
                "enable.auto.commit": False, "auto.offset.reset": "earliest", "enable.partition.eof": True, **QUIET, **more,
            }
        )  # fmt: skip
        self.group_id = group_id


def read(address: str, topic: str, partitions: int = 1) -> list[bytes]:
    """All that is committed, from the beginning to the last stable offset."""
    consumer = Consumer(address, "reader")
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
    values: list[bytes] = []
    left = partitions
    while left:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, "no end in sight"
        if message.error() is None:
            values.append(message.value())
        else:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
            left -= 1
    consumer.close()
    return values


@pytest.fixture(params=TRANSACTORS, ids=lambda each: each.name)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Producers of each library in turn, closed in the end."""
    made: list[Any] = []

    def begin(*arguments: Any, **more: Any) -> Any:
        made.append(request.param(*arguments, **more))
        return made[-1]

    yield begin
    for each in made:
        each.close()


@pytest.fixture
def name() -> str:
    """A transactional id that no other test uses."""
    return f"tx-{next(_NUMBERS)}"


def test_committed_is_read_and_aborted_is_not(make: Any, broker: Any, topic: str, name: str) -> None:
    Confluent(broker.address).create(topic, 3)
    producer = make(broker.address, name)
    expected = []
    for number in range(12):
        producer.begin()
        values = [b"%d-%d" % (number, each) for each in range(5)]
        for at, value in enumerate(values):
            producer.send(topic, value, partition=at % 3)
        if number % 3 == 1:
            producer.flush()
            producer.abort()
        else:
            producer.commit()
            expected += values
    assert sorted(read(broker.address, topic, 3)) == sorted(expected)


def test_consume_transform_produce(make: Any, start_broker: Any, topic: str, name: str) -> None:
    """A quarter of the transactions is aborted and read again: each input is there once."""
    broker = start_broker(
        group_initial_rebalance_delay_ms="0",
        offsets_topic_num_partitions="4",
        transaction_state_log_num_partitions="4",
    )
    client = Confluent(broker.address)
    client.create(topic)
    client.create(f"{topic}-out")
    client.produce(topic, [Message(None, b"%d" % number) for number in range(40)])
    consumer = Consumer(broker.address, f"group-{name}")
    consumer.subscribe([topic])
    producer = make(broker.address, name)
    at, round_number = 0, 0
    while at < 40:
        values = []
        while len(values) < 5:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            if message.error() is None:
                values.append(message.value())
        producer.begin()
        producer.send(f"{topic}-out", *values)
        producer.flush()
        producer.send_offsets(consumer, {(topic, 0): at + 5})
        round_number += 1
        if round_number % 4 == 2:
            producer.abort()
            consumer.seek(confluent_kafka.TopicPartition(topic, 0, at))
        else:
            producer.commit()
            at += 5
        place = confluent_kafka.TopicPartition(topic, 0)
        assert consumer.committed([place], PATIENCE_S)[0].offset == (at or -1001)
    consumer.close()
    assert read(broker.address, f"{topic}-out") == [b"%d" % number for number in range(40)]


def test_a_zombie_is_fenced(make: Any, broker: Any, topic: str, name: str) -> None:
    Confluent(broker.address).create(topic)
    zombie = make(broker.address, name)
    zombie.begin()
    zombie.send(topic, b"zombie")
    zombie.flush()
    heir = make(broker.address, name)
    heir.begin()
    heir.send(topic, b"heir")
    heir.commit()

    def go_on() -> None:
        zombie.send(topic, b"zombie again")
        zombie.flush()
        zombie.commit()

    with pytest.raises(Exception) as raised:
        go_on()
    assert zombie.is_fencing(raised.value), raised.value
    assert read(broker.address, topic) == [b"heir"]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_transaction_outlives_the_broker(
    make: Any, start_broker: Any, topic: str, name: str, end: str
) -> None:
    """The broker ends in the middle of a transaction; the same producer goes on with it and commits."""
    broker = start_broker(transaction_state_log_num_partitions="4")
    Confluent(broker.address).create(topic)
    producer = make(broker.address, name)
    producer.begin()
    producer.send(topic, b"one")
    producer.flush()
    getattr(broker, end)()
    broker.start()
    producer.send(topic, b"two")
    producer.commit()
    producer.begin()
    producer.send(topic, b"three")
    producer.commit()
    assert read(broker.address, topic) == [b"one", b"two", b"three"]


def test_two_producers_interleave(make: Any, broker: Any, topic: str, name: str) -> None:
    Confluent(broker.address).create(topic)
    one, two = make(broker.address, f"{name}-one"), make(broker.address, f"{name}-two")
    expected = []
    for number in range(4):
        one.begin()
        two.begin()
        for each in range(3):
            one.send(topic, b"one-%d-%d" % (number, each))
            one.flush()
            two.send(topic, b"two-%d-%d" % (number, each))
            two.flush()
        two.commit()
        expected += [b"two-%d-%d" % (number, each) for each in range(3)]
        if number % 2:
            one.abort()
        else:
            one.commit()
            expected += [b"one-%d-%d" % (number, each) for each in range(3)]
    assert sorted(read(broker.address, topic)) == sorted(expected)


def test_a_producer_that_comes_again_has_the_same_id(make: Any, broker: Any, topic: str, name: str) -> None:
    """Its unfinished transaction is aborted; the id is the name's, and each time the epoch is higher."""
    Confluent(broker.address).create(topic)
    seen = []
    for number in range(3):
        producer = make(broker.address, name)
        producer.begin()
        producer.send(topic, b"committed %d" % number)
        producer.commit()
        producer.begin()
        producer.send(topic, b"left behind %d" % number)
        producer.flush()
        with Peer(broker.address) as peer:
            [row] = peer.ask(65, 0, transactional_ids=[name]).transaction_states
        assert row.transaction_state == "Ongoing"
        seen.append((row.producer_id, row.producer_epoch))
    assert len({producer_id for producer_id, _epoch in seen}) == 1
    assert sorted(epoch for _id, epoch in seen) == [epoch for _id, epoch in seen]
    assert len({epoch for _id, epoch in seen}) == 3
    heir = make(broker.address, name)
    heir.begin()
    heir.send(topic, b"last")
    heir.commit()
    assert read(broker.address, topic) == [*(b"committed %d" % number for number in range(3)), b"last"]


def test_a_transaction_over_fifty_partitions(make: Any, broker: Any, topic: str, name: str) -> None:
    Confluent(broker.address).create(topic, 50)
    producer = make(broker.address, name)
    for value, commit in ((b"one", True), (b"two", False), (b"three", True)):
        producer.begin()
        for number in range(50):
            producer.send(topic, value, partition=number)
        producer.flush()
        if commit:
            producer.commit()
        else:
            producer.abort()
    assert sorted(read(broker.address, topic, 50)) == [b"one"] * 50 + [b"three"] * 50


def test_a_transaction_that_is_left_alone_times_out(
    make: Any, start_broker: Any, topic: str, name: str
) -> None:
    """Readers of committed records wait for it no longer than it may take."""
    broker = start_broker(
        transaction_abort_timed_out_transaction_cleanup_interval_ms="100",
        transaction_state_log_num_partitions="2",
    )
    client = Confluent(broker.address)
    client.create(topic)
    producer = make(broker.address, name, timeout_ms=1500)
    producer.begin()
    producer.send(topic, b"left alone")
    producer.flush()
    client.produce(topic, [Message(None, b"plain")])
    consumer = Consumer(broker.address, "reader", **{"enable.partition.eof": False})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    message = consumer.poll(PATIENCE_S)
    assert message is not None and message.error() is None
    assert message.value() == b"plain"
    consumer.close()
    with pytest.raises(Exception) as raised:
        producer.commit()
    assert producer.is_fencing(raised.value), raised.value
