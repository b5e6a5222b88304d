"""Transactions of a cluster from outside: all coordinators and leaders are asked, and an abort goes on where a leader is missing."""

import time
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Producer

import ottla
from ottla.client.errors import KafkaError
from ottla.client.metadata import TopicPartition
from testkit.fuzz.sockets import Asker
from tests.cluster.running_cluster import PATIENCE_S, RunningCluster
from tests.cluster.topics import QUIET, new_topic

ONLY_ON = 2
DESCRIBE_PRODUCERS = 61


def begin(cluster: RunningCluster, name: str, topic: str, partitions: int) -> Any:
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 600_000,
            **QUIET,
        }
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for number in range(partitions):
        producer.produce(topic, b"x", partition=number)
    assert producer.flush(PATIENCE_S) == 0
    return producer


def test_what_all_brokers_know_is_told_and_ended(shared: RunningCluster) -> None:
    topic = new_topic(shared, (1, 2, 3), (2, 3, 1), (3, 1, 2))
    places = [TopicPartition(topic, number) for number in range(3)]
    names = [f"{topic}-{number}" for number in range(6)]
    producers = [begin(shared, name, topic, 3) for name in names]
    with ottla.Admin(shared.bootstrap) as admin:
        listed = admin.list_transactions(states=["Ongoing"], pattern=f"{topic}-.*")
        assert [each.transactional_id for each in listed] == names
        described = admin.describe_transactions(names)
        assert [each.coordinator for each in listed] == [described[name].coordinator for name in names]
        assert {each.partitions for each in described.values()} == {tuple(places)}
        ids = {each.producer_id for each in described.values()}
        opened = admin.describe_producers(places)
        for place in places:
            assert {each.producer_id for each in opened[place] if each.transaction_start is not None} == ids
        assert admin.find_hanging_transactions(places) == []
        for name in names:
            admin.abort_transaction(name)
        for states in admin.describe_producers(places).values():
            assert [each.transaction_start for each in states] == [None] * len(names)
    del producers


def test_every_replica_describes_its_producers(shared: RunningCluster) -> None:
    """`kafka-transactions find-hanging --broker-id N` asks broker N about all its replicas, not only those it leads."""
    topic = new_topic(shared, (1, 2, 3))
    producer = begin(shared, topic, topic, 1)
    with ottla.Admin(shared.bootstrap) as admin:
        [expected] = admin.describe_producers([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
    wanted = [{"name": topic, "partition_indexes": [0]}]
    for node in (1, 2, 3):
        with closing(Asker(shared.nodes[node].address)) as asker:

            def described(asker: Asker = asker) -> bool:
                [row] = asker.ask(DESCRIBE_PRODUCERS, 0, topics=wanted).topics[0].partitions
                assert row.error_code.value == 0
                found = [(each.producer_id, each.current_txn_start_offset) for each in row.active_producers]
                return found == [(expected.producer_id, 0)]

            shared.wait_until(described, f"broker {node} describes the open transaction")
    producer.abort_transaction(PATIENCE_S)


def test_an_abort_goes_on_when_a_leader_is_back(shared: RunningCluster) -> None:
    topic = new_topic(shared, (ONLY_ON,))
    place = TopicPartition(topic, 0)
    producer = begin(shared, topic, topic, 1)
    shared.kill(ONLY_ON)
    try:
        with ottla.Admin(shared.bootstrap) as admin:
            with pytest.raises(KafkaError, match="the coordinator continues the abort by itself"):
                admin.abort_transaction(topic)
            info = admin.describe_transactions([topic])[topic]
            assert (info.state, info.partitions) == ("PrepareAbort", (place,))
            with pytest.raises(KafkaError, match="it is already ending"):
                admin.abort_transaction(topic)
    finally:
        shared.restart(ONLY_ON)
    with ottla.Admin(shared.bootstrap) as admin:
        deadline = time.monotonic() + PATIENCE_S
        while admin.describe_transactions([topic])[topic].state == "PrepareAbort":
            assert time.monotonic() < deadline
        [state] = admin.describe_producers([place])[place]
        assert state.transaction_start is None
    del producer
