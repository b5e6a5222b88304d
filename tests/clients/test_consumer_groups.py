"""Groups of the new protocol (KIP-848) with confluent-kafka, unmodified: the broker assigns, the members follow."""

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

from ottla import Admin
from tests.clients.adapters import PATIENCE_S, Confluent
from tests.clients.conftest import BrokerProcess
from tests.clients.subscribers import ConfluentFollower as Follower
from tests.clients.subscribers import eventually, fill, have_all, places

QUICK = {
    "group_consumer_min_heartbeat_interval_ms": "200", "group_consumer_heartbeat_interval_ms": "200",
    "group_consumer_min_session_timeout_ms": "3000", "group_consumer_session_timeout_ms": "3000",
    "auto_create_topics_enable": "false",
}  # fmt: skip


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("consumer-groups") / "data", **QUICK)
    yield process
    process.close()


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_the_partitions_as_they_come_and_go(
    quick: BrokerProcess, topic: str, group: str, assignor: str
) -> None:
    client = Confluent(quick.address)
    client.create(topic, 6)
    fill(client, topic, 6, 0, 10)
    everything = places(topic, 6)
    members = [Follower(quick.address, group, topic, assignor=assignor)]
    members[0].is_committing = True
    try:
        eventually(lambda: have_all(members, *everything), "one has all")
        eventually(lambda: len(members[0].seen) == 60, "it reads all")
        members += [Follower(quick.address, group, topic, assignor=assignor) for _ in range(2)]
        eventually(
            lambda: have_all(members, *everything) and all(len(each.parts) == 2 for each in members),
            f"three have two each, not {[each.parts for each in members]}",
        )
        admin = client.admin()
        described = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
        assert described.state == confluent_kafka.ConsumerGroupState.STABLE
        assert described.type == confluent_kafka.ConsumerGroupType.CONSUMER
        assert sorted(
            (each.topic, each.partition) for row in described.members for each in row.assignment.topic_partitions
        ) == everything  # fmt: skip
        with Admin(quick.address) as own:
            info = own.describe_group(group)
            assert (info.state, info.protocol) == ("Stable", assignor)
            assert sorted(tuple(place) for row in info.members for place in row.partitions) == everything
        members.pop(0).close()
        eventually(lambda: have_all(members, *everything), "two have all again")
        fill(client, topic, 6, 10, 12)
        eventually(lambda: sum(len(each.seen) for each in members) == 12, "they go on where it committed")
    finally:
        for member in members:
            member.close()


def test_a_static_member_comes_back_to_what_it_had(quick: BrokerProcess, topic: str, group: str) -> None:
    client = Confluent(quick.address)
    client.create(topic, 4)
    one, two = (
        Follower(quick.address, group, topic, assignor="uniform", instance=name) for name in ("one", "two")
    )
    members = [one, two]
    try:
        eventually(
            lambda: have_all(members, *places(topic, 4)) and all(len(each.parts) == 2 for each in members),
            "shared",
        )
        had, times = two.parts, one.times
        two.close()
        members.remove(two)
        back = Follower(quick.address, group, topic, assignor="uniform", instance="two")
        members.append(back)
        eventually(lambda: back.parts == had, "it has what it had")
        assert one.times == times and len(one.parts) == 2
    finally:
        for member in members:
            member.close()


def test_a_pattern_takes_topics_that_come_later(quick: BrokerProcess, topic: str, group: str) -> None:
    client = Confluent(quick.address)
    client.create(f"{topic}-a", 1)
    client.create(f"other-{topic}", 1)
    member = Follower(quick.address, group, pattern=f"^{topic}-.*", assignor="uniform")
    try:
        eventually(lambda: have_all([member], (f"{topic}-a", 0)), "the first")
        client.create(f"{topic}-b", 2)
        eventually(
            lambda: have_all([member], (f"{topic}-a", 0), *places(f"{topic}-b", 2)), "and what came later"
        )
        client.widen(f"{topic}-b", 3)
        eventually(lambda: have_all([member], (f"{topic}-a", 0), *places(f"{topic}-b", 3)), "and grew")
    finally:
        member.close()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_members_outlive_the_broker(start_broker: Any, topic: str, group: str, end: str) -> None:
    broker = start_broker(**QUICK)
    client = Confluent(broker.address)
    client.create(topic, 2)
    fill(client, topic, 2, 0, 5)
    member = Follower(broker.address, group, topic, assignor="uniform")
    member.is_committing = True
    eventually(lambda: len(member.seen) == 10, "all is read")
    times = member.times
    getattr(broker, end)()
    broker.start()
    fill(client, topic, 2, 5, 8)
    eventually(lambda: len(member.seen) == 16, "it goes on")
    assert member.times == times, "in its epoch: nobody has missed it"
    member.close()
    assert sorted(offset for _topic, _number, offset, _value in member.seen) == sorted([*range(8), *range(8)])


def test_a_group_may_have_settings_of_its_own(quick: BrokerProcess, topic: str, group: str) -> None:
    admin = Confluent(quick.address).admin()
    kind = confluent_kafka.admin.ConfigResource.Type.GROUP
    entry = confluent_kafka.admin.ConfigEntry(
        "consumer.session.timeout.ms", "5000",
        incremental_operation=confluent_kafka.admin.AlterConfigOpType.SET,
    )  # fmt: skip
    resource = confluent_kafka.admin.ConfigResource(kind, group, incremental_configs=[entry])
    [altered] = admin.incremental_alter_configs([resource]).values()
    altered.result(PATIENCE_S)
    [described] = admin.describe_configs([confluent_kafka.admin.ConfigResource(kind, group)]).values()
    found = described.result(PATIENCE_S)
    assert found["consumer.session.timeout.ms"].value == "5000"
    assert found["consumer.heartbeat.interval.ms"].value == "200"
    entry = confluent_kafka.admin.ConfigEntry(
        "consumer.session.timeout.ms", "100",
        incremental_operation=confluent_kafka.admin.AlterConfigOpType.SET,
    )  # fmt: skip
    resource = confluent_kafka.admin.ConfigResource(kind, group, incremental_configs=[entry])
    [altered] = admin.incremental_alter_configs([resource]).values()
    with pytest.raises(confluent_kafka.KafkaException, match="limits"):
        altered.result(PATIENCE_S)
