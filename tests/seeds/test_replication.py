"""Replication and control, claim by claim (A3, A5, E1 to E10), on a cluster of three real brokers and a real ZooKeeper."""

# ruff: noqa: N802 (a test bears the id of its claim)

import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from ottla.runtime import zookeeper_layout as layout
from ottla.runtime.local_zookeeper import LocalZookeeper
from tests.cluster.load import Load, read_all
from tests.cluster.running_cluster import PATIENCE_S, PartitionState, RunningCluster
from tests.cluster.sessions import looking
from tests.cluster.topics import (
    QUIET,
    admin_of,
    controller_first,
    controller_of,
    new_topic,
    state_of,
    wait_alike,
    wait_led_by,
    write,
)
from tests.crash.broker_process import FETCH, PRODUCE, Wire, batch_of, fetching, producing

ALL = (1, 2, 3)
OTTLA = Path(sys.executable).parent / "ottla"


def ask_to_append(wire: Wire, topic: str, *values: bytes, acks: int = -1) -> str:
    """The name of the error."""
    [answer] = wire.ask(PRODUCE, 9, **producing(topic, batch_of(*values), acks=acks)).responses
    return str(answer.partition_responses[0].error_code.name)


def as_seen_by_all(cluster: RunningCluster, topic: str) -> list[dict[int, PartitionState]]:
    return [cluster.partitions(topic, via) for via in ALL]


def test_A3_partitions_are_spread_over_brokers_with_the_replication_that_was_asked_for(
    cluster: RunningCluster,
) -> None:
    admin = admin_of(cluster)
    for factor in ALL:
        name = f"spread-{factor}"
        admin.create_topics([NewTopic(name, 6, factor)])[name].result(PATIENCE_S)
        cluster.wait_until(
            lambda name=name: all(len(seen) == 6 for seen in as_seen_by_all(cluster, name)), "all know it"
        )
        states = cluster.partitions(name, 1).values()
        assert all(len(set(state.replicas)) == factor for state in states)
        assert Counter(state.replicas[0] for state in states) == {1: 2, 2: 2, 3: 2}


def test_A5_zookeeper_holds_the_clusters_state_and_every_change_reaches_all(cluster: RunningCluster) -> None:
    controller = controller_of(cluster)
    with looking(cluster.zookeeper_connect) as client:
        assert {"1", "2", "3"} <= set(client.get_children(layout.IDS))
        for node in ALL:
            data, stat = client.get(layout.broker(node))
            assert stat.ephemeralOwner != 0, "a registration ends with its broker's session"
            assert layout.decode_registration(node, data, stat.czxid).port == cluster.nodes[node].port
        assert layout.decode_holder(client.get(layout.CONTROLLER)[0]).node_id == controller
        before = layout.decode_end(*_data_and_version(client, layout.END)).end
        topic = new_topic(cluster, ALL)
        assert layout.decode_end(*_data_and_version(client, layout.END)).end > before
        assert len({str(seen) for seen in as_seen_by_all(cluster, topic)}) == 1
        # One that leaves in order takes its registration with it, and the others hear of it.
        leaver = next(node for node in ALL if node != controller)
        cluster.stop(leaver)
        assert client.exists(layout.broker(leaver)) is None
        for via in set(ALL) - {leaver}:
            cluster.wait_until(
                lambda via=via: leaver not in {each.node_id for each in cluster.metadata(via).brokers},
                "the others know",
            )
            cluster.wait_in_sync(topic, via, set(ALL) - {leaver})


def _data_and_version(client: Any, path: str) -> tuple[bytes, int]:
    data, stat = client.get(path)
    return data, stat.version


def test_E1_a_follower_leaves_the_isr_when_it_lags_and_returns_when_it_has_caught_up(
    cluster: RunningCluster,
) -> None:
    leader, idle, other = controller_first(cluster)
    topic = new_topic(cluster, (leader, idle, other))
    cluster.pause(idle)
    write(cluster, topic, b"0", b"1")
    # Its session lasts: it is the leader who misses it, after replica.lag.time.max.ms.
    cluster.wait_in_sync(topic, leader, (leader, other))
    assert set(state_of(cluster, topic, leader).replicas) == set(ALL), "AR is ISR and OSR"
    cluster.resume(idle)
    cluster.wait_in_sync(topic, leader, ALL)
    wait_alike(cluster, topic)


def test_E1_a_new_follower_begins_out_of_sync(cluster: RunningCluster) -> None:
    leader, idle, other = controller_first(cluster)
    topic = new_topic(cluster, (leader, other))
    write(cluster, topic, b"0", b"1")
    cluster.pause(idle)
    rows = [{"partition_index": 0, "replicas": [leader, other, idle]}]
    with Wire(cluster.nodes[leader].address) as wire:
        wire.ask(
            45, 1, timeout=10_000, allow_replication_factor_change=True,
            topics=[{"name": topic, "partitions": rows}],
        )  # fmt: skip
    state = state_of(cluster, topic, leader)
    assert idle in state.replicas and idle not in state.isr
    cluster.resume(idle)
    wait_alike(cluster, topic, (leader, other, idle))


