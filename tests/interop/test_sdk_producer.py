"""ottla's producer against Apache Kafka: what it does with ottla's own broker it does here, and what only Kafka has."""

from collections.abc import Iterator
from typing import Any

import pytest

import ottla
from bench.kafka import KafkaUnavailable, fetch
from bench.process import free_port
from tests.client.producer.behaviours import *  # noqa: F403
from tests.client.producer.transactional import *  # noqa: F403
from tests.peer import Peer
from tests.running_broker import topic_name

__all__ = ["topic_name"]

ALTER_CLIENT_QUOTAS = 49


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        kafka = fetch()
    except KafkaUnavailable:
        pytest.skip("Java 17 is not here")
    broker = kafka.start(tmp_path_factory.mktemp("kafka"), port=free_port())
    try:
        broker.wait_ready()
        yield broker.address
    finally:
        broker.stop()


def alter_quota(address: str, client_id: str, bytes_per_second: float) -> Any:
    with Peer(address) as peer:
        return peer.ask(
            ALTER_CLIENT_QUOTAS,
            entries=[
                {
                    "entity": [{"entity_type": "client-id", "entity_name": client_id}],
                    "ops": [{"key": "producer_byte_rate", "value": bytes_per_second, "remove": False}],
                }
            ],
            validate_only=False,
        )


def test_a_broker_that_asks_to_be_left_alone_is(address: str, topic: str) -> None:
    assert not alter_quota(address, "throttled", 20_000.0).entries[0].error_code
    with ottla.Producer(address, client_id="throttled") as producer:
        producer.send(topic, b"x", partition=0).result(30)
        # Quotas reach the broker through its own log.
        throttled_ms = 0.0
        while throttled_ms < 1000:
            before = producer.metrics()
            producer.send(topic, b"x" * 20_000, partition=0).result(60)
            throttled_ms = producer.metrics().throttle_time_ms - before.throttle_time_ms
        before = producer.metrics()
        producer.send(topic, b"x", partition=0).result(60)
        after = producer.metrics()
        assert after.requests == before.requests + 1
        # The broker reads nothing from this client for as long as it said: whoever sends all the same waits for the answer.
        latency_ms = (
            after.request_latency_avg_ms * after.requests - before.request_latency_avg_ms * before.requests
        )
        assert latency_ms < throttled_ms / 2
        assert after.queue_time_max_ms > throttled_ms / 2


def test_the_records_that_a_topic_refuses_are_named(address: str, topic_name: str) -> None:
    with ottla.Admin(address) as admin:
        admin.create_topic(topic_name, 1, 1, {"cleanup.policy": "compact"})
    with ottla.Producer(address, linger_ms=60_000) as producer:
        futures = [producer.send(topic_name, b"v", key) for key in (b"a", None, b"b")]
        producer.flush(30)
        errors = [str(future.exception(0)) for future in futures]
        assert "another record of the batch" in errors[0]
        assert "another record of the batch" not in errors[1]
        assert errors[0] == errors[2]
