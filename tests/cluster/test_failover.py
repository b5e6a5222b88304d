"""Brokers that die, stand still or are restarted under load: nothing acknowledged is lost, and others go on soon."""

import signal
import time
from collections.abc import Callable

import pytest

from ottla.runtime.local_zookeeper import LocalZookeeper
from tests.cluster.load import Load
from tests.cluster.running_cluster import SESSION_MS, RunningCluster
from tests.cluster.test_replicated_topic import create

StartCluster = Callable[..., RunningCluster]
ALL = (1, 2, 3)


def led(cluster: RunningCluster, topic: str = "t", min_insync: str = "2") -> tuple[int, int]:
    """The leader of a new topic's only partition, and somebody else."""
    create(cluster, topic, 1, min_insync_replicas=min_insync)
    for via in ALL:
        cluster.wait_in_sync(topic, via, ALL)
    state = cluster.partition(topic, 1)
    assert state is not None
    return state.leader, next(node for node in ALL if node != state.leader)


def alike(cluster: RunningCluster, topic: str = "t") -> None:
    cluster.wait_in_sync(topic, 1, ALL)
    cluster.wait_until(
        lambda: len({cluster.log_bytes(node, topic) for node in ALL}) == 1,
        "the replicas are alike to the byte",
    )


@pytest.mark.parametrize("is_controller", [True, False], ids=["the controller", "not the controller"])
def test_a_leader_is_killed(start_cluster: StartCluster, is_controller: bool) -> None:
    cluster = start_cluster(3)
    # Until a topic's leader is what is asked for: with three brokers that is soon.
    for number in range(20):
        topic = f"t{number}"
        leader, other = led(cluster, topic)
        if (cluster.controller(other) == leader) == is_controller:
            break
    with Load(cluster, topic) as load:
        load.wait_for_more(100)
        killed_s = time.monotonic()
        cluster.kill(leader)
        load.wait_for_more(100)
        stall_s = load.longest_stall_s(killed_s)
        cluster.wait_in_sync(topic, other, set(ALL) - {leader})
        cluster.restart(leader)
        load.wait_for_more(50)
    alike(cluster, topic)
    print(f"the longest stall was {stall_s:.3f} s")
    assert stall_s < 2.0


def test_a_leader_stands_still(start_cluster: StartCluster) -> None:
    cluster = start_cluster(3)
    leader, other = led(cluster)
    with Load(cluster, "t", socket_timeout_ms=2000, request_timeout_ms=2000) as load:
        load.wait_for_more(100)
        paused_s = time.monotonic()
        cluster.pause(leader)
        # It does not refuse, so it is missed when its session ends, and not before.
        cluster.wait_in_sync("t", other, set(ALL) - {leader})
        assert time.monotonic() - paused_s > SESSION_MS / 2000
        load.wait_for_more(100)
        cluster.resume(leader)
        load.wait_for_more(100)
        cluster.wait_in_sync("t", other, ALL)
    alike(cluster)


def test_zookeeper_is_restarted(start_cluster: StartCluster, zookeeper: LocalZookeeper) -> None:
    cluster = start_cluster(3, connect=zookeeper.address)
    leader, _other = led(cluster)
    with Load(cluster, "t") as load:
        load.wait_for_more(100)
        zookeeper.stop()
        # What is there needs no store.
        load.wait_for_more(200)
        zookeeper.start()
        load.wait_for_more(100)
        # And it is heard again.
        cluster.kill(leader)
        load.wait_for_more(100)
        cluster.restart(leader)
    alike(cluster)


def test_a_rolling_restart_under_load(start_cluster: StartCluster) -> None:
    cluster = start_cluster(3)
    leader, _other = led(cluster)
    stalls: list[float] = []
    # With what a client does by default.
    with Load(cluster, "t") as load:
        for node in (leader, *(each for each in ALL if each != leader)):
            load.wait_for_more(50)
            begun_s = time.monotonic()
            cluster.stop(node)
            load.wait_for_more(50)
            stalls.append(load.longest_stall_s(begun_s))
            cluster.restart(node)
            cluster.wait_in_sync("t", node, ALL)
        assert load.errors == []
    alike(cluster)
    print("the longest stalls were", *(f"{stall_s:.3f} s" for stall_s in stalls))
    assert max(stalls) < 1.0


def test_one_of_three_is_enough(start_cluster: StartCluster) -> None:
    cluster = start_cluster(3)
    leader, other = led(cluster, min_insync="1")
    [last] = set(ALL) - {leader, other}
    with Load(cluster, "t") as load:
        load.wait_for_more(50)
        cluster.kill(leader)
        load.wait_for_more(50)
        cluster.kill(other)
        load.wait_for_more(50)
        assert cluster.partition("t", last) is not None
        cluster.wait_in_sync("t", last, {last})
        cluster.start(leader, other)
        cluster.wait_in_sync("t", last, ALL)
    alike(cluster)


def test_a_broker_that_stops_stays_to_say_who_leads_now(start_cluster: StartCluster) -> None:
    cluster = start_cluster(3)
    leader, _other = led(cluster)
    cluster.nodes[leader].signal(signal.SIGTERM)

    def is_told() -> bool:
        state = cluster.partition("t", leader)
        return state is not None and state.leader not in (leader, -1)

    cluster.wait_until(is_told, "the broker that stops names another leader")
    assert cluster.nodes[leader].end() == 0