def test_E2_only_the_leader_serves_writes_and_followers_pull_what_it_has(cluster: RunningCluster) -> None:
    topic = new_topic(cluster, ALL)
    for follower in (2, 3):
        with Wire(cluster.nodes[follower].address) as wire:
            assert ask_to_append(wire, topic, b"no") == "not_leader_or_follower"
    with Wire(cluster.nodes[1].address) as wire:
        assert ask_to_append(wire, topic, b"yes", b"and more") == "none"
    wait_alike(cluster, topic)
    assert b"yes" in cluster.log_bytes(3, topic)


def test_E2_a_consumer_may_read_from_the_replica_in_its_rack(cluster: RunningCluster) -> None:
    topic = new_topic(cluster, (1, 3))
    write(cluster, topic, *(b"%d" % value for value in range(10)))
    with Wire(cluster.nodes[1].address) as wire:
        asked = {**fetching(topic, 0), "rack_id": "b"}
        [answer] = wire.ask(FETCH, 11, **asked).responses
        assert answer.partitions[0].preferred_read_replica == 3
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "client.rack": "b",
            **QUIET,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(10, PATIENCE_S)
    assert [int(message.value()) for message in messages] == list(range(10))
    consumer.close()


def test_E3_consumers_see_only_what_all_in_sync_have(cluster: RunningCluster) -> None:
    leader, idle, _ = controller_first(cluster)
    topic = new_topic(cluster, (leader, idle))
    with Wire(cluster.nodes[leader].address) as wire:
        assert ask_to_append(wire, topic, b"seen") == "none"
        cluster.wait_until(lambda: wire.end_offset(topic) == 1, "the high watermark is 1")
        cluster.pause(idle)
        assert ask_to_append(wire, topic, b"not yet", acks=1) == "none"
        # It is in the leader's log, and the follower in sync has not got it.
        assert b"not yet" in cluster.log_bytes(leader, topic)
        assert wire.end_offset(topic) == 1
        assert [record.value for record in wire.fetch(topic, 0)] == [b"seen"]
        cluster.resume(idle)
        cluster.wait_until(lambda: wire.end_offset(topic) == 2, "the high watermark is 2")
        assert [record.value for record in wire.fetch(topic, 1)] == [b"not yet"]


def test_E4_a_failed_follower_catches_up(cluster: RunningCluster) -> None:
    topic = new_topic(cluster, ALL)
    write(cluster, topic, b"0")
    cluster.kill(3)
    write(cluster, topic, *(b"%d" % value for value in range(1, 100)))
    cluster.restart(3)
    wait_alike(cluster, topic)
    assert len(read_all(cluster, topic, 100)) == 100


def test_E4_what_only_a_failed_leader_had_is_cut_from_its_log(cluster: RunningCluster) -> None:
    topic = new_topic(cluster, ALL)
    write(cluster, topic, b"0", b"1")
    for follower in (2, 3):
        cluster.pause(follower)
    with Wire(cluster.nodes[1].address) as wire:
        # This goes out to those whose fetches wait already; for the next one nobody has asked.
        assert ask_to_append(wire, topic, b"2", acks=1) == "none"
        assert ask_to_append(wire, topic, b"nobody else has this", acks=1) == "none"
    cluster.kill(1)
    for follower in (2, 3):
        cluster.resume(follower)
    cluster.wait_until(lambda: state_of(cluster, topic, 2).leader in (2, 3), "another leads")
    first, last = write(cluster, topic, b"3", b"4")
    assert first in (2, 3), "the new leader's history goes on without it"
    cluster.restart(1)
    wait_alike(cluster, topic)
    assert b"nobody else" not in cluster.log_bytes(1, topic)
    assert list(read_all(cluster, topic, last + 1).values()) == [*range(first), 3, 4]


def test_E5_acks_all_waits_for_the_whole_isr(cluster: RunningCluster) -> None:
    leader, idle, other = controller_first(cluster)
    topic = new_topic(cluster, (leader, idle, other))
    with Wire(cluster.nodes[leader].address, timeout_s=0.3) as wire:
        cluster.pause(idle)
        wire.send(PRODUCE, 9, **producing(topic, batch_of(b"0")))
        with pytest.raises(socket.timeout):
            wire.receive()
        cluster.resume(idle)
        wire.socket.settimeout(PATIENCE_S)
        [answer] = wire.receive().responses
        assert answer.partition_responses[0].error_code.value == 0


