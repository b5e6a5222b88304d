"""The claims of mission.md about the coordinators of groups that a cluster makes true: E11, D3's last trigger and D5's other half."""

# ruff: noqa: N802 (a test bears the id of its claim)

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.ports.coordination import partition_of
from ottla.runtime.local_zookeeper import LocalZookeeper
from tests.clients.subscribers import ConfluentFollower, ConfluentSubscriber, eventually, have_all
from tests.cluster.running_cluster import PATIENCE_S, RunningCluster
from tests.cluster.topics import lead_by_preference
from tests.crash.broker_process import Wire

OFFSETS_TOPIC = "__consumer_offsets"
FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH, DESCRIBE_CONFIGS = 10, 8, 9, 32
NOT_AVAILABLE, NOT_COORDINATOR = 15, 16
_NUMBERS = itertools.count()


def create(cluster: RunningCluster, topic: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, len(cluster.nodes))])[topic].result(PATIENCE_S)


def write(cluster: RunningCluster, topic: str, *values: bytes, number: int = 0) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for value in values:
        producer.produce(topic, value, partition=number)
    assert producer.flush(PATIENCE_S) == 0


def find(cluster: RunningCluster, via: int, *groups: str) -> dict[str, tuple[int, int]]:
    """(error, node) of each group's coordinator, as one broker tells it."""
    with Wire(cluster.nodes[via].address) as wire:
        answer = wire.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=list(groups))
    return {row.key: (row.error_code.value, row.node_id) for row in answer.coordinators}


def wait_for_coordinators(cluster: RunningCluster, *groups: str) -> dict[str, int]:
    """Once every partition of the topic is led and copied by all."""
    via = cluster.running()[0]

    def is_there() -> bool:
        return all(code == 0 for code, _node in find(cluster, via, *groups).values())

    cluster.wait_until(is_there, "every group has a coordinator")
    return {group: node for group, (_code, node) in find(cluster, via, *groups).items()}


def commit(wire: Wire, group: str, topic: str, offset: int) -> int:
    row = {
        "partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": "",
    }  # fmt: skip
    answer = wire.ask(
        OFFSET_COMMIT, 8, group_id=group, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
        topics=[{"name": topic, "partitions": [row]}],
    )  # fmt: skip
    return int(answer.topics[0].partitions[0].error_code.value)


def committed(wire: Wire, group: str, topic: str, number: int = 0) -> tuple[int, int]:
    topics = [{"name": topic, "partition_indexes": [number]}]
    answer = wire.ask(OFFSET_FETCH, 7, group_id=group, topics=topics, require_stable=False)
    if answer.error_code.value:
        return answer.error_code.value, -1
    return 0, answer.topics[0].partitions[0].committed_offset


@pytest.fixture
def topic() -> str:
    return f"read-{next(_NUMBERS)}"


def test_E11_every_broker_coordinates_the_groups_of_the_partitions_it_leads(
    cluster: RunningCluster, topic: str
) -> None:
    """Any broker tells who; the one that does serves the group, the others send its members away."""
    create(cluster, topic)
    groups = [f"group-{number}" for number in range(60)]
    wait_for_coordinators(cluster, *groups)
    lead_by_preference(cluster, OFFSETS_TOPIC, 50)
    coordinators = wait_for_coordinators(cluster, *groups)
    assert set(coordinators.values()) == {1, 2, 3}
    state = cluster.partitions(OFFSETS_TOPIC, 1)
    assert all(state[partition_of(group, 50)].leader == node for group, node in coordinators.items())
    for via in (2, 3):
        assert {group: node for group, (_code, node) in find(cluster, via, *groups).items()} == coordinators
    wires = {node: Wire(cluster.nodes[node].address) for node in (1, 2, 3)}
    try:
        for number, (group, node) in enumerate(coordinators.items()):
            own = wires[node]
            # It may still be reading what the one before it has written.
            cluster.wait_until(
                lambda own=own, group=group, at=number: commit(own, group, topic, at) == 0, group
            )
            for via, other in wires.items():
                assert via == node or commit(other, group, topic, 99) == NOT_COORDINATOR
        for number, (group, node) in enumerate(coordinators.items()):
            assert committed(wires[node], group, topic) == (0, number)
    finally:
        for wire in wires.values():
            wire.socket.close()


