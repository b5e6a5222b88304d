"""KafkaJS: its admin client and its producer (`js/tour.js`). What it produced is read by another foreign client."""

from typing import Any

import confluent_kafka
import pytest

from tests.crash.broker_process import BrokerProcess
from tests.interop.programs import Program
from tests.interop.test_java_client import TIME, create


def consumed(address: str, topic: str, count: int) -> list[Any]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": "unused", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[Any] = []
    while len(found) < count:
        messages = consumer.consume(count - len(found), timeout=30)
        assert messages, f"{len(found)} of {count} records came"
        for message in messages:
            assert message.error() is None
        found += messages
    consumer.close()
    return found


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_produce(kafkajs: Program, broker: BrokerProcess, topic: str, codec: str) -> None:
    create(broker, topic)
    answers = kafkajs.see(broker.address, "produce", topic, codec, "200")
    assert answers == [[0, first, 0] for first in range(0, 200, 50)]
    assert [
        (each.offset(), each.timestamp()[1], each.key(), each.value(), each.headers())
        for each in consumed(broker.address, topic, 200)
    ] == [
        (
            number,
            TIME + number,
            None if number % 10 == 3 else b"key-%d" % number,
            None if number % 10 == 5 else b"value-%d" % number,
            [("number", b"%d" % number)],
        )
        for number in range(200)
    ]


def test_the_admin_client(kafkajs: Program, broker: BrokerProcess, topic: str) -> None:
    topic_config, default_config = 1, 5
    assert kafkajs.see(broker.address, "admin", topic) == {
        "cluster": {"controller": 1, "brokers": [broker.address]},
        "validated": True,
        "after validation": False,
        "created": True,
        "created again": False,
        "bad name": "INVALID_TOPIC_EXCEPTION",
        "fewer partitions": "INVALID_PARTITIONS",
        "more partitions": [[number, 1] for number in range(5)],
        "configs": {
            "retention.ms": ["7200000", topic_config],
            "segment.bytes": ["1073741824", default_config],
        },
        "offsets": {"offset": "4", "high": "4", "low": "0"},
        "by time": {"offset": "2"},
        "offsets after": {"offset": "4", "high": "4", "low": "3"},
        "after deletion": False,
    }
