"""A topic on three brokers: made, written and read with a client that knows nothing of us."""

import subprocess
import sys
from collections.abc import Callable

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.running_cluster import PATIENCE_S, RunningCluster

StartCluster = Callable[..., RunningCluster]
ALL = (1, 2, 3)


def create(cluster: RunningCluster, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    made = admin.create_topics([NewTopic(topic, partitions, 3, config=settings)])
    made[topic].result(PATIENCE_S)


def produce(cluster: RunningCluster, topic: str, values: range) -> None:
    """Each to its partition by its number, all acknowledged by all."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 5})
    partitions = len(cluster.partitions(topic, next(iter(cluster.nodes))))
    failed: list[object] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failed.append(error)

    for value in values:
        producer.produce(topic, str(value).encode(), partition=value % partitions, on_delivery=delivered)
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []


def consume(cluster: RunningCluster, topic: str, count: int) -> dict[int, list[int]]:
    """What each partition holds, in order."""
    known = cluster.partitions(topic, next(iter(cluster.nodes)))
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in known])
    came: dict[int, list[int]] = {number: [] for number in known}
    while sum(map(len, came.values())) < count:
        [message] = consumer.consume(1, PATIENCE_S) or [None]
        assert message is not None, f"only {came} came"
        assert message.error() is None
        came[message.partition()].append(int(message.value()))
    consumer.close()
    return came


def test_three_brokers_serve_a_replicated_topic(start_cluster: StartCluster) -> None:
    cluster = start_cluster(3)
    cluster.wait_until(
        lambda: len({cluster.controller(via) for via in ALL} | {-1}) == 2, "all know the one controller"
    )
    create(cluster, "t", 3)
    for via in ALL:
        cluster.wait_in_sync("t", via, ALL, range(3))
    states = cluster.partitions("t", 1)
    assert {state.leader for state in states.values()} == set(ALL), "the leaders are spread"
    assert all(set(state.replicas) == set(ALL) for state in states.values())
    produce(cluster, "t", range(300))
    assert consume(cluster, "t", 300) == {number: list(range(number, 300, 3)) for number in range(3)}
    for number in range(3):
        cluster.wait_until(
            lambda number=number: len({cluster.log_bytes(node, "t", number) for node in ALL}) == 1,
            "the replicas are alike to the byte",
        )
        assert cluster.log_bytes(1, "t", number)
    # One after the other, each relieved by those that are left; the last one has nobody.
    for node in ALL:
        cluster.stop(node)
        directory = str(cluster.nodes[node].data_dir)
        verified = subprocess.run(
            [sys.executable, "-m", "ottla.cli", "log", "verify", directory],
            capture_output=True,
            text=True,
            check=False,
        )
        assert verified.returncode == 0, verified.stdout
    # And all of it is there again.
    cluster.start(*ALL)
    for via in ALL:
        cluster.wait_in_sync("t", via, ALL, range(3))
    assert consume(cluster, "t", 300) == {number: list(range(number, 300, 3)) for number in range(3)}
