"""ottla: a message broker that speaks the Kafka protocol, with Python clients and command line tools.

    import ottla

    with ottla.Broker() as broker:
        with ottla.Producer(broker.address) as producer:
            producer.send("orders", b"value", key=b"k").result().offset

The public names are imported on first use, so that `import ottla` takes no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.client.admin.sync import Admin
    from ottla.client.consumer.assignors.assignor import Assignor
    from ottla.client.consumer.columns import Columns
    from ottla.client.consumer.poison import ConsumerRecord, PoisonRecord
    from ottla.client.consumer.sync import Consumer
    from ottla.client.errors import (
        CommitFailed,
        KafkaError,
        ProducerFenced,
        TransactionAbortable,
        WakeupError,
    )
    from ottla.client.metadata import GroupMetadata, OffsetAndMetadata, TopicPartition
    from ottla.client.producer.batches import RecordMetadata
    from ottla.client.producer.interceptors import ProducerRecord
    from ottla.client.producer.sync import Producer
    from ottla.client.sasl.oauthbearer import OAuthToken
    from ottla.server.embedded import Broker

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "Assignor",
    "Broker",
    "Columns",
    "CommitFailed",
    "Consumer",
    "ConsumerRecord",
    "GroupMetadata",
    "KafkaError",
    "OAuthToken",
    "OffsetAndMetadata",
    "PoisonRecord",
    "Producer",
    "ProducerFenced",
    "ProducerRecord",
    "RecordMetadata",
    "TopicPartition",
    "TransactionAbortable",
    "WakeupError",
    "__version__",
]

_HOMES = {
    "Admin": "ottla.client.admin.sync",
    "Assignor": "ottla.client.consumer.assignors.assignor",
    "Broker": "ottla.server.embedded",
    "Columns": "ottla.client.consumer.columns",
    "CommitFailed": "ottla.client.errors",
    "Consumer": "ottla.client.consumer.sync",
    "ConsumerRecord": "ottla.client.consumer.poison",
    "GroupMetadata": "ottla.client.metadata",
    "KafkaError": "ottla.client.errors",
    "OAuthToken": "ottla.client.sasl.oauthbearer",
    "OffsetAndMetadata": "ottla.client.metadata",
    "PoisonRecord": "ottla.client.consumer.poison",
    "Producer": "ottla.client.producer.sync",
    "ProducerFenced": "ottla.client.errors",
    "ProducerRecord": "ottla.client.producer.interceptors",
    "RecordMetadata": "ottla.client.producer.batches",
    "TopicPartition": "ottla.client.metadata",
    "WakeupError": "ottla.client.errors",
    "TransactionAbortable": "ottla.client.errors",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ottla' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
