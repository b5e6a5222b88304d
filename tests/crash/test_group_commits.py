"""kill -9 while groups commit: no acknowledged offset is lost, and members go on with what they had."""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

import ottla
from tests.crash.broker_process import PATIENCE_S, BrokerProcess, Wire, wait_until

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
TOPIC = "t"
PARTITIONS = 4
HANDS = [f"hand-{number}" for number in range(8)]

Offsets = dict[int, int]


class Member:
    """Commits larger and larger offsets of what it was assigned, one request after the other, and waits for each answer."""

    def __init__(
        self, address: str, group: str, protocol: str, instance: str | None = None, **settings: int
    ) -> None:
        self.group = group
        self.parts: frozenset[int] = frozenset()
        #: How often it was assigned something.
        self.times = 0
        #: What was acknowledged last, and what may have been written.
        self.acknowledged: Offsets = {}
        self.asked: Offsets = {}
        self.count = 0
        self.errors: list[str] = []
        self._settings = {
            "bootstrap.servers": address, "group.id": group, "group.protocol": protocol, "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 100, "log_level": 0,
            **({"group.instance.id": instance} if instance else {}),
            **{name.replace("_", "."): value for name, value in settings.items()},
        }  # fmt: skip
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        consumer = Consumer(self._settings)

        def assigned(_consumer: Any, _parts: Any) -> None:
            self.times += 1

        consumer.subscribe([TOPIC], on_assign=assigned)
        try:
            while not self._ended.is_set():
                consumer.poll(0.03)
                self.parts = frozenset(each.partition for each in consumer.assignment())
                if self.parts:
                    self._commit(consumer)
        finally:
            consumer.close()

    def _commit(self, consumer: Consumer) -> None:
        # Time grows from one member to the next, too.
        offset = time.monotonic_ns() // 1000
        self.asked |= dict.fromkeys(self.parts, offset)
        try:
            consumer.commit(
                offsets=[TopicPartition(TOPIC, number, offset) for number in self.parts], asynchronous=False
            )
        except KafkaException as error:
            self.errors.append(str(error))
        else:
            self.acknowledged |= dict.fromkeys(self.parts, offset)
            self.count += 1


