"""What a group may rely on whichever client its members are, and whichever of the two protocols they speak."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.admin
import confluent_kafka
import confluent_kafka.admin
import kafka
import pytest

from tests.clients.adapters import PATIENCE_S, QUIET, Confluent
from tests.clients.conftest import BrokerProcess
from tests.clients.member import SESSION_MS
from tests.clients.subscribers import (
    ALL_SUBSCRIBERS,
    SUBSCRIBERS,
    ConfluentFollower,
    ConfluentSubscriber,
    Subscriber,
    eventually,
    fill,
    have_all,
    places,
)

EACH = pytest.mark.parametrize("kind", ALL_SUBSCRIBERS, ids=lambda kind: kind.name)
TEXT = "bis hierher, und nicht weiter: ✓"


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose groups do not wait long for anybody."""
    process = BrokerProcess(
        tmp_path_factory.mktemp("any-group") / "data", group_initial_rebalance_delay_ms="100",
        group_min_session_timeout_ms="500", group_consumer_min_heartbeat_interval_ms="200",
        group_consumer_heartbeat_interval_ms="200", group_consumer_min_session_timeout_ms=str(SESSION_MS),
        auto_create_topics_enable="false",
    )  # fmt: skip
    yield process
    process.close()


def have_two_each(members: list[Subscriber], topic: str) -> Callable[[], bool]:
    return lambda: (
        have_all(members, *places(topic, 2 * len(members))) and all(len(each.parts) == 2 for each in members)
    )


# --- members that are lost ------------------------------------------------------------------------------------


