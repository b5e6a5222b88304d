"""Consumer groups with the clients of the rest of the world: they share, commit, go on where they were, and leave."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient

from bench.process import free_port
from tests.crash.broker_process import PATIENCE_S, BrokerProcess
from tests.interop.members import Member, Place, share
from tests.interop.programs import Program
from tests.interop.test_java_client import create

Join = Callable[[], Member]
PARTITIONS = 4

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose groups do not wait long for anybody."""
    settings = {
        "group.initial.rebalance.delay.ms": "100",
        "group.consumer.min.heartbeat.interval.ms": "200",
        "group.consumer.heartbeat.interval.ms": "200",
    }
    with BrokerProcess(tmp_path_factory.mktemp("groups") / "data", free_port(), settings) as process:
        yield process


@pytest.fixture
def group() -> str:
    return f"group-{next(_NUMBERS)}"


@pytest.fixture
def everything(quick: BrokerProcess, topic: str) -> set[Place]:
    create(quick, topic, PARTITIONS)
    return {(topic, number) for number in range(PARTITIONS)}


def write(broker: BrokerProcess, topic: str, count: int) -> None:
    """So many records to each partition."""
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    for number in range(PARTITIONS):
        for _ in range(count):
            producer.produce(topic, b"x", partition=number)
    assert producer.flush(PATIENCE_S) == 0


def committed(broker: BrokerProcess, group: str) -> dict[Place, int]:
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    rows = asked[group].result(PATIENCE_S).topic_partitions
    return {(row.topic, row.partition): row.offset for row in rows}


def state(broker: BrokerProcess, group: str) -> str:
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    return str(admin.describe_consumer_groups([group])[group].result(PATIENCE_S).state.name)


def tour(broker: BrokerProcess, topic: str, group: str, everything: set[Place], join: Join) -> None:
    """One has all and reads it; two share, and none reads what was committed; one leaves, the other goes on for it."""
    write(broker, topic, 10)
    old = {(*place, offset) for place in everything for offset in range(10)}
    with ExitStack() as stack:
        one = stack.enter_context(join())
        share([one], everything)
        one.wait_until(lambda: set(one.read) == old, "it reads what is there")
        assert one.commit() == dict.fromkeys(everything, 10)
        assert committed(broker, group) == dict.fromkeys(everything, 10)

        two = stack.enter_context(join())
        share([one, two], everything, [2, 2])
        assert state(broker, group) == "STABLE"
        write(broker, topic, 1)
        new = {(*place, 10) for place in everything}
        one.wait_until(lambda: {*one.read, *two.read} >= new, "they read on")
        one.wait_until(lambda: len(two.read) == 2, "each its own")
        assert {place[:2] for place in two.read} == two.parts, "what was committed is not read again"
        assert len(one.read) == len(old) + 2

        one.commit()
        two.commit()
        one.leave()
        share([two], everything)
        write(broker, topic, 1)
        two.wait_until(lambda: len(two.read) >= 6, "it reads for both")
        assert {(*place, 11) for place in everything} == set(two.read[2:]), "it goes on where the other was"
        two.commit()
        two.leave()
        assert one.other == two.other == []
    assert committed(broker, group) == dict.fromkeys(everything, 12)
    assert state(broker, group) == "EMPTY"


# --- kafka-clients ------------------------------------------------------------------------------------------------