class Hand:
    """Commits for groups that have no members, one request after the other for all of them at once."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.acknowledged: dict[str, int] = {}
        self.asked: dict[str, int] = {}
        self.count = 0
        self._number = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                with Wire(self._address) as wire:
                    while not self._ended.wait(0.005):
                        self._commit(wire)
            except OSError:
                self._ended.wait(0.02)

    def _commit(self, wire: Wire) -> None:
        """One for each group, all on their way at once."""
        self._number += 1
        for group in HANDS:
            self.asked[group] = self._number
            row = {
                "partition_index": 0, "committed_offset": self._number, "committed_leader_epoch": -1,
                "committed_metadata": "",
            }  # fmt: skip
            wire.send(
                OFFSET_COMMIT, 8, group_id=group, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
                topics=[{"name": TOPIC, "partitions": [row]}],
            )  # fmt: skip
        for group in HANDS:
            code = wire.receive().topics[0].partitions[0].error_code.value
            # Just after a start the shard of a group may still be read, or not be there.
            assert code in (0, 14, 15, 16), code
            if not code:
                self.acknowledged[group] = self._number
                self.count += 1


def committed(wire: Wire, group: str, numbers: range) -> Offsets:
    found: Offsets = {}

    def is_told() -> bool:
        rows = [{"name": TOPIC, "partition_indexes": list(numbers)}]
        answer = wire.ask(OFFSET_FETCH, 7, group_id=group, topics=rows, require_stable=False)
        if answer.error_code.value:
            return False
        found.update({row.partition_index: row.committed_offset for row in answer.topics[0].partitions})
        return True

    wait_until(is_told, f"the coordinator of {group}")
    return found


def have_all(members: list[Member]) -> bool:
    return sorted(number for each in members for number in each.parts) == list(range(PARTITIONS))


# Most of it are starts of processes, which a busy machine stretches.
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("policy", "kills"), [("durable", 5), ("page-cache", 3)])
def test_no_acknowledged_commit_is_lost(
    policy: str, kills: int, tmp_path: Path, free_port: int, seed: Callable[[], int]
) -> None:
    random_ = random.Random(seed())
    settings = {"log.flush.policy": policy, "group.initial.rebalance.delay.ms": "100"}
    with BrokerProcess(tmp_path / "data", free_port, settings) as broker:
        with Wire(broker.address) as wire:
            wire.create(TOPIC, PARTITIONS)
            wire.ask(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["classic"])
        groups = {
            "classic": [Member(broker.address, "classic", "classic") for _ in range(2)],
            "consumer": [Member(broker.address, "consumer", "consumer") for _ in range(2)],
            "static": [Member(broker.address, "static", "classic", f"s-{number}") for number in range(2)],
        }
        everybody = [each for members in groups.values() for each in members]
        hand = Hand(broker.address)
        try:
            for members in groups.values():
                wait_until(
                    lambda members=members: have_all(members) and all(each.parts for each in members),  # type: ignore[misc]
                    f"{members[0].group} shares",
                )
            had = {each: (each.times, each.parts) for each in everybody}
            for _ in range(kills):
                for each in everybody:
                    wanted = each.count + random_.choice((0, 1, 5))
                    wait_until(
                        lambda each=each, wanted=wanted: each.count >= wanted or each.errors,  # type: ignore[misc]
                        f"a member of {each.group} commits",
                    )
                threading.Event().wait(random_.random() / 20)
                broker.kill()
                # What is acknowledged now was so before it died.
                acknowledged = {
                    name: [dict(each.acknowledged) for each in members] for name, members in groups.items()
                }
                by_hand = dict(hand.acknowledged)
                broker.start()
                with Wire(broker.address) as wire:
                    for name, known in acknowledged.items():
                        found = committed(wire, name, range(PARTITIONS))
                        for number, offset in ((at, offset) for each in known for at, offset in each.items()):
                            assert found[number] >= offset, (
                                f"{name}: {number} is at {found[number]}, not {offset}"
                            )
                        asked = [each.asked.get(at, -1) for each in groups[name] for at in range(PARTITIONS)]
                        assert max(found.values()) <= max(asked)
                    for name, offset in by_hand.items():
                        assert committed(wire, name, range(1))[0] >= offset
            for each in everybody:
                wanted = each.count + 3
                wait_until(lambda each=each, wanted=wanted: each.count >= wanted, "it goes on")  # type: ignore[misc]
                assert each.errors == []
                # Nobody was away for longer than a session: nobody was asked to join again.
                assert (each.times, each.parts) == had[each]
        finally:
            hand.close()
            for each in everybody:
                each.close()
        commits = sum(each.count for each in everybody)
    print(f"{kills} kills under {policy}: {commits} commits of members, {hand.count} by hand")
    assert hand.count > 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_rebalance_in_which_the_broker_dies_comes_to_its_end(
    protocol: str, tmp_path: Path, free_port: int, seed: Callable[[], int]
) -> None:
    """Members come and leave while it is killed; nobody's partitions are lost for ever."""
    random_ = random.Random(seed())
    settings = {
        "group.initial.rebalance.delay.ms": "100",
        "group.consumer.min.heartbeat.interval.ms": "200",
        "group.consumer.heartbeat.interval.ms": "200",
        # One whose last word is lost with the broker is missed soon.
        "group.consumer.min.session.timeout.ms": "5000",
        "group.consumer.session.timeout.ms": "5000",
    }
    own = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 500} if protocol == "classic" else {}
    with BrokerProcess(tmp_path / "data", free_port, settings) as broker:
        with Wire(broker.address) as wire:
            wire.create(TOPIC, PARTITIONS)
        members = [Member(broker.address, "g", protocol, **own)]
        try:
            wait_until(lambda: have_all(members), "one has all")
            for _ in range(4):
                if len(members) < 3:
                    members.append(Member(broker.address, "g", protocol, **own))
                    threading.Event().wait(random_.random() * 0.5)
                    broker.kill()
                    broker.start()
                else:
                    leaving = [threading.Thread(target=members.pop(0).close) for _ in range(2)]
                    for each in leaving:
                        each.start()
                    threading.Event().wait(random_.random() * 0.1)
                    broker.kill()
                    broker.start()
                    for each in leaving:
                        each.join(PATIENCE_S)
                try:
                    wait_until(
                        lambda: have_all(members) and all(each.parts for each in members), "all have some"
                    )
                except AssertionError as error:
                    with ottla.Admin(broker.address) as admin:
                        error.add_note(f"to the broker it is {admin.describe_group('g')}")
                    for each in members:
                        error.add_note(f"{sorted(each.parts)}, {each.times} times, {each.errors[-3:]}")
                    raise
        finally:
            for each in members:
                each.close()
