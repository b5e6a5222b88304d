"""Replicas that move while they are written to: begun, watched, taken back, completed; and a cluster that grows and shrinks (E10)."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from tests.cluster.load import Load
from tests.cluster.running_cluster import PATIENCE_S, RunningCluster
from tests.cluster.topics import controller_first, new_topic, state_of, wait_alike
from tests.crash.broker_process import Wire

ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS = 45, 46

OTTLA = Path(sys.executable).parent / "ottla"


@pytest.fixture
def admin(shared: RunningCluster) -> Iterator[KafkaAdminClient]:
    """kafka-python's, which can reassign."""
    client = KafkaAdminClient(bootstrap_servers=shared.bootstrap.split(","))
    yield client
    client.close()


def wait_moved(admin: KafkaAdminClient, cluster: RunningCluster, topic: str, *replicas: int) -> None:
    cluster.wait_until(
        lambda: (
            state_of(cluster, topic).replicas == replicas
            and state_of(cluster, topic).isr == tuple(sorted(replicas))
            and not admin.list_partition_reassignments()
        ),
        f"{topic} has moved to {replicas}",
    )


def has_folder(cluster: RunningCluster, node_id: int, topic: str) -> bool:
    return (cluster.nodes[node_id].data_dir / f"{topic}-0").exists()


def ottla(cluster: RunningCluster, *arguments: str) -> str:
    done = subprocess.run(
        [OTTLA, *arguments, "--bootstrap", cluster.bootstrap],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + cluster.said()
    return done.stdout + done.stderr


def test_a_partition_moves_under_load(shared: RunningCluster, admin: KafkaAdminClient) -> None:
    topic = new_topic(shared, (1, 2))
    with Load(shared, topic) as load:
        load.wait_for_more(200)
        # Its leader too.
        assert admin.alter_partition_reassignments({TopicPartition(topic, 0): [3, 2]}) == {
            TopicPartition(topic, 0): None
        }
        wait_moved(admin, shared, topic, 3, 2)
        load.wait_for_more(100)
        shared.wait_until(lambda: not has_folder(shared, 1, topic), "what moved away is gone")
        # And grows by one.
        admin.alter_partition_reassignments({TopicPartition(topic, 0): [1, 2, 3]})
        wait_moved(admin, shared, topic, 1, 2, 3)
        load.wait_for_more(100)
    wait_alike(shared, topic)


class Moves:
    """Asked of one broker, which others that stand still do not keep from answering."""

    def __init__(self, cluster: RunningCluster, via: int) -> None:
        self._address = cluster.nodes[via].address

    def alter(self, topic: str, replicas: list[int] | None) -> str:
        """Move partition 0, or take the move back; the name of the error."""
        rows = [{"partition_index": 0, "replicas": replicas}]
        with Wire(self._address) as wire:
            answer = wire.ask(
                ALTER_REASSIGNMENTS, 1, timeout=10_000, allow_replication_factor_change=True,
                topics=[{"name": topic, "partitions": rows}],
            )  # fmt: skip
        assert answer.error_code.value == 0
        return str(answer.responses[0].partitions[0].error_code.name)

    def running(self, topic: str) -> list[tuple[list[int], list[int], list[int]]]:
        """(all, added, removed) of partition 0, if it moves."""
        with Wire(self._address) as wire:
            answer = wire.ask(LIST_REASSIGNMENTS, 0, timeout=10_000, topics=None)
        assert answer.error_code.value == 0
        return [
            (list(row.replicas), list(row.adding_replicas), list(row.removing_replicas))
            for each in answer.topics
            if each.name == topic
            for row in each.partitions
        ]


def test_a_move_is_watched_and_taken_back_under_load(shared: RunningCluster) -> None:
    controller, other, idle = controller_first(shared)
    topic = new_topic(shared, (controller, other))
    moves = Moves(shared, controller)
    with Load(shared, topic) as load:
        load.wait_for_more(100)
        # One that stands still does not catch up.
        shared.pause(idle)
        assert moves.alter(topic, [idle, other]) == "none"
        assert moves.running(topic) == [([idle, other, controller], [idle], [controller])]
        load.wait_for_more(100)
        isr = state_of(shared, topic, controller).isr
        assert isr == tuple(sorted((controller, other))), "nobody leaves before the new one is there"
        assert moves.alter(topic, None) == "none"
        assert moves.running(topic) == []
        assert moves.alter(topic, None) == "no_reassignment_in_progress"
        shared.resume(idle)
        # As in Kafka their order is not restored.
        assert set(state_of(shared, topic, controller).replicas) == {controller, other}
        load.wait_for_more(100)
        shared.wait_until(lambda: not has_folder(shared, idle, topic), "nothing of the move is left")
    wait_alike(shared, topic, (controller, other))


def test_a_move_completes_when_the_one_it_waits_for_is_back(shared: RunningCluster) -> None:
    controller, other, idle = controller_first(shared)
    topic = new_topic(shared, (controller, other))
    moves = Moves(shared, controller)
    with Load(shared, topic) as load:
        load.wait_for_more(100)
        shared.pause(idle)
        assert moves.alter(topic, [controller, idle]) == "none"
        assert moves.running(topic) == [([controller, idle, other], [idle], [other])]
        # Until it is taken for dead.
        shared.wait_until(
            lambda: idle in state_of(shared, topic, controller).offline, "the one that stands still is missed"
        )
        load.wait_for_more(50)
        shared.resume(idle)
        shared.wait_in_sync(topic, controller, (controller, idle))
        assert moves.running(topic) == []
        load.wait_for_more(50)
    wait_alike(shared, topic, (controller, idle))


def test_a_cluster_grows_and_shrinks_under_load(shared: RunningCluster, admin: KafkaAdminClient) -> None:
    for topic in admin.list_topics():
        admin.delete_topics([topic])
    spread = [(1, 2), (2, 3), (3, 1)] * 4
    topic = new_topic(shared, *spread)
    numbers = range(len(spread))

    def replicas() -> dict[int, tuple[int, ...]]:
        return {number: state.replicas for number, state in shared.partitions(topic, 1).items()}

    with Load(shared, topic) as load:
        load.wait_for_more(100)
        fourth = 4
        shared.add(fourth, broker_rack="d").wait_for(" listens on ")
        assert all(fourth not in each for each in replicas().values()), "a new broker gets nothing by itself"
        ottla(shared, "partition", "reassign", "--balance")
        after = replicas()
        held = Counter(node for each in after.values() for node in each)
        assert held == {1: 6, 2: 6, 3: 6, 4: 6}
        moved = sum(len({*after[number]} - {*spread[number]}) for number in numbers)
        assert moved == 6, "no more than the new broker's share was copied"
        assert Counter(each[0] for each in after.values()) == {1: 3, 2: 3, 3: 3, 4: 3}
        load.wait_for_more(100)

        ottla(shared, "partition", "drain", str(fourth))
        assert all(fourth not in each for each in replicas().values())
        load.wait_for_more(100)
        shared.remove(fourth)
        load.wait_for_more(50)
        for number, state in shared.partitions(topic, 1).items():
            assert len(state.isr) == 2, f"{topic}-{number}: {state}"
