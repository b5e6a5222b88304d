"""A broker that lives but whose session with ZooKeeper does not: others lead what it led, and it comes back as a new life."""

import time

import pytest

from ottla.runtime.local_zookeeper import LocalZookeeper
from tests.cluster.load import Load
from tests.cluster.running_cluster import PATIENCE_S, RunningCluster
from tests.cluster.sessions import Line, expire_session
from tests.cluster.topics import admin_of, controller_of, new_topic, state_of, wait_alike
from tests.crash.broker_process import PRODUCE, Wire, batch_of, producing

ALL = (1, 2, 3)


def led_by(leader: int) -> tuple[int, ...]:
    """All brokers, this one first."""
    return (leader, *(each for each in ALL if each != leader))


def test_the_session_of_a_leader_ends(shared: RunningCluster) -> None:
    controller = controller_of(shared)
    leader = next(node for node in ALL if node != controller)
    topic = new_topic(shared, led_by(leader), min_insync_replicas="2")
    epoch = state_of(shared, topic).leader_epoch
    with Load(shared, topic) as load:
        load.wait_for_more(100)
        ended_s = time.monotonic()
        expire_session(shared.zookeeper_connect, leader)
        shared.wait_until(
            lambda: state_of(shared, topic, controller).leader_epoch > epoch, "another term began"
        )
        load.wait_for_more(100)
        print(f"the longest stall was {load.longest_stall_s(ended_s):.3f} s")
        shared.wait_in_sync(topic, controller, ALL)
        load.wait_for_more(50)
    wait_alike(shared, topic)


def test_the_session_of_the_controller_ends_which_leads_too(shared: RunningCluster) -> None:
    controller = controller_of(shared)
    other = next(node for node in ALL if node != controller)
    topic = new_topic(shared, led_by(controller), min_insync_replicas="2")
    epoch = state_of(shared, topic).leader_epoch
    with Load(shared, topic) as load:
        load.wait_for_more(100)
        ended_s = time.monotonic()
        expire_session(shared.zookeeper_connect, controller)
        shared.wait_until(lambda: state_of(shared, topic, other).leader_epoch > epoch, "another term began")
        load.wait_for_more(100)
        print(f"the longest stall was {load.longest_stall_s(ended_s):.3f} s")
        shared.wait_in_sync(topic, other, ALL)
    wait_alike(shared, topic)
    # One controls, and all agree on who.
    shared.wait_until(
        lambda: len({shared.controller(via) for via in ALL}) == 1 and shared.controller(1) > 0,
        "all know the one controller",
    )


def test_a_controller_is_killed_that_leads_nothing(shared: RunningCluster) -> None:
    controller = controller_of(shared)
    leader = next(node for node in ALL if node != controller)
    topic = new_topic(shared, led_by(leader), min_insync_replicas="2")
    with Load(shared, topic) as load:
        load.wait_for_more(100)
        killed_s = time.monotonic()
        shared.kill(controller)
        shared.wait_until(
            lambda: shared.controller(leader) not in (-1, controller), "another broker controls"
        )
        print(f"another broker controls after {time.monotonic() - killed_s:.3f} s")
        shared.wait_in_sync(topic, leader, set(ALL) - {controller})
        load.wait_for_more(100)
        print(f"the longest stall was {load.longest_stall_s(killed_s):.3f} s")
        shared.restart(controller)
        shared.wait_in_sync(topic, leader, ALL)
    wait_alike(shared, topic)


def test_a_leader_is_cut_off_from_zookeeper_alone(
    shared: RunningCluster, shared_zookeeper: LocalZookeeper
) -> None:
    """Its clients and its followers reach it all the time; the others elect another when its session is over."""
    with Line(shared_zookeeper.port) as line:
        path = shared.zookeeper_connect.partition("/")[2]
        through = f"127.0.0.1:{line.port}/{path}"
        fourth = 4
        shared.add(fourth, zookeeper_connect=through, zookeeper_session_timeout_ms="2000")
        shared.nodes[fourth].wait_for(" listens on ")
        members = (fourth, 1, 2)
        topic = new_topic(shared, members, min_insync_replicas="2")
        with Load(shared, topic) as load:
            load.wait_for_more(100)
            cut_s = time.monotonic()
            line.cut()
            # It serves with the ISR that it has, until the others go on without it.
            shared.wait_until(lambda: state_of(shared, topic, 1).leader in (1, 2), "another leads")
            shared.wait_in_sync(topic, 1, (1, 2))
            # The store cannot tell it, so it asks the others; then it sends those away who would hear of leaders from it.
            shared.nodes[fourth].wait_for("the other brokers have removed it from the cluster")
            with pytest.raises(ConnectionError):
                state_of(shared, topic, fourth)
            # Nor does it take anything: the client is to ask who leads.
            with Wire(shared.nodes[fourth].address) as wire:
                batch = producing(topic, batch_of(b"nobody has this"))
                [answer] = wire.ask(PRODUCE, 9, **{**batch, "timeout": 300}).responses
                assert answer.partition_responses[0].error_code.name == "not_leader_or_follower"
            line.mend()
            load.wait_for_more(100)
            print(f"the longest stall was {load.longest_stall_s(cut_s):.3f} s")
            shared.wait_in_sync(topic, 1, members)
            load.wait_for_more(50)
        wait_alike(shared, topic, members)
        admin = admin_of(shared)
        admin.delete_topics([topic])[topic].result(PATIENCE_S)
        shared.remove(fourth)
