"""ottla: a distributed message engine that speaks the Kafka wire protocol, with its broker, clients and tools.

    import ottla

    with ottla.Broker() as broker:
        with ottla.Producer(broker.address) as producer:
            producer.send("orders", b"value", key=b"k").result().offset

The names below are loaded when they are first used, so that `import ottla` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.client.admin.blocking import Admin
    from ottla.client.consumer.blocking import Consumer
    from ottla.client.consumer.columns import Columns
    from ottla.client.consumer.poison import ConsumerRecord, PoisonRecord
    from ottla.client.errors import KafkaError
    from ottla.client.metadata import TopicPartition
    from ottla.client.producer.blocking import Producer
    from ottla.client.sasl.oauthbearer import OAuthToken
    from ottla.server.embedded import Broker

__version__ = "0.1.0"

__all__ = [
    "Admin",
    "Broker",
    "Columns",
    "Consumer",
    "ConsumerRecord",
    "KafkaError",
    "OAuthToken",
    "PoisonRecord",
    "Producer",
    "TopicPartition",
    "__version__",
]

_HOMES = {
    "Admin": "ottla.client.admin.blocking",
    "Broker": "ottla.server.embedded",
    "Columns": "ottla.client.consumer.columns",
    "Consumer": "ottla.client.consumer.blocking",
    "ConsumerRecord": "ottla.client.consumer.poison",
    "KafkaError": "ottla.client.errors",
    "OAuthToken": "ottla.client.sasl.oauthbearer",
    "PoisonRecord": "ottla.client.consumer.poison",
    "Producer": "ottla.client.producer.blocking",
    "TopicPartition": "ottla.client.metadata",
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