def test_E5_too_few_in_sync_refuse(cluster: RunningCluster) -> None:
    topic = new_topic(cluster, (1, 2), min_insync_replicas="2")
    with Wire(cluster.nodes[1].address) as wire:
        assert ask_to_append(wire, topic, b"0") == "none"
        cluster.kill(2)
        cluster.wait_in_sync(topic, 1, [1])
        assert ask_to_append(wire, topic, b"1") == "not_enough_replicas"
        assert ask_to_append(wire, topic, b"1", acks=1) == "none", "who does not ask for it is not refused"
        cluster.restart(2)
        cluster.wait_in_sync(topic, 1, (1, 2))
        assert ask_to_append(wire, topic, b"2") == "none"


def test_E6_the_first_live_replica_of_the_isr_is_elected(cluster: RunningCluster) -> None:
    topic = new_topic(cluster, (2, 3, 1))
    cluster.kill(2)
    wait_led_by(cluster, topic, 3, via=1)
    cluster.kill(3)
    wait_led_by(cluster, topic, 1, via=1)
    assert state_of(cluster, topic, 1).isr == (1,)


def test_E6_a_setting_decides_whether_one_out_of_sync_may_lead(cluster: RunningCluster) -> None:
    topic = new_topic(cluster, (1, 2))
    cluster.kill(2)
    cluster.wait_in_sync(topic, 1, [1])
    write(cluster, topic, b"0")
    cluster.kill(1)
    cluster.restart(2)
    wait_led_by(cluster, topic, -1, via=3)
    entry = ConfigEntry("unclean.leader.election.enable", "true", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = admin_of(cluster, 2, 3)
    [altered] = admin.incremental_alter_configs([resource]).values()
    altered.result(PATIENCE_S)
    wait_led_by(cluster, topic, 2, via=3)


def test_E7_n_replicas_survive_n_minus_1_failures_and_lose_nothing(cluster: RunningCluster) -> None:
    topic = new_topic(cluster, ALL)
    with Load(cluster, topic) as load:
        load.wait_for_more(100)
        cluster.kill(1)
        load.wait_for_more(100)
        cluster.kill(2)
        load.wait_for_more(100)
        assert cluster.running() == [3]
    # The end of the load has read everything.


def test_E8_the_first_to_register_controls_then_another_and_leaders_go_back_where_they_belong(
    zookeeper: LocalZookeeper, tmp_path: Path
) -> None:
    settings = {"zookeeper.session.timeout.ms": "60000", "leader.imbalance.check.interval.seconds": "1"}
    with RunningCluster(tmp_path, f"{zookeeper.address}/control", settings) as cluster:
        cluster.start(2)
        cluster.start(1, 3)
        assert {cluster.controller(via) for via in ALL} == {2}
        topic = new_topic(cluster, (2, 1, 3))
        cluster.kill(2)
        # It moves what the dead one led, and knows who arrives.
        wait_led_by(cluster, topic, 1, via=3)
        assert controller_of(cluster) in (1, 3)
        cluster.restart(2)
        cluster.wait_in_sync(topic, 3, ALL)
        assert controller_of(cluster) in (1, 3), "control stays where it is"
        wait_led_by(cluster, topic, 2, via=3)


def test_E9_placement_is_automatic_in_all_racks_or_by_hand(cluster: RunningCluster) -> None:
    racks = {1: "a", 2: "a", 3: "b"}
    admin = admin_of(cluster)
    admin.create_topics([NewTopic("placed", 9, 2)])["placed"].result(PATIENCE_S)
    cluster.wait_until(lambda: len(cluster.partitions("placed", 1)) == 9, "it is known")
    states = cluster.partitions("placed", 1).values()
    assert all({racks[node] for node in state.replicas} == {"a", "b"} for state in states)
    assert Counter(state.replicas[0] for state in states) == {1: 3, 2: 3, 3: 3}
    by_hand = new_topic(cluster, (2, 1), (3, 2))
    assert [state.replicas for state in cluster.partitions(by_hand, 1).values()] == [(2, 1), (3, 2)]


def test_E10_brokers_join_and_partitions_are_added_and_moved_without_stopping(
    zookeeper: LocalZookeeper, tmp_path: Path
) -> None:
    with RunningCluster(tmp_path, f"{zookeeper.address}/growth") as cluster:
        cluster.start(1, 2)
        topic = new_topic(cluster, (1, 2), (2, 1))
        with Load(cluster, topic) as load:
            load.wait_for_more(50)
            cluster.start(3)
            admin = admin_of(cluster)
            [added] = admin.create_partitions([NewPartitions(topic, 3)]).values()
            added.result(PATIENCE_S)
            load.wait_for_more(50)
            moved = subprocess.run(
                [OTTLA, "partition", "reassign", "--balance", "--bootstrap", cluster.bootstrap],
                capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            )  # fmt: skip
            assert moved.returncode == 0, moved.stderr
            load.wait_for_more(50)
        states = cluster.partitions(topic, 1).values()
        assert Counter(node for state in states for node in state.replicas) == {1: 2, 2: 2, 3: 2}
        assert all(set(state.isr) == set(state.replicas) for state in states)
