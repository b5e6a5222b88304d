"""A group whose members change from the classic protocol to the new one and back, one by one, with real clients, unmodified, while
records are produced: every record is read, nothing has two readers once it has settled, and offsets go on (KIP-848)."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ottla import Admin
from tests.clients.adapters import PATIENCE_S, Confluent, Message
from tests.clients.conftest import BrokerProcess
from tests.clients.subscribers import (
    SUBSCRIBERS,
    ConfluentFollower,
    ConfluentSubscriber,
    Subscriber,
    eventually,
    have_all,
    places,
)
from tests.clients.test_consumer_groups import QUICK

PARTITIONS = 4


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = QUICK | {"group_initial_rebalance_delay_ms": "0", "group_min_session_timeout_ms": "3000"}
    process = BrokerProcess(tmp_path_factory.mktemp("migration") / "data", **settings)
    yield process
    process.close()


class Producing:
    """Numbers go into all partitions in turn until it is stopped; `count` is how many were acknowledged."""

    def __init__(self, address: str, topic: str) -> None:
        self._client = Confluent(address)
        self._topic = topic
        self._stop = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            message = Message(None, b"%d" % self.count)
            self._client.produce(self._topic, [message], partition=self.count % PARTITIONS)
            self.count += 1

    def stop(self) -> int:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.count


def kind(address: str, group: str) -> str:
    with Admin(address) as admin:
        return next(row.type for row in admin.list_groups() if row.group == group)


def committed(address: str, group: str) -> int:
    with Admin(address) as admin:
        return sum(admin.group_offsets(group).values())


def settled(members: list[Subscriber], topic: str) -> bool:
    return have_all(members, *places(topic, PARTITIONS)) and all(
        len(member.parts) == PARTITIONS // len(members) for member in members
    )


def read_by(members: list[Subscriber]) -> set[bytes]:
    return {value for member in members for _topic, _number, _offset, value in list(member.seen)}


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_two_members_are_replaced_one_by_one_and_back_while_records_come(
    quick: BrokerProcess, topic: str, group: str, assignor: str
) -> None:
    client = Confluent(quick.address)
    client.create(topic, PARTITIONS)

    def member(protocol: str) -> Subscriber:
        if protocol == "consumer":
            made: Subscriber = ConfluentFollower(quick.address, group, topic, assignor="uniform")
        else:
            made = ConfluentSubscriber(quick.address, group, topic, assignor=assignor)
        made.is_committing = True
        return made

    producing = Producing(quick.address, topic)
    members = [member("classic"), member("classic")]
    everybody = list(members)
    try:
        eventually(lambda: settled(members, topic), "two share")
        assert kind(quick.address, group) == "classic"
        for protocol in ("consumer", "consumer", "classic", "classic"):
            members.append(member(protocol))
            everybody.append(members[-1])
            eventually(
                lambda: have_all(members, *places(topic, PARTITIONS)) and all(each.parts for each in members),
                f"three share: {[sorted(each.parts) for each in members]}",
            )
            assert kind(quick.address, group) == "consumer"
            members.pop(0).close()
            eventually(lambda: settled(members, topic), "two share")
        eventually(lambda: kind(quick.address, group) == "classic", "it is a classic group again")
        count = producing.stop()
        assert count > 20
        everything = {b"%d" % number for number in range(count)}
        eventually(lambda: read_by(everybody) == everything, "all is read")
        # What was read was committed, in whatever epoch: somebody new has nothing left to read.
        eventually(lambda: committed(quick.address, group) == count, "all is committed")
    finally:
        producing.stop()
        for each in members:
            each.close()


@pytest.mark.parametrize("kind_of_client", SUBSCRIBERS, ids=lambda each: each.name)
def test_every_client_shares_a_group_with_members_of_the_new_protocol(
    quick: BrokerProcess, topic: str, group: str, kind_of_client: Any
) -> None:
    client = Confluent(quick.address)
    client.create(topic, PARTITIONS)
    for number in range(PARTITIONS):
        client.produce(topic, [Message(None, b"%d" % at) for at in range(5)], partition=number)
    old = kind_of_client(quick.address, group, topic)
    members: list[Subscriber] = [old]
    try:
        eventually(lambda: have_all(members, *places(topic, PARTITIONS)), "one has all")
        eventually(lambda: len(old.seen) >= 5 * PARTITIONS, "and reads all")
        members.append(ConfluentFollower(quick.address, group, topic, assignor="uniform"))
        eventually(lambda: settled(members, topic), f"they share: {[each.parts for each in members]}")
        with Admin(quick.address) as admin:
            described = admin.describe_group(group)
        assert described.state == "Stable" and len(described.members) == 2
        members.pop().close()
        eventually(lambda: settled(members, topic), "it has all again")
        eventually(lambda: kind(quick.address, group) == "classic", "and the group is its own")
        # It comes back while the other is there already.
        members.insert(0, ConfluentFollower(quick.address, group, topic, assignor="uniform"))
        eventually(lambda: settled(members, topic), "they share again")
        members.pop().close()
        eventually(lambda: settled(members, topic), "and the new one has all")
        members.append(kind_of_client(quick.address, group, topic))
        eventually(lambda: settled(members, topic), "an old one comes to the new one")
    finally:
        for each in members:
            each.close()
