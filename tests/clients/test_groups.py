"""Consumer groups with each of the clients, unmodified: who has which partition, and where they go on."""

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

from tests.clients.adapters import PATIENCE_S, Confluent
from tests.clients.conftest import BrokerProcess
from tests.clients.subscribers import SUBSCRIBERS, ConfluentSubscriber, eventually, fill, have_all, places


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose groups do not wait long for anybody."""
    process = BrokerProcess(
        tmp_path_factory.mktemp("groups") / "data", group_initial_rebalance_delay_ms="100",
        group_min_session_timeout_ms="500", auto_create_topics_enable="false",
    )  # fmt: skip
    yield process
    process.close()


EACH = [(kind, assignor) for kind in SUBSCRIBERS for assignor in kind.assignors]


@pytest.mark.parametrize(("kind", "assignor"), EACH, ids=[f"{kind.name}-{name}" for kind, name in EACH])
def test_members_share_the_partitions_as_they_come_and_go(
    quick: BrokerProcess, topic: str, group: str, kind: Any, assignor: str
) -> None:
    client = Confluent(quick.address)
    client.create(topic, 6)
    fill(client, topic, 6, 0, 10)
    everything = places(topic, 6)
    members = [kind(quick.address, group, topic, assignor=assignor)]
    try:
        eventually(lambda: have_all(members, *everything), "one has all")
        eventually(lambda: len(members[0].seen) == 60, "it reads all")
        members += [kind(quick.address, group, topic, assignor=assignor) for _ in range(2)]
        eventually(
            lambda: have_all(members, *everything) and all(len(each.parts) == 2 for each in members),
            f"three have two each, not {[each.parts for each in members]}",
        )
        members.pop(0).close()
        eventually(lambda: have_all(members, *everything), "two have all again")
    finally:
        for member in members:
            member.close()


@pytest.mark.parametrize("kind", SUBSCRIBERS, ids=lambda kind: kind.name)
def test_a_group_goes_on_where_it_committed(quick: BrokerProcess, topic: str, group: str, kind: Any) -> None:
    client = Confluent(quick.address)
    client.create(topic, 2)
    fill(client, topic, 2, 0, 5)
    first = kind(quick.address, group, topic)
    first.is_committing = True
    eventually(lambda: len(first.seen) == 10, "all is read")
    first.close()
    fill(client, topic, 2, 5, 8)
    second = kind(quick.address, group, topic)
    eventually(lambda: len(second.seen) == 6, "what came later is read")
    second.close()
    assert sorted((number, offset) for _topic, number, offset, _value in second.seen) == [
        (number, offset) for number in range(2) for offset in range(5, 8)
    ]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_groups_and_offsets_outlive_the_broker(start_broker: Any, topic: str, group: str, end: str) -> None:
    broker = start_broker(group_initial_rebalance_delay_ms="100")
    client = Confluent(broker.address)
    client.create(topic, 2)
    fill(client, topic, 2, 0, 5)
    member = ConfluentSubscriber(broker.address, group, topic)
    member.is_committing = True
    eventually(lambda: len(member.seen) == 10, "all is read")
    times = member.times
    getattr(broker, end)()
    broker.start()
    fill(client, topic, 2, 5, 8)
    # The same member goes on in its generation: nobody has missed it.
    eventually(lambda: len(member.seen) == 16, "it goes on")
    assert member.times == times
    member.close()
    assert sorted(offset for _topic, _number, offset, _value in member.seen) == sorted([*range(8), *range(8)])


@pytest.mark.parametrize("kind", SUBSCRIBERS, ids=lambda kind: kind.name)
def test_a_static_member_comes_back_to_what_it_had(
    quick: BrokerProcess, topic: str, group: str, kind: Any
) -> None:
    """Without a rebalance: the other one is not even asked."""
    client = Confluent(quick.address)
    client.create(topic, 4)
    everything = places(topic, 4)
    # As long a session as it takes to come back.
    one, two = (
        kind(quick.address, group, topic, instance=name, session_ms=20_000) for name in ("one", "two")
    )
    members = [one, two]
    try:
        eventually(
            lambda: have_all(members, *everything) and all(len(each.parts) == 2 for each in members), "shared"
        )
        had, times = two.parts, one.times
        two.close()
        members.remove(two)
        back = kind(quick.address, group, topic, instance="two", session_ms=20_000)
        members.append(back)
        eventually(lambda: back.parts == had, "it has what it had")
        assert one.times == times
    finally:
        for member in members:
            member.close()


@pytest.mark.parametrize("kind", SUBSCRIBERS, ids=lambda kind: kind.name)
def test_a_pattern_takes_topics_that_come_later(
    quick: BrokerProcess, topic: str, group: str, kind: Any
) -> None:
    client = Confluent(quick.address)
    client.create(f"{topic}-a", 1)
    client.create(f"other-{topic}", 1)
    member = kind(quick.address, group, pattern=f"^{topic}-.*")
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


def test_administrators_see_and_change_groups(quick: BrokerProcess, topic: str, group: str) -> None:
    client = Confluent(quick.address)
    client.create(topic, 2)
    fill(client, topic, 2, 0, 3)
    member = ConfluentSubscriber(quick.address, group, topic)
    member.is_committing = True
    eventually(lambda: len(member.seen) == 6, "all is read")
    admin = client.admin()
    described = admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    assert described.state == confluent_kafka.ConsumerGroupState.STABLE
    [row] = described.members
    assert {(each.topic, each.partition) for each in row.assignment.topic_partitions} == set(places(topic, 2))
    listed = admin.list_consumer_groups().result(PATIENCE_S)
    assert group in {each.group_id for each in listed.valid}
    with pytest.raises(confluent_kafka.KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([group])[group].result(PATIENCE_S)
    member.close()
    [asked] = [confluent_kafka.ConsumerGroupTopicPartitions(group)]
    found = admin.list_consumer_group_offsets([asked])[group].result(PATIENCE_S)
    assert {(each.partition, each.offset) for each in found.topic_partitions} == {(0, 3), (1, 3)}
    changed = confluent_kafka.ConsumerGroupTopicPartitions(
        group, [confluent_kafka.TopicPartition(topic, 0, 1)]
    )
    admin.alter_consumer_group_offsets([changed])[group].result(PATIENCE_S)
    again = ConfluentSubscriber(quick.address, group, topic)
    eventually(lambda: len(again.seen) == 2, "what was set back is read again")
    again.close()
    assert [(number, offset) for _topic, number, offset, _value in again.seen] == [(0, 1), (0, 2)]
    admin.delete_consumer_groups([group])[group].result(PATIENCE_S)
    listed = admin.list_consumer_groups().result(PATIENCE_S)
    assert group not in {each.group_id for each in listed.valid}
