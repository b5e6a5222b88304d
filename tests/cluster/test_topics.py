"""Topics of a cluster: where their replicas go, and that they are gone everywhere once deleted (E9, R10)."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.load import read_all
from tests.cluster.running_cluster import PATIENCE_S, RunningCluster
from tests.cluster.topics import admin_of, new_topic, state_of, wait_alike, write


def create(admin: AdminClient, topic: str, *arguments: Any, **named: Any) -> None:
    admin.create_topics([NewTopic(topic, *arguments, **named)])[topic].result(PATIENCE_S)


def folders(cluster: RunningCluster, node_id: int, topic: str) -> list[Path]:
    """Of this topic's partitions; those that wait for their end have another name."""
    return [
        path
        for path in cluster.nodes[node_id].data_dir.glob(f"{topic}-*")
        if path.name.removeprefix(f"{topic}-").isdigit()
    ]


def test_replicas_go_where_they_are_told(shared: RunningCluster) -> None:
    assignment = [[3, 1], [2, 3], [1, 2]]
    topic = new_topic(shared, *assignment)
    for via in (1, 2, 3):
        for number, replicas in enumerate(assignment):
            state = state_of(shared, topic, via, number)
            assert list(state.replicas) == replicas
            assert state.leader == replicas[0]
    admin = admin_of(shared)
    for bad in ([[1, 1]], [[1, 9]], [[1, 2], [3]]):
        with pytest.raises(KafkaException) as refused:
            create(admin, "refused", len(bad), replica_assignment=bad)
        assert refused.value.args[0].code() == KafkaError.INVALID_REPLICA_ASSIGNMENT
    with pytest.raises(KafkaException) as refused:
        create(admin, "refused", 1, 4)
    assert refused.value.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR


def test_replicas_are_spread_evenly(shared: RunningCluster) -> None:
    admin = admin_of(shared)
    create(admin, "spread", 12, 2)
    shared.wait_until(lambda: len(shared.partitions("spread", 1)) == 12, "the topic is known")
    states = shared.partitions("spread", 1).values()
    assert Counter(state.replicas[0] for state in states) == {1: 4, 2: 4, 3: 4}
    assert Counter(node for state in states for node in state.replicas) == {1: 8, 2: 8, 3: 8}
    # The followers of a leader are shifted: not all that one leads falls to the same when it dies.
    assert len({state.replicas for state in states}) == 6
    assert admin.delete_topics(["spread"])["spread"].result(PATIENCE_S) is None


def test_replicas_are_in_as_many_racks_as_there_are(shared: RunningCluster) -> None:
    racks = {1: "a", 2: "b", 3: "c", 4: "a", 5: "b"}
    try:
        for node in (4, 5):
            shared.add(node, broker_rack=racks[node])
        for node in (4, 5):
            shared.nodes[node].wait_for(" listens on ")
        admin = admin_of(shared)
        create(admin, "racks", 20, 3)
        shared.wait_until(lambda: len(shared.partitions("racks", 1)) == 20, "the topic is known")
        states = shared.partitions("racks", 1).values()
        for state in states:
            assert {racks[node] for node in state.replicas} == {"a", "b", "c"}
        assert Counter(state.replicas[0] for state in states) == dict.fromkeys(racks, 4)
        admin.delete_topics(["racks"])["racks"].result(PATIENCE_S)
    finally:
        for node in (4, 5):
            shared.remove(node)


def test_a_topic_that_is_deleted_while_a_broker_is_dead_is_gone_there_too(shared: RunningCluster) -> None:
    topic = new_topic(shared, (1, 2, 3))
    write(shared, topic, b"0", b"1")
    wait_alike(shared, topic)
    shared.kill(3)
    # librdkafka asks once who controls, and waits a minute for one that it cannot reach.
    shared.wait_until(lambda: 3 not in (shared.controller(1), shared.controller(2)), "another one controls")
    admin = admin_of(shared, 1, 2)
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    for via in (1, 2):
        shared.wait_until(
            lambda via=via: not shared.partitions(topic, via) and not folders(shared, via, topic),
            "the topic and its folders are gone",
        )
    assert folders(shared, 3, topic), "nobody could tell it"
    shared.restart(3)
    shared.wait_until(lambda: not folders(shared, 3, topic), "the folder goes when its broker is back")
    assert not shared.partitions(topic, 3)


def test_a_topic_of_the_same_name_has_nothing_of_the_one_before(shared: RunningCluster) -> None:
    topic = new_topic(shared, (1, 2, 3))
    write(shared, topic, *(b"%d" % value for value in range(10)))
    wait_alike(shared, topic)
    shared.kill(3)
    shared.wait_in_sync(topic, 1, (1, 2))
    admin = admin_of(shared, 1, 2)
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    shared.wait_until(lambda: not shared.partitions(topic, 1), "it is gone")
    create(admin, topic, 1, replica_assignment=[[1, 2, 3]])
    shared.wait_in_sync(topic, 1, (1, 2))
    write(shared, topic, *(b"%d" % value for value in range(100, 103)))
    shared.restart(3)
    wait_alike(shared, topic)
    assert read_all(shared, topic, 3) == {0: 100, 1: 101, 2: 102}