@pytest.mark.parametrize("kind", [ConfluentSubscriber, ConfluentFollower], ids=["classic", "consumer"])
def test_D3_a_group_goes_on_when_its_coordinator_moves(
    cluster: RunningCluster, topic: str, kind: Any
) -> None:
    """The coordinator is killed: another has the members and what they committed, and shares anew when one leaves."""
    create(cluster, topic, 4)
    group = f"of-{topic}"
    before = wait_for_coordinators(cluster, group)[group]
    members = [kind(cluster.bootstrap, group, topic) for _ in range(2)]
    everything = [(topic, number) for number in range(4)]
    try:
        eventually(
            lambda: have_all(members, *everything) and all(len(each.parts) == 2 for each in members), "shared"
        )
        for member in members:
            member.is_committing = True
        write(cluster, topic, b"a", b"b")
        eventually(lambda: sum(len(each.seen) for each in members) == 2, "read and committed")
        cluster.kill(before)
        cluster.wait_until(
            lambda: find(cluster, cluster.running()[0], group)[group][1] not in (before, -1), "another has it"
        )
        for number in range(4):
            write(cluster, topic, b"c", number=number)
        eventually(lambda: sum(len(each.seen) for each in members) >= 6, "they go on")
        after = find(cluster, cluster.running()[0], group)[group][1]
        with Wire(cluster.nodes[after].address) as wire:
            # Both have found it then: who leaves before says so to nobody, and is missed only after a session.
            cluster.wait_until(
                lambda: (
                    [committed(wire, group, topic, number) for number in range(4)]
                    == [(0, 3), (0, 1), (0, 1), (0, 1)]
                ),
                "what they commit is there",
            )
        members.pop().close()
        eventually(lambda: have_all(members, *everything), "shared anew")
    finally:
        for member in members:
            member.close()


@pytest.fixture
def two_brokers(zookeeper: LocalZookeeper, tmp_path: Any) -> Iterator[RunningCluster]:
    with RunningCluster(tmp_path, f"{zookeeper.address}/waiting") as cluster:
        yield cluster.start(1, 2)


def test_D5_a_cluster_waits_for_three_brokers_before_it_makes_the_offsets_topic(
    two_brokers: RunningCluster, topic: str
) -> None:
    """Until then groups wait; then it has 50 compacted partitions of three replicas, and a commit is on all of them."""
    cluster = two_brokers
    create(cluster, topic)
    write(cluster, topic, b"first")
    assert find(cluster, 1, "g") == {"g": (NOT_AVAILABLE, -1)}
    member = ConfluentSubscriber(cluster.bootstrap, "g", topic)
    member.is_committing = True
    try:
        assert find(cluster, 2, "g") == {"g": (NOT_AVAILABLE, -1)}
        assert cluster.partitions(OFFSETS_TOPIC, 1) == {}
        cluster.start(3)
        eventually(lambda: member.seen, "the group begins by itself")
    finally:
        member.close()
    state = cluster.partitions(OFFSETS_TOPIC, 1)
    assert len(state) == 50
    assert all(sorted(each.replicas) == [1, 2, 3] for each in state.values())
    with Wire(cluster.nodes[1].address) as wire:
        resource = {
            "resource_type": 2, "resource_name": OFFSETS_TOPIC, "configuration_keys": ["cleanup.policy"],
        }  # fmt: skip
        [row] = wire.ask(DESCRIBE_CONFIGS, 1, resources=[resource], include_synonyms=False).results
        assert row.configs[0].value == "compact"
    # acks=-1: it was answered when all in sync had it, so it is there now.
    number = partition_of("g", 50)
    cluster.wait_in_sync(OFFSETS_TOPIC, 1, (1, 2, 3), [number])
    for node in (1, 2, 3):
        cluster.wait_until(
            lambda node=node: topic.encode() in cluster.log_bytes(node, OFFSETS_TOPIC, number),
            f"broker {node} has the commit",
        )


def test_D5_how_many_brokers_are_waited_for_is_a_setting(
    zookeeper: LocalZookeeper, tmp_path: Any, topic: str
) -> None:
    with RunningCluster(
        tmp_path, f"{zookeeper.address}/alone", {"offsets.topic.replication.factor": "1"}
    ) as cluster:
        cluster.start(1)
        assert find(cluster, 1, "g") == {"g": (0, 1)}
        assert {each.replicas for each in cluster.partitions(OFFSETS_TOPIC, 1).values()} == {(1,)}
