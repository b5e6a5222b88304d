"""Topics made and read to their end with librdkafka, for tests whose own clients are what is tested."""

from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

LIMIT_S = 60.0
#: Else librdkafka tells of its telemetry.
QUIET = {"enable.metrics.push": False}


def create(address: str, topic: str, partitions: int) -> str:
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(LIMIT_S)
    return topic


def consumed(address: str, topic: str, partitions: int) -> list[tuple[int, Any, Any, Any]]:
    """Partition, key, value and headers of all committed messages that there are."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"{topic}-reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            **QUIET,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, each, 0) for each in range(partitions)])
    found, ended = [], set()
    try:
        while len(ended) < partitions:
            message = consumer.poll(LIMIT_S)
            assert message is not None
            if message.error() is None:
                found.append((message.partition(), message.key(), message.value(), message.headers()))
            else:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
    finally:
        consumer.close()
    return found