JAVA = {
    "range": ["partition.assignment.strategy=org.apache.kafka.clients.consumer.RangeAssignor"],
    "roundrobin": ["partition.assignment.strategy=org.apache.kafka.clients.consumer.RoundRobinAssignor"],
    "sticky": ["partition.assignment.strategy=org.apache.kafka.clients.consumer.StickyAssignor"],
    "cooperative-sticky": [
        "partition.assignment.strategy=org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    ],
    "consumer:uniform": ["group.protocol=consumer", "group.remote.assignor=uniform"],
    "consumer:range": ["group.protocol=consumer", "group.remote.assignor=range"],
}


@pytest.mark.parametrize("assignor", JAVA)
def test_java(
    java_member: Program, quick: BrokerProcess, topic: str, group: str, everything: set[Place], assignor: str
) -> None:
    options = [*JAVA[assignor]]
    if not assignor.startswith("consumer:"):
        options.append("heartbeat.interval.ms=300")
    members: list[Member] = []

    def join() -> Member:
        members.append(java_member.join(quick.address, group, f"topics:{topic}", *options))
        return members[-1]

    tour(quick, topic, group, everything, join)
    one, two = members
    # What is incremental takes two partitions from the first one; others take all and give two back.
    revoked = next(of for event, of in one.events if event == "revoked")
    is_incremental = assignor.startswith(("cooperative", "consumer:"))
    assert len(revoked) == (2 if is_incremental else 4)
    assert not any(event == "lost" for event, _of in (*one.events, *two.events))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_static_java_member_comes_back_without_a_rebalance(
    java_member: Program, quick: BrokerProcess, topic: str, group: str, everything: set[Place], protocol: str
) -> None:
    write(quick, topic, 3)
    options = [f"group.protocol={protocol}"]
    if protocol == "classic":
        options += ["session.timeout.ms=60000", "heartbeat.interval.ms=300"]

    def join(name: str) -> Member:
        return java_member.join(
            quick.address, group, f"topics:{topic}", f"group.instance.id={name}", *options
        )

    with join("one") as one, join("two") as two:
        share([one, two], everything, [2, 2])
        two.wait_until(
            lambda: len({place for place in two.read if place[:2] in two.parts}) == 6, "it reads its own"
        )
        assert two.commit("commit-async") == dict.fromkeys(two.parts, 3)
        had, events = set(two.parts), list(one.events)
        two.leave()
        with join("two") as back:
            share([back], had)
            write(quick, topic, 1)
            back.wait_until(lambda: len(back.read) == 2, "it goes on")
            assert {place[2] for place in back.read} == {3}
            one.wait_until(lambda: len([place for place in one.read if place[2] == 3]) == 2, "the other, too")
            assert one.events == events, "the other is not even asked"


def test_a_java_member_subscribes_to_a_pattern(
    java_member: Program, quick: BrokerProcess, topic: str, group: str
) -> None:
    """KIP-848: the broker evaluates it, and knows of topics that come later."""
    create(quick, f"{topic}-a", 2)
    create(quick, f"not-{topic}-a")
    with java_member.join(
        quick.address, group, f"pattern:{topic}-[a-c]", "group.protocol=consumer"
    ) as member:
        first = {(f"{topic}-a", 0), (f"{topic}-a", 1)}
        share([member], first)
        create(quick, f"{topic}-c")
        create(quick, f"{topic}-d")
        share([member], {*first, (f"{topic}-c", 0)})
        member.leave()


# --- others -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "balancer",
    ["range", "roundrobin", "sticky", "cooperative-sticky", "consumer:uniform", "consumer:range"],
)
def test_franz(
    franz: Program, quick: BrokerProcess, topic: str, group: str, everything: set[Place], balancer: str
) -> None:
    tour(quick, topic, group, everything, lambda: franz.join(quick.address, "member", topic, group, balancer))


@pytest.mark.parametrize(
    ("version", "strategy"), [("1.0.0", "range"), ("2.8.0", "sticky"), ("newest", "roundrobin")]
)
def test_sarama(
    sarama: Program,
    quick: BrokerProcess,
    topic: str,
    group: str,
    everything: set[Place],
    version: str,
    strategy: str,
) -> None:
    def join() -> Member:
        return sarama.join(quick.address, "member", topic, version, group, strategy)

    tour(quick, topic, group, everything, join)


def test_kafkajs(
    kafkajs: Program, quick: BrokerProcess, topic: str, group: str, everything: set[Place]
) -> None:
    tour(quick, topic, group, everything, lambda: kafkajs.join(quick.address, "member", topic, group))