class Process:
    """A member in a process of its own."""

    def __init__(self, kind: type[Subscriber], address: str, group: str, topic: str) -> None:
        script = Path(__file__).with_name("member.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), kind.name, address, group, topic],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def wait_for(self, count: int) -> None:
        """Until it says that it has so many partitions."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if int(line) == count:
                return
        pytest.fail(f"the member ended and never had {count} partitions")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=PATIENCE_S)


def shorten_sessions(broker: BrokerProcess, group: str) -> None:
    """Of KIP-848: there the broker says how long a session is. Only where somebody is to be lost: on a busy machine nobody else should."""
    entry = confluent_kafka.admin.ConfigEntry(
        "consumer.session.timeout.ms", str(SESSION_MS),
        incremental_operation=confluent_kafka.admin.AlterConfigOpType.SET,
    )  # fmt: skip
    kind = confluent_kafka.admin.ConfigResource.Type.GROUP
    admin = Confluent(broker.address).admin()
    resource = confluent_kafka.admin.ConfigResource(kind, group, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


@EACH
def test_the_partitions_of_a_member_that_falls_silent_go_to_the_others(
    quick: BrokerProcess, topic: str, group: str, kind: type[Subscriber]
) -> None:
    """Paused for longer than its session it loses them, and gets some back when it goes on; killed it loses them for good."""
    Confluent(quick.address).create(topic, 4)
    shorten_sessions(quick, group)
    process = Process(kind, quick.address, group, topic)
    member = None
    try:
        process.wait_for(4)
        member = kind(quick.address, group, topic)
        eventually(lambda: len(member.parts) == 2, "shared")
        process.wait_for(2)
        process.signal(signal.SIGSTOP)
        eventually(lambda: have_all([member], *places(topic, 4)), "the other has all")
        process.signal(signal.SIGCONT)
        eventually(lambda: len(member.parts) == 2, "shared again")
        process.signal(signal.SIGKILL)
        eventually(lambda: have_all([member], *places(topic, 4)), "the other has all for good")
    finally:
        process.close()
        if member is not None:
            member.close()


# --- topics that change ---------------------------------------------------------------------------------------


@EACH
def test_a_topic_that_goes_and_partitions_that_come_are_noticed(
    quick: BrokerProcess, topic: str, group: str, kind: type[Subscriber]
) -> None:
    client = Confluent(quick.address)
    stays, goes = f"{topic}-stays", f"{topic}-goes"
    client.create(stays, 2)
    client.create(goes, 2)
    members = [kind(quick.address, group, stays, goes) for _ in range(2)]
    try:
        eventually(
            lambda: have_all(members, *places(stays, 2), *places(goes, 2)) and all(m.parts for m in members),
            "shared",
        )
        client.delete(goes)
        eventually(lambda: have_all(members, *places(stays, 2)), "what is left is shared")
        client.widen(stays, 4)
        eventually(have_two_each(members, stays), "what was added is shared")
    finally:
        for member in members:
            member.close()


# --- where a group begins -------------------------------------------------------------------------------------


@EACH
def test_two_groups_know_nothing_of_each_other(
    quick: BrokerProcess, topic: str, group: str, kind: type[Subscriber]
) -> None:
    client = Confluent(quick.address)
    client.create(topic, 2)
    fill(client, topic, 2, 0, 5)
    everything = [(number, offset) for number in range(2) for offset in range(5)]
    one, other = (kind(quick.address, name, topic) for name in (group, f"{group}-other"))
    one.is_committing = True
    try:
        for member in (one, other):
            eventually(lambda member=member: len(member.seen) == 10, "it reads all")
            assert sorted(each[1:3] for each in member.seen) == everything
            assert have_all([member], *places(topic, 2))
    finally:
        one.close()
        other.close()
    # The one has committed, the other has not.
    assert committed(quick, group, topic, 2) == [5, 5]
    assert committed(quick, f"{group}-other", topic, 2) == [-1, -1]


def committed(broker: BrokerProcess, group: str, topic: str, count: int) -> list[int]:
    asked = confluent_kafka.ConsumerGroupTopicPartitions(
        group, [confluent_kafka.TopicPartition(topic, number) for number in range(count)]
    )
    admin = Confluent(broker.address).admin()
    found = admin.list_consumer_group_offsets([asked])[group].result(PATIENCE_S)
    offsets = {each.partition: max(each.offset, -1) for each in found.topic_partitions}
    return [offsets[number] for number in range(count)]


@EACH
def test_who_has_committed_nothing_begins_where_it_says(
    quick: BrokerProcess, topic: str, group: str, kind: type[Subscriber]
) -> None:
    client = Confluent(quick.address)
    client.create(topic, 1)
    fill(client, topic, 1, 0, 5)
    early = kind(quick.address, f"{group}-early", topic, reset="earliest")
    late = kind(quick.address, f"{group}-late", topic, reset="latest")
    never = kind(quick.address, f"{group}-never", topic, reset="none")
    try:
        eventually(lambda: early.seen, "it reads")
        assert early.seen[0][2] == 0
        eventually(lambda: never.error is not None or never.errors, "it is told that there is nothing")
        assert not never.seen

        def write_until_seen() -> bool:
            # It has its partition before it has asked where that ends.
            fill(client, topic, 1, 0, 1)
            return bool(late.seen)

        eventually(write_until_seen, "it reads what comes")
        assert late.seen[0][2] >= 5
    finally:
        early.close()
        late.close()
        never.error = None
        never.close()


@EACH
def test_a_group_whose_place_is_gone_begins_where_it_says(
    quick: BrokerProcess, topic: str, group: str, kind: type[Subscriber]
) -> None:
    client = Confluent(quick.address)
    client.create(topic, 1)
    fill(client, topic, 1, 0, 3)
    first = kind(quick.address, group, topic)
    first.is_committing = True
    eventually(lambda: len(first.seen) == 3, "it reads")
    first.close()
    assert committed(quick, group, topic, 1) == [3]
    fill(client, topic, 1, 0, 7)
    client.delete_records(topic, 0, 6)
    second = kind(quick.address, group, topic, reset="earliest")
    eventually(lambda: len(second.seen) == 4, "it reads what there is")
    second.close()
    assert [each[2] for each in second.seen] == [6, 7, 8, 9]


# --- what is committed ----------------------------------------------------------------------------------------


def commit_by_confluent(address: str, group: str, topic: str) -> tuple[int, str]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": group, **QUIET})
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0)])
        place = confluent_kafka.TopicPartition(topic, 0, 3, TEXT)
        consumer.commit(offsets=[place], asynchronous=False)
        [found] = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], PATIENCE_S)
        return found.offset, found.metadata
    finally:
        consumer.close()


def commit_by_kafka_python(address: str, group: str, topic: str) -> tuple[int, str]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, group_id=group, enable_auto_commit=False)
    try:
        place = kafka.TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.commit({place: kafka.OffsetAndMetadata(3, TEXT, -1)})
        found = consumer.committed(place, metadata=True)
        return found.offset, found.metadata
    finally:
        consumer.close()


def commit_by_aiokafka(address: str, group: str, topic: str) -> tuple[int, str]:
    async def run() -> tuple[int, str]:
        place = aiokafka.TopicPartition(topic, 0)
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=address, group_id=group, enable_auto_commit=False
        )
        consumer.assign([place])
        await consumer.start()
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=address)
        await admin.start()
        try:
            await consumer.commit({place: (3, TEXT)})
            assert await consumer.committed(place) == 3
            found = (await admin.list_consumer_group_offsets(group))[place]
            return found.offset, found.metadata
        finally:
            await admin.close()
            await consumer.stop()

    return asyncio.run(run())


@pytest.mark.parametrize("commit", [commit_by_confluent, commit_by_kafka_python, commit_by_aiokafka])
def test_the_text_of_a_commit_comes_back(quick: BrokerProcess, topic: str, group: str, commit: Any) -> None:
    client = Confluent(quick.address)
    client.create(topic, 1)
    fill(client, topic, 1, 0, 5)
    assert commit(quick.address, group, topic) == (3, TEXT)
    # Whoever asks, and not in another group.
    assert committed(quick, group, topic, 1) == [3]
    assert committed(quick, f"{group}-other", topic, 1) == [-1]


@EACH
def test_a_store_of_its_own_says_where_a_member_begins_whenever_it_is_assigned_something(
    quick: BrokerProcess, topic: str, group: str, kind: type[Subscriber]
) -> None:
    """Nothing is committed; the place is set in the callback, at the start and after a rebalance."""
    client = Confluent(quick.address)
    client.create(topic, 2)
    fill(client, topic, 2, 0, 10)
    store = {0: 7, 1: 8}
    members = [kind(quick.address, group, topic, start_at=lambda _topic, number: store[number])]
    try:
        eventually(lambda: len(members[0].seen) == 5, "it reads from its places on")
        assert sorted(each[1:3] for each in members[0].seen) == [(0, 7), (0, 8), (0, 9), (1, 8), (1, 9)]
        store.update({0: 10, 1: 10})
        members.append(kind(quick.address, group, topic, start_at=lambda _topic, number: store[number]))
        eventually(lambda: all(len(each.parts) == 1 for each in members), "shared")
        fill(client, topic, 2, 0, 1)
        eventually(lambda: sum(len(each.seen) for each in members) >= 7, "each reads what came")
        later = [*members[0].seen[5:], *members[1].seen]
        assert sorted(each[1:3] for each in later) == [(0, 10), (1, 10)]
    finally:
        for member in members:
            member.close()
    assert committed(quick, group, topic, 2) == [-1, -1]


# --- clients of different kinds -------------------------------------------------------------------------------


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
def test_different_clients_share_one_group(
    quick: BrokerProcess, topic: str, group: str, assignor: str
) -> None:
    """Whichever of them leads: the one that has been there longest goes, and comes back last."""
    Confluent(quick.address).create(topic, 6)
    members = [kind(quick.address, group, topic, assignor=assignor) for kind in SUBSCRIBERS]
    try:
        eventually(have_two_each(members, topic), "three have two each")
        for kind in SUBSCRIBERS:
            members.pop(0).close()
            members.append(kind(quick.address, group, topic, assignor=assignor))
            eventually(have_two_each(members, topic), f"after {kind.name} has left and come back")
    finally:
        for member in members:
            member.close()


def test_an_empty_group_goes_on_in_the_other_protocol(quick: BrokerProcess, topic: str, group: str) -> None:
    client = Confluent(quick.address)
    client.create(topic, 1)
    fill(client, topic, 1, 0, 3)
    for kind, count in ((ConfluentFollower, 3), (ConfluentSubscriber, 2), (ConfluentFollower, 2)):
        member = kind(quick.address, group, topic)
        member.is_committing = True
        eventually(lambda member=member, count=count: len(member.seen) == count, "it goes on")
        member.close()
        fill(client, topic, 1, 0, 2)
