"""Group members in trouble: their broker is down for longer than their session, or dies while they leave."""

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import ottla
from ottla import TopicPartition
from ottla.client.errors import KafkaError
from tests.broker_proxy import Proxy
from tests.cluster.running_cluster import RunningCluster
from tests.cluster.topics import new_topic
from tests.crash.broker_process import BrokerProcess
from tests.sdk.members import QUICKLY, Member, wait_shared
from tests.sdk.reading import descriptors, eventually, within

_NUMBERS = itertools.count()


@pytest.fixture
def group() -> str:
    return f"group-{next(_NUMBERS)}"


def write(address: str, topic: str, *values: bytes, partition: int = 0) -> None:
    with ottla.Producer(address) as producer:
        for value in values:
            producer.send(topic, value, partition=partition)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_that_was_cut_off_for_longer_than_its_session_comes_back(
    proxy: Proxy, make_topic: Callable[..., str], group: str, protocol: str
) -> None:
    """It is told that its partitions are lost, joins again by itself, and goes on where it had committed."""
    topic = make_topic(proxy.address)
    write(proxy.address, topic, b"0", b"1")
    settings: dict[str, Any] = {"request_timeout_ms": 500, "auto_commit_interval_ms": 50}
    if protocol == "classic":
        settings |= {"session_timeout_ms": 1_000}
    with Member(proxy.address, topic, group=group, group_protocol=protocol, **settings) as member:
        with ottla.Admin(proxy.address) as admin:
            eventually(
                lambda: admin.group_offsets(group).get(TopicPartition(topic, 0)) == 2, "it reads and commits"
            )
        proxy.pause()
        # The broker cannot be asked either: its sessions last for one second and for two.
        threading.Event().wait(3)
        proxy.resume()
        eventually(
            lambda: any(what == "lost" for what, _ in member.told) or member.errors,
            "it hears that the group went on without it",
        )
        wait_shared([member], (topic, 0))
        write(proxy.address, topic, b"2")
        eventually(lambda: member.values[-1] == b"2" or member.errors, "it goes on")
        assert member.values == [b"0", b"1", b"2"]


def test_a_consumer_ends_though_its_broker_is_away(mortal: BrokerProcess, group: str) -> None:
    """Neither its last commit nor its farewell can be delivered: it says so on its log, and does not hang."""
    with ottla.Admin(mortal.address) as admin:
        admin.create_topic("orders", 1)
    write(mortal.address, "orders", b"0")
    consumer = ottla.Consumer(mortal.address, group_id=group, **QUICKLY)
    consumer.subscribe(["orders"])
    eventually(lambda: consumer.poll(100), "it reads")
    mortal.kill()
    with within(30):
        consumer.close(2)


def test_what_a_caller_asks_for_fails_in_its_time_when_the_broker_is_away(
    mortal: BrokerProcess, group: str
) -> None:
    with ottla.Admin(mortal.address) as admin:
        admin.create_topic("orders", 1)
    place = TopicPartition("orders", 0)
    settings: dict[str, Any] = {**QUICKLY, "default_api_timeout_ms": 1_500, "request_timeout_ms": 1_000}
    with ottla.Consumer(mortal.address, group_id=group, enable_auto_commit=False, **settings) as consumer:
        consumer.assign([place])
        consumer.commit({place: 0})
        mortal.kill()
        for ask in (
            lambda: consumer.commit({place: 1}),
            lambda: consumer.committed([place]),
            lambda: consumer.end_offsets([place]),
        ):
            with within(30), pytest.raises(KafkaError):
                ask()
        used_s, began = time.process_time(), time.monotonic()
        assert consumer.poll(1_000) == {}
        assert (time.process_time() - used_s) / (time.monotonic() - began) < 0.2
        mortal.start()
        consumer.commit({place: 2})
        [committed] = consumer.committed([place]).values()
        assert getattr(committed, "offset", committed) == 2


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_who_leaves_tells_the_next_coordinator_if_the_last_one_has_died(
    cluster: RunningCluster, group: str, protocol: str
) -> None:
    """The others get its partitions at once, not at the end of its session, which lasts longer than this test may."""
    topic = new_topic(cluster, (1, 2, 3), (2, 3, 1))
    settings: dict[str, Any] = {"group": group, "group_protocol": protocol}
    if protocol == "classic":
        settings["session_timeout_ms"] = 45_000
    with Member(cluster.bootstrap, topic, **settings) as one:
        other = Member(cluster.bootstrap, topic, **settings)
        with other:
            wait_shared([one, other], (topic, 0), (topic, 1), each_has=1)
            with ottla.Admin(cluster.bootstrap) as admin:
                address = admin.describe_group(group).coordinator
            cluster.kill(next(number for number, node in cluster.nodes.items() if node.address == address))
        with within(35):
            wait_shared([one], (topic, 0), (topic, 1))


def test_an_idle_member_uses_no_cpu(server: str, make_topic: Callable[..., str], group: str) -> None:
    topic = make_topic(server)
    with ottla.Consumer(server, group_id=group) as consumer:
        consumer.subscribe([topic])
        eventually(lambda: consumer.poll(100) == {} and consumer.assignment(), "it is a member")
        consumer.poll(300)
        began, used_s = time.monotonic(), time.process_time()
        assert consumer.poll(3_000) == {}
        assert (time.process_time() - used_s) / (time.monotonic() - began) < 0.05


def test_members_that_are_closed_leave_nothing(
    server: str, make_topic: Callable[..., str], group: str
) -> None:
    topic = make_topic(server)

    def be_member() -> None:
        with Member(server, topic, group=group) as member:
            wait_shared([member], (topic, 0))

    be_member()
    threads, open_before = threading.active_count(), descriptors()
    for _ in range(5):
        be_member()
    assert threading.active_count() == threads and descriptors() <= open_before


def test_a_member_reads_a_partition_of_which_only_the_leader_of_its_group_has_heard(
    proxy: Proxy, make_topic: Callable[..., str], group: str
) -> None:
    topic = make_topic(proxy.address)
    with (
        ottla.Admin(proxy.address) as admin,
        Member(proxy.address, topic, group=group, client_id="a") as leader,
    ):
        wait_shared([leader], (topic, 0))
        # By the names it is the second, to whom the new partition goes, and it asks for no metadata by itself.
        with Member(proxy.address, topic, group=group, client_id="b", metadata_max_age_ms=600_000) as other:
            eventually(lambda: len(admin.describe_groups([group])[group].members) == 2, "there are two")
            admin.create_partitions(topic, 2)
            wait_shared([leader, other], (topic, 0), (topic, 1), each_has=1)
            assert TopicPartition(topic, 1) in other.parts
            write(proxy.address, topic, b"new", partition=1)
            eventually(lambda: other.values == [b"new"] or other.errors, "it reads it")
