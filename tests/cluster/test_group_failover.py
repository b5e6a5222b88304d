"""The coordinator of groups dies, stands still, is restarted, is moved: members go on, and what they committed is there."""

import time
from collections.abc import Callable

from confluent_kafka import Consumer

from tests.cluster.groups import FIND_COORDINATOR, OFFSETS_TOPIC, PARTITIONS, Groups, coordinator_of, move
from tests.cluster.running_cluster import RunningCluster
from tests.cluster.topics import QUIET, controller_first, new_topic, write
from tests.crash.broker_process import Wire

ALL = (1, 2, 3)
COORDINATOR_NOT_AVAILABLE = 15
OFFSETS_PARTITIONS = 50


def new_wide_topic(cluster: RunningCluster) -> str:
    return new_topic(cluster, *([ALL] * PARTITIONS), min_insync_replicas="2")


def wait_all_in_sync(cluster: RunningCluster, via: int) -> None:
    cluster.wait_in_sync(OFFSETS_TOPIC, via, ALL, range(OFFSETS_PARTITIONS))


def test_the_coordinator_is_killed(shared: RunningCluster) -> None:
    _controller, victim, other = controller_first(shared)
    topic = new_wide_topic(shared)
    with Groups(shared, topic, victim) as groups:
        killed_s = time.monotonic()
        shared.kill(victim)
        groups.wait_for_more()
        stalls = groups.stalls_s(killed_s)
        print(
            "the longest time between two commits was",
            {kind: f"{each:.2f} s" for kind, each in stalls.items()},
        )
        assert all(coordinator_of(shared, name) != victim for name in groups.names)
        shared.restart(victim)
        wait_all_in_sync(shared, other)
        groups.wait_for_more()
        groups.wait_shared()
    # Nobody waits for a session of the dead broker: its port refuses.
    assert max(stalls.values()) < 30


def test_the_coordinator_that_controls_too_stands_still_past_its_session(shared: RunningCluster) -> None:
    victim, other, _third = controller_first(shared)
    topic = new_wide_topic(shared)
    with Groups(shared, topic, victim) as groups:
        shared.pause(victim)
        shared.wait_until(
            lambda: coordinator_of(shared, groups.names[0]) not in (victim, None), "another coordinates"
        )
        # What was sent to it before is answered now: by one that knows that it is none any more.
        shared.resume(victim)
        groups.wait_for_more()
        wait_all_in_sync(shared, other)
        groups.wait_for_more()
        groups.wait_shared()


def test_a_rolling_restart(shared: RunningCluster) -> None:
    topic = new_wide_topic(shared)
    with Groups(shared, topic, 1) as groups:
        for node in ALL:
            shared.stop(node)
            groups.wait_for_more(2)
            shared.restart(node)
            wait_all_in_sync(shared, node % 3 + 1)
            groups.wait_for_more(2)
        groups.wait_shared()


def test_the_partition_of_a_group_is_moved(shared: RunningCluster) -> None:
    _controller, first, second = controller_first(shared)
    topic = new_wide_topic(shared)
    with Groups(shared, topic, first) as groups:
        third = next(node for node in ALL if node not in (first, second))
        for replicas in ((second, third), (second, third, first)):
            move(shared, second, [replicas] * OFFSETS_PARTITIONS)
            assert all(coordinator_of(shared, name) == second for name in groups.names)
            groups.wait_for_more()
        groups.wait_shared()


def test_groups_wait_for_the_third_broker(start_cluster: Callable[..., RunningCluster]) -> None:
    cluster = start_cluster(2)
    topic = new_topic(cluster, (1, 2))
    write(cluster, topic, b"a", b"b")
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "early",
            "auto.offset.reset": "earliest",
            **QUIET,
        }
    )
    consumer.subscribe([topic])
    with Wire(cluster.nodes[1].address) as wire:
        for _ in range(2):
            [row] = wire.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["early"]).coordinators
            assert row.error_code.value == COORDINATOR_NOT_AVAILABLE
    assert consumer.poll(0.5) is None
    cluster.start(3)
    found: list[bytes] = []

    def reads() -> bool:
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message.value())
        return found == [b"a", b"b"]

    cluster.wait_until(reads, "the member reads")
    consumer.commit(asynchronous=False)
    consumer.close()
    known = cluster.partitions(OFFSETS_TOPIC, 3)
    assert len(known) == OFFSETS_PARTITIONS
    assert all(sorted(each.replicas) == [1, 2, 3] for each in known.values())
